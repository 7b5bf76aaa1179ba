"""What comes before a launch: the engine, the models, the patches; each only when it is missing."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from contextlib import nullcontext
from pathlib import Path

from dflash_tui.common.errors import DflashError, PatchError, UsageError
from dflash_tui.engines import cli_flags, engine_python, inventory
from dflash_tui.engines import environments as engines
from dflash_tui.engines.environments import Engine, Report
from dflash_tui.engines.hub import download, model_lookup
from dflash_tui.engines.patching import ledger, patch_set, patcher, status, transaction
from dflash_tui.engines.patching.status import PatchState
from dflash_tui.events import Preparing, Step
from dflash_tui.machine.processes import build_clean_environment
from dflash_tui.planning import patch_file
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipe import EngineSpec, Status
from dflash_tui.planning.resolution import ResolvedRecipe
from dflash_tui.runs import lifecycle
from dflash_tui.runs.run import Run

_LAST_LINES = 5
_WORDS = {
    PatchState.APPLIED: "already applied",
    PatchState.APPLIED_BY_OTHER: "already applied, not by dflash-tui",
    PatchState.UPSTREAM: "part of this vLLM",
    PatchState.NOT_APPLICABLE: "not for this engine",
}


async def prepare_and_launch(
    setup: ResolvedRecipe, plan: Plan, report: Report, *, forced: str = "", restarted_from: str = ""
) -> Run:
    """Prepare what `plan` needs, launch its server and return the run.

    `forced` says why failed checks were overruled, `restarted_from` names the run that it is launched again after.

    Raises:
        EngineError: the environment could not be built.
        UsageError: the engine's vLLM does not know a flag of the plan.
        DflashError: the models could not be made or fetched.
        PatchError: a patch does not fit, or may not be applied.
        ServerFailed: the process could not be started.
    """
    kept: list[Preparing] = []

    def note(event: Preparing) -> None:
        if event.done or all(event.step is not known.step for known in kept):  # the first one tells when it began
            kept.append(event)
        report(event)

    engine = await prepare_engine_and_models(setup, plan, note, forced=forced)
    await bring_patches_up_to_date(plan, engine, note)
    return await _launch(plan, engine, kept, forced, restarted_from)


async def prepare_engine_and_models(setup: ResolvedRecipe, plan: Plan, report: Report, *, forced: str = "") -> Engine:
    """Install, build and fetch what `plan` needs and is missing, and return its engine, whose files are not patched.

    Raises:
        EngineError: the environment could not be built.
        UsageError: the engine's vLLM does not know a flag of the plan.
        DflashError: the models could not be made or fetched.
    """
    engine = await _engine(setup.engine, plan, report)
    await _flags(setup, plan, engine, report, forced=forced)
    await _build(plan, engine, report)
    await _fetch(plan, engine, report)
    return engine


async def _engine(spec: EngineSpec, plan: Plan, report: Report) -> Engine:
    folder = Path(plan.engine_folder)
    if found := await asyncio.to_thread(inventory.find_any_engine, folder):
        report(Preparing(time.time(), Step.INSTALL, f"{found.distribution} {found.vllm}, as installed", 1.0, done=True))
        return found
    return await engines.install_engine(spec, folder, report)


async def _flags(setup: ResolvedRecipe, plan: Plan, engine: Engine, report: Report, *, forced: str) -> None:
    """Have the engine's own parser look at the flags, unless a verified recipe runs as it is on its own engine."""
    seen_by_vllm = {key for key in setup.changed if key != "host" and not key.startswith("restart.")}
    if setup.standing.status is Status.VERIFIED and not seen_by_vllm and not engine.adopted:
        return
    report(Preparing(time.time(), Step.CHECK, f"asking vLLM {engine.vllm} for its flags, about 20 s the first time"))
    known = await engine_python.run_in_cancellable_thread(lambda: inventory.read_serve_options(engine))
    wrong = cli_flags.find_flag_mistakes(plan, known)
    if wrong and not forced:
        raise UsageError(
            "this vLLM does not know what the recipe asks for", evidence="; ".join(wrong), hint=cli_flags.FIX
        )
    words = "; ".join(wrong) or f"vLLM {engine.vllm} knows every flag of the plan"
    report(Preparing(time.time(), Step.CHECK, words, 1.0, done=True))


async def _fetch(plan: Plan, engine: Engine, report: Report) -> None:
    """Fetch what the hub has of the plan's models and the cache lacks."""
    for model in plan.models:
        found = await model_lookup.look_up_model(model.name, model.revision)
        if not found.complete:
            await download.download_model(found, engine.python, report)


async def _build(plan: Plan, engine: Engine, report: Report) -> None:
    """Run the recipe's builder into a folder beside the final one, which is renamed when it is complete.

    Two callers wait for each other; what a killed one left is removed by the next.
    """
    if not plan.build_script:
        return
    folder = Path(plan.models_folder)
    if folder.is_dir():
        report(Preparing(time.time(), Step.MODELS, "target and drafter, as built", 1.0, done=True))
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    async with engines.hold_lock(folder.with_name(f".{folder.name}.lock"), report, Step.MODELS) as lock:
        for left in folder.parent.glob(f".{folder.name}.*[0-9]"):
            shutil.rmtree(left, ignore_errors=True)
        began = time.time()
        report(Preparing(began, Step.MODELS, "building target and drafter here"))
        if not folder.is_dir():
            await _built(plan, engine, folder, lock)
    seconds = time.time() - began
    report(Preparing(time.time(), Step.MODELS, f"target and drafter built in {seconds:.0f} s", 1.0, done=True))


async def _built(plan: Plan, engine: Engine, folder: Path, lock: int) -> None:
    temporary = folder.with_name(f".{folder.name}.{time.time_ns()}")
    temporary.mkdir()
    try:
        process = await asyncio.create_subprocess_exec(
            engine.python,
            plan.build_script,
            temporary,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=build_clean_environment(),
            pass_fds=(lock,),
        )
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
        if process.returncode != 0:
            last = output.decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
            raise DflashError(f"the models of {plan.recipe} could not be built", evidence=" | ".join(last))
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


async def bring_patches_up_to_date(plan: Plan, engine: Engine, report: Report) -> None:
    """Apply the patches that the plan needs, and revert those that it does not ask for.

    A change that was interrupted is finished or undone first, also for a plan without patches.
    """
    patches = patch_set.patches_for(plan)
    removed, unfinished = patch_set.patches_to_remove(plan, engine), transaction.find_unfinished_change(engine)
    if not patches.add and not removed and not unfinished:
        return
    missing = [
        p.name for p in patches.add if status.find_patch_status(p, engine, plan.hardware).state is PatchState.NEEDED
    ]
    steps = [f"applying {', '.join(missing)}"] if missing else []
    steps += [f"reverting {', '.join(removed)}"] if removed else []
    if steps or unfinished:  # else it takes no time worth telling
        report(Preparing(time.time(), Step.PATCHES, "; ".join(steps) or "finishing an interrupted change"))
    outcome = await engine_python.run_in_cancellable_thread(
        lambda: patcher.apply_patches(patches.add, engine, plan.hardware, remove=patches.remove)
    )
    states = [status.find_patch_status(patch, engine, plan.hardware) for patch in patches.add]
    results = [
        f"{s.name} {'applied now' if s.name in outcome.names else _WORDS.get(s.state, s.state.value)}" for s in states
    ]
    results += [f"{name} reverted ({patches.remove[name]})" for name in outcome.reverted]
    report(Preparing(time.time(), Step.PATCHES, ", ".join([*outcome.notes, *results]), 1.0, done=True))


async def _launch(plan: Plan, engine: Engine, prepared: list[Preparing], forced: str, restarted_from: str = "") -> Run:
    """Launch the server while nobody else changes the files that it reads; from then on it counts as running."""
    deadline = time.monotonic() + ledger.TIMEOUT
    while True:
        try:
            # An environment adopted without permission to patch it is never changed, and may have nothing to lock.
            with ledger.lock_ledger(engine, timeout=0.0) if engine.patchable else nullcontext():
                return _launch_now(plan, engine, prepared, forced, restarted_from)
        except ledger.LedgerBusy:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.1)


def _launch_now(plan: Plan, engine: Engine, prepared: list[Preparing], forced: str, restarted_from: str) -> Run:
    """Launch the server, and record every patch that is applied to the engine, whoever applied it."""
    if left := transaction.find_unfinished_change(engine):
        raise PatchError(
            f"a change of the files in {engine.folder} was interrupted", evidence=left.message, hint="launch again"
        )
    there = status.list_present_patches(engine)
    if wrong := [name for name in plan.disabled_patches if name in there]:
        raise PatchError(f"{', '.join(wrong)} is disabled, but already applied in {engine.folder}, not by dflash-tui",
                         hint="drop the setting, or use another engine")  # fmt: skip
    if late := patch_set.patches_to_remove(plan, engine):
        raise PatchError(f"another process applied {', '.join(late)} in the meantime", hint="launch again")
    found = [status.find_patch_status(patch_file.load_patch(name), engine, plan.hardware) for name in plan.patches]
    if gone := [one.name for one in found if one.state is PatchState.NEEDED]:
        raise PatchError(f"another process reverted {', '.join(gone)} in the meantime", hint="launch again")
    if drifted := [one for one in found if one.state is PatchState.DRIFTED]:
        raise PatchError(f"{drifted[0].name} is needed, but does not fit the files of {engine.folder}",
                         evidence=drifted[0].why, hint="see what differs: dflash-tui patch status")  # fmt: skip
    label = f"{engine.distribution} {engine.vllm}"
    return lifecycle.launch_server(
        plan, engine=label, patches=there, prepared=prepared, forced=forced, restarted_from=restarted_from
    )
