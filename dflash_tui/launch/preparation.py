"""Prepare a launch if needed: install the engine, get the models, make the patched engine."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil

from dflash_tui.common import private_files
from dflash_tui.common.errors import DflashError, PatchError, UsageError
from dflash_tui.common.formatting import pluralize
from dflash_tui.common.sanitizer import join_last_lines
from dflash_tui.engines import (
    download,
    engine_python,
    environments,
    installation,
    inventory,
    model_hub,
    model_inspection,
    uv_process,
)
from dflash_tui.engines.download import ByteProgress
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.installation import Report
from dflash_tui.engines.patching import patched_engine, status
from dflash_tui.engines.patching.status import PatchState
from dflash_tui.events import Preparing, Step
from dflash_tui.launch import recipe_trust
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.machine.process_environment import build_helper_environment
from dflash_tui.planning.cluster import require_named
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.recipe import EngineSpec, ModelBuild, Status
from dflash_tui.planning.request import format_advice
from dflash_tui.planning.startup_optimizations import MODELINFOS, OPTIMIZATIONS
from dflash_tui.runs import lifecycle
from dflash_tui.runs.run import Run

_STATE_TEXT = {
    PatchState.APPLIED: "already applied",
    PatchState.APPLIED_BY_OTHER: "already applied, not by dflash-tui",
    PatchState.UPSTREAM: "part of this vLLM",
    PatchState.NOT_APPLICABLE: "not for this engine",
}


async def prepare_and_launch(planned: PlannedLaunch, report: Report) -> Run:
    """Prepare and launch a server; return its run. `report` is called with the events of the preparation."""
    events: list[Preparing] = []

    def record(event: Preparing) -> None:
        if event.done or all(event.step is not other.step for other in events):  # the first event has the start time
            events.append(event)
        report(event)

    plan, engine = planned.plan, await prepare_without_launch(planned, record)
    return lifecycle.launch_server(
        plan,
        engine=f"{engine.distribution} {engine.vllm}",
        patches=await asyncio.to_thread(_list_patches, plan, engine),
        prepared=events,
        forced=planned.forced,
        restarted_from=planned.replaces,
        far_ranks=planned.far_ranks,
        models=await asyncio.to_thread(model_hub.describe_models, plan),
    )


async def prepare_without_launch(planned: PlannedLaunch, report: Report) -> Engine:
    """Do all that precedes a launch: engine, models, patches, inspection; return the engine."""
    plan = planned.plan
    engine = await make_patched_engine(plan, await prepare_engine_and_models(planned, report), report)
    await _inspect_models(plan, engine, report)
    return engine


async def prepare_engine_and_models(planned: PlannedLaunch, report: Report) -> Engine:
    """Install the engine and get the models if they are missing; return the engine.

    It is the unpatched engine, or the patched one if only that exists. Raise UsageError if the recipe is not trusted, a
    host is not named, or the engine's vLLM does not know a flag.
    """
    resolved, plan = planned.resolved, planned.plan
    recipe_trust.require_trust(recipe_trust.list_launched(resolved.recipe, [plan]))
    require_named(plan.cluster)
    engine = await install_engine(resolved.engine, plan, report)
    await _check_flags(planned, engine, report)
    await build_models(plan, resolved.recipe.build, engine, report)
    for model in plan.models:
        availability = await model_hub.look_up_model(model.name, model.revision)
        if not availability.complete:
            await download.download_model(availability, report)
    return engine


async def install_engine(spec: EngineSpec, plan: Plan, report: Report) -> Engine:
    """Return the engine that gets the plan's patches; the patched engine if only that exists."""
    folder = Path(plan.unpatched_folder)
    found = await asyncio.to_thread(inventory.find_any_engine, folder)
    if engine := found or await asyncio.to_thread(inventory.find_any_engine, Path(plan.engine_folder)):
        text = f"{engine.distribution} {engine.vllm}, already installed"
        report(Preparing(time.time(), Step.INSTALL, text, 1.0, done=True))
        return engine
    return await installation.install_engine(spec, folder, report)


async def _check_flags(planned: PlannedLaunch, engine: Engine, report: Report) -> None:
    """Check the flags with the engine's parser, unless the recipe is verified, unchanged and on its own engine."""
    resolved, plan = planned.resolved, planned.plan
    seen_by_vllm = {key for key in resolved.changed if key != "host" and not key.startswith(("restart.", "start."))}
    seen_by_vllm |= {name for name in plan.start if OPTIMIZATIONS[name].flags}
    if resolved.standing.status is Status.VERIFIED and not seen_by_vllm and not engine.adopted:
        return
    report(Preparing(time.time(), Step.CHECK, f"asking vLLM {engine.vllm} for its flags, about 20 s the first time"))
    # With known flags, the server itself reports a wrong value as quickly.
    options = inventory.read_cached_serve_options(engine)
    if options is None:
        options = await engine_python.run_in_cancellable_thread(
            lambda: inventory.read_serve_options(engine, plan.argv[2:])
        )
    mistakes = inventory.find_flag_mistakes(plan, options)
    if mistakes and not planned.forced:
        raise UsageError(
            "this vLLM does not accept the flags of the recipe",
            evidence="; ".join(mistakes),
            hint=format_advice(inventory.FIX),
        )
    text = "; ".join(mistakes) or f"vLLM {engine.vllm} knows every flag of the plan"
    report(Preparing(time.time(), Step.CHECK, text, 1.0, done=True))


async def make_patched_engine(plan: Plan, engine: Engine, report: Report) -> Engine:
    """Return the engine of `plan`, made from `engine` and the plan's patches."""
    folder = Path(plan.engine_folder)
    if engine.folder == plan.engine_folder:
        return engine
    patches = status.load_planned_patches(plan)
    recipe_trust.require_trust(patches)
    if found := await asyncio.to_thread(inventory.find_any_engine, folder):
        text = f"{', '.join(found.patches) or 'none needed'}, in {folder}"
        report(Preparing(time.time(), Step.PATCHES, text, 1.0, done=True))
        return found
    text = f"making an engine with {', '.join(plan.patches)}, by links to the files of {engine.folder}"
    report(Preparing(time.time(), Step.PATCHES, text))
    made = await engine_python.run_in_cancellable_thread(
        lambda: patched_engine.make_patched_engine(engine, folder, patches, plan.hardware)
    )
    states = [status.find_patch_status(patch, made.engine, plan.hardware) for patch in patches]
    results = [
        f"{s.name} {'applied now' if s.name in made.added else _STATE_TEXT.get(s.state, s.state.value)}" for s in states
    ]
    text = ", ".join(filter(None, [made.note, *results]))
    report(Preparing(time.time(), Step.PATCHES, f"{text}, in {folder}", 1.0, done=True))
    return made.engine


def _list_patches(plan: Plan, engine: Engine) -> tuple[str, ...]:
    """Return all patches in the engine; raise PatchError if a disabled one is in it, or a needed one is not."""
    present = status.list_present_patches(engine)
    if disabled := [name for name in plan.disabled_patches if name in present]:
        what = f"{', '.join(disabled)} is disabled, but part of the engine {engine.folder}"
        raise PatchError(what, hint="drop the setting, or use another engine")
    states = [status.find_patch_status(patch, engine, plan.hardware) for patch in status.load_planned_patches(plan)]
    if absent := [state for state in states if state.state in {PatchState.NEEDED, PatchState.DRIFTED}]:
        what = f"{absent[0].name} is needed, and not in the engine {engine.folder}"
        raise PatchError(what, evidence=absent[0].why, hint="see what differs: dflash-tui patch status")
    return present


async def _inspect_models(plan: Plan, engine: Engine, report: Report) -> None:
    """Inspect the models with the engine before the server must; a failure only makes the start slower."""
    if MODELINFOS not in plan.start:
        return
    try:
        missing = await asyncio.to_thread(model_inspection.list_uninspected, plan, engine)
        if not missing:
            return
        began = time.monotonic()
        models = pluralize(len(missing), "model")
        report(Preparing(time.time(), Step.INSPECT, f"inspecting {models}, once per engine"))
        await engine_python.run_in_cancellable_thread(lambda: model_inspection.inspect_models(plan, engine, missing))
    except engine_python.Cancelled:
        raise
    except (DflashError, OSError, msgspec.MsgspecError) as error:
        why = (error.evidence or error.what) if isinstance(error, DflashError) else str(error)
        environments.remember_failed_measure(Path(plan.unpatched_folder), MODELINFOS, why)
        text = f"vLLM inspects them itself, with one import per model: {why}"
        report(Preparing(time.time(), Step.INSPECT, text, 1.0, done=True))
        return
    environments.forget_failed_measure(Path(plan.unpatched_folder), MODELINFOS)
    text = f"{models} inspected in {time.monotonic() - began:.0f} s"
    report(Preparing(time.time(), Step.INSPECT, text, 1.0, done=True))


_INTERVAL = 0.5  # seconds
_LAST_LINES = 5
_BYTES = re.compile(r"(\d{1,15}) bytes\s*")
_FREE = "free some space, or put the models elsewhere with XDG_DATA_HOME, and run the same command again"


async def build_models(plan: Plan, build: ModelBuild | None, engine: Engine, report: Report) -> None:
    """Build the models of `plan` as its recipe's `build` says, if they are missing.

    They are built beside the final folder and renamed when complete. A second caller waits for the first; leftovers of
    a killed one are removed. Downloads stay in uv's cache.
    """
    if not (build and plan.build_script):
        return
    folder = Path(plan.models_folder)
    if folder.is_dir():
        report(Preparing(time.time(), Step.MODELS, "target and drafter, already built", 1.0, done=True))
        return
    private_files.ensure_private_folder(folder.parent)
    async with installation.hold_lock(folder.with_name(f".{folder.name}.lock"), report, Step.MODELS) as lock:
        for leftover in folder.parent.glob(f".{folder.name}.*[0-9]"):
            shutil.rmtree(leftover, ignore_errors=True)
        began = time.monotonic()
        report(Preparing(time.time(), Step.MODELS, "building target and drafter"))
        if not folder.is_dir():
            temporary = folder.with_name(f".{folder.name}.{time.time_ns()}")
            temporary.mkdir(mode=0o700)
            try:
                making = _Build(plan, build, engine, temporary, report, lock)
                await making.fetch_packages()
                (await making.run_script()).rename(folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    seconds = time.monotonic() - began
    report(Preparing(time.time(), Step.MODELS, f"target and drafter built in {seconds:.0f} s", 1.0, done=True))


class _Build(NamedTuple):
    plan: Plan
    build: ModelBuild
    engine: Engine
    temporary: Path
    report: Report
    lock: int

    @property
    def packages(self) -> Path:
        return self.temporary / "packages"

    async def fetch_packages(self) -> None:
        """Fetch the packages listed beside the script, if any, by version and hash."""
        requirements = Path(self.plan.build_script).with_suffix(".txt")
        if not requirements.exists():
            return
        lines = requirements.read_text(encoding="utf-8").splitlines()
        names = [line.split()[0] for line in lines if line and not line.startswith("#")]
        argv = ["pip", "install", "--python", str(self.engine.python), "--target", str(self.packages), "--no-deps"]
        argv += ["--require-hashes", "--only-binary", ":all:", "--requirements", str(requirements)]
        what = f"what {self.plan.recipe} is built from"
        progress = uv_process.InstallProgress(what, names, self.build.download_mb, self.report, Step.MODELS)
        written = ByteProgress(what, self.build.download_mb * 1_000_000, 0, self.report)
        no_lock = self.temporary / "none"  # a lock of packages that does not exist: the hashes are in the requirements
        fetching = asyncio.create_task(uv_process.run_uv(argv, progress, self.lock, no_lock))
        try:
            while not fetching.done():
                if amount := _measure_written(progress.pid):
                    written.report(amount)
                await asyncio.wait({fetching}, timeout=_INTERVAL)
            await fetching
        finally:
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)

    async def run_script(self) -> Path:
        """Run the script; return the folder that it filled."""
        folder = self.temporary / "models"
        folder.mkdir(mode=0o700)
        process = await asyncio.create_subprocess_exec(
            self.engine.python,
            self.plan.build_script,
            folder,
            self.packages,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=build_helper_environment(),
            cwd="/",
            pass_fds=(self.lock,),
        )
        assert process.stdout is not None  # noqa: S101 - it is PIPE
        output, progress = list[str](), None
        try:
            async for raw in process.stdout:
                output.append(raw.decode(errors="replace"))
                if match := _BYTES.fullmatch(output[-1]):
                    done, total = int(match[1]), self.build.size_mb * 1_000_000
                    progress = progress or ByteProgress("target and drafter", total, done, self.report)
                    progress.report(done)
                    output.pop()
            await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
        if process.returncode != 0:
            last = join_last_lines("".join(output), _LAST_LINES)
            hint = _FREE if "no space left" in last.lower() else ""
            raise DflashError(f"the models of {self.plan.recipe} could not be built", evidence=last, hint=hint)
        return folder


def _measure_written(pid: int | None) -> int:
    try:
        return int(psutil.Process(pid).io_counters().write_chars) if pid else 0
    except psutil.Error:
        return 0
