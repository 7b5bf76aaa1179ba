"""vLLM environments and patches of their files: `engine` and `patch`."""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from dflash_tui.cli.console import (
    is_json,
    print_data,
    print_items,
    print_json,
    print_result,
    print_status,
    print_table,
    print_text,
)
from dflash_tui.cli.event_lines import PreparingLines
from dflash_tui.cli.json_lines import PatchOutcome, RemovedEngine
from dflash_tui.cli.requests import confirm_patch_trust, confirm_trust, read_launch_request
from dflash_tui.common import paths
from dflash_tui.common.errors import UsageError
from dflash_tui.common.formatting import format_gib
from dflash_tui.common.private_files import DiskCount
from dflash_tui.engines import inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import patched_engine, published_files, status
from dflash_tui.engines.patching.status import PatchState, PatchStatus
from dflash_tui.launch import preparation
from dflash_tui.launch.planner import PlannedLaunch, plan_launch_here
from dflash_tui.machine import gpus, nvml
from dflash_tui.machine.hardware import Hardware, parse_class
from dflash_tui.planning import patch_file
from dflash_tui.planning.patch_file import Patch
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.plan_builder import patched_folder_for


class Scope(NamedTuple):
    """The engine and the patches that the arguments name."""

    engine: Engine
    patches: list[Patch]
    hardware: Hardware | None
    """The class of hardware for which the states hold; None is any."""
    unusable: dict[str, str]
    """Invalid patch files: name -> reason."""
    plan: Plan | None = None
    """The recipe's plan; None without a recipe or with --only."""

    @property
    def states(self) -> list[PatchStatus]:
        """The state of each patch, by the plan if there is one."""
        if self.plan:
            return status.patch_status(self.plan, self.engine)
        return [status.find_patch_status(patch, self.engine, self.hardware) for patch in self.patches]


def _scope(args: argparse.Namespace) -> Scope:
    if args.settings and not args.recipe:
        raise UsageError("--set changes a recipe, so name one", hint="dflash-tui recipes")
    plan: Plan | None = None
    all_patches, unusable = patch_file.load_all_patches()
    if args.recipe:
        plan = plan_launch_here(read_launch_request(args)).plan
        engine = inventory.find_planned_engine(plan)
        if engine is None:
            raise UsageError(
                f"the engine of {args.recipe} is not installed", hint=f"dflash-tui engine install {args.recipe}"
            )
        patches = [patch_file.load_patch(plan_patch.name) for plan_patch in status.patch_status(plan, engine)]
        hardware: Hardware | None = plan.hardware
    elif args.engine:
        engine, hardware = inventory.find_engine_by_name(args.engine), _find_hardware(args.gpu)
        patches = [patch for patch in all_patches if patch.distribution == engine.distribution]
    else:
        raise UsageError("name a recipe, or an engine with --engine", hint="dflash-tui engine list")
    if args.only:
        patches, plan = [patch_file.load_patch(name) for name in args.only], None
    return Scope(engine, patches, hardware, unusable, plan)


def _find_hardware(wanted: str | None) -> Hardware | None:
    """Return the named class of hardware; without a name that of this machine's GPUs if they share one."""
    if wanted and (kind := parse_class(wanted)):
        return kind
    if wanted:
        return gpus.choose_gpus(nvml.probe_visible_gpus().gpus, wanted, 1)[0].hardware
    kinds = {card.hardware for card in nvml.probe_visible_gpus().gpus if not card.trouble}
    return kinds.pop() if len(kinds) == 1 else None


def _chosen(scope: Scope, args: argparse.Namespace) -> list[Patch]:
    """Return the patches to apply: those of --only, else those of the plan, else the usual ones.

    The usual ones are neither experimental, nor alternatives, nor replaced by an alternative that is applied already.
    """
    if args.only:
        return scope.patches
    if scope.plan:
        return status.load_planned_patches(scope.plan)
    present = status.list_present_patches(scope.engine)
    replaced = {patch.instead_of for patch in scope.patches if patch.name in present}
    usual = (patch for patch in scope.patches if not patch.experimental and not patch.instead_of)
    return [patch for patch in usual if patch.name not in replaced]


def patch_status(args: argparse.Namespace) -> int:
    """Print the state of each patch, and the difference of the source if one does not fit."""
    scope = _scope(args)
    states = scope.states
    for patch, state in zip(scope.patches, states, strict=True):
        about = {"title": patch.title, "experimental": patch.experimental, "recipes": patch.recipes}
        about |= {"link": patch.link, "files": patch.paths, "engine": scope.engine.folder}
        print_items([msgspec.to_builtins(state) | about])
    print_items({"name": name, "state": "unusable", "why": why} for name, why in scope.unusable.items())
    print_text(f"{scope.engine.distribution} {scope.engine.vllm} in {scope.engine.folder}")
    rows = [
        (state.name, state.state.value, _why(patch, state)) for patch, state in zip(scope.patches, states, strict=True)
    ]
    print_table(("PATCH", "STATE", "WHY"), rows)
    if not rows:
        print_text("no patches")
    for name, why in scope.unusable.items():
        print_status(f"! {name} is unusable: {why}")
    for state in states:
        if state.drift:
            print_text(f"\n{state.name}:\n{state.drift}")
    return 0


def _why(patch: Patch, state: PatchStatus) -> str:
    if state.state not in {PatchState.NEEDED, PatchState.APPLIED, PatchState.APPLIED_BY_OTHER}:
        return state.why
    kind = "experimental, only by name: " if patch.experimental else ""
    alternative = f"alternative to {patch.instead_of}: " if patch.instead_of else ""
    users = f"for {', '.join(patch.recipes)}" if patch.recipes else ""
    return "; ".join(filter(None, [f"{kind}{alternative}{patch.title}", users, state.why]))


def patch_diff(args: argparse.Namespace) -> int:
    """Print the patches as a unified diff; if the engine is not installed, against its published wheel."""
    planned = plan_launch_here(read_launch_request(args)) if args.recipe else None
    if planned and inventory.find_planned_engine(planned.plan) is None:
        chosen = [patch_file.load_patch(name) for name in args.only or planned.plan.patches]
        diffs = published_files.preview_on_wheel(chosen, planned.resolved.engine)
    else:
        scope = _scope(args)
        diffs = patched_engine.preview_patches(_chosen(scope, args), _find_base(scope.engine), scope.hardware)
    print_result(diffs, "".join(diffs.values()).rstrip("\n") if diffs else "nothing to change")
    return 0


def _find_base(engine: Engine) -> Engine:
    base = inventory.find_any_engine(Path(engine.base)) if engine.base else None
    return _find_base(base) if base else engine


def patch_apply(args: argparse.Namespace) -> int:
    """Make an engine with the patches that are needed; with --dry-run only print the diff."""
    scope = _scope(args)
    base, chosen = scope.engine, _chosen(scope, args)
    if scope.plan:
        base = inventory.find_any_engine(Path(scope.plan.unpatched_folder)) or base
    states = [status.find_patch_status(patch, base, scope.hardware) for patch in chosen]
    needed = [state.name for state in states if state.state in {PatchState.NEEDED, PatchState.DRIFTED}]
    wanted = [patch for patch in chosen if patch.name in needed]
    if not args.dry_run:
        confirm_patch_trust(wanted, base, args)
    diffs, note, folder = patched_engine.preview_patches(chosen, base, scope.hardware), "", Path(base.folder)
    if wanted:
        named = patched_folder_for(folder, wanted, inventory.digest_state(base))
        folder = Path(scope.plan.engine_folder) if scope.plan else named
    if wanted and not args.dry_run:
        note = patched_engine.make_patched_engine(base, folder, chosen, scope.hardware).note
    if args.dry_run and diffs:
        print_text("".join(diffs.values()))
    would = "would be in " if args.dry_run else ""
    text = f"{', '.join(needed)}: {would}{folder}" if needed else "nothing to apply"
    print_result(PatchOutcome(tuple(needed), str(folder), diffs, note), text)
    if note:
        print_status(f"! {note}")
    for state in states:
        if state.name not in needed:
            print_status(f"· {state.name}: {state.state.value}{f', {state.why}' if state.why else ''}")
    return 0


def patch_revert(args: argparse.Namespace) -> int:
    """Print the engine without patches: it was never changed, so there is nothing to undo."""
    base = _find_base(_scope(args).engine)
    print_result(PatchOutcome((), base.folder), f"nothing to undo: {base.folder} was never changed")
    print_status("patched engines are folders of their own: dflash-tui engine list, dflash-tui engine remove ENGINE")
    return 0


def patch_verify(args: argparse.Namespace) -> int:
    """Print whether each file that a patch could touch is intact; the exit code is 5 if one is not."""
    scope = _scope(args)
    only = {path for patch in scope.patches for path in patch.paths} if args.only else None
    checks = status.verify_files(scope.engine, only)
    for check in checks:
        print_result(check, f"{'✓' if check.ok else '✗'} {check.path}: {check.found}")
    if not checks:
        print_status("the engine has none of the files that patches change")
    return 0 if all(check.ok for check in checks) else 5


def engine_list(_args: argparse.Namespace) -> int:
    """Print the installed and adopted engines, and the leftovers of killed installations."""
    rows, count = [], DiskCount()
    for engine in sorted(inventory.list_engines(), key=lambda engine: bool(engine.base)):
        measured = count.measure_folder(Path(engine.folder))  # adopted ones, too: engines share their files
        size = None if engine.adopted else measured
        print_items([msgspec.to_builtins(engine) | {"bytes": size, "patches": engine.patches}])
        kind = "adopted" if engine.adopted else time.strftime("%Y-%m-%d", time.localtime(engine.installed_at))
        rows.append(
            (
                f"{engine.distribution} {engine.vllm}",
                kind,
                format_gib(size),
                ", ".join(engine.patches) or "none",
                f"{engine.folder}{f', made from {Path(engine.base).name}' if engine.base else ''}",
            )
        )
    print_table(("ENGINE", "INSTALLED", "SIZE", "PATCHES", "FOLDER"), rows, right=(2,))
    if not rows:
        print_status("no engine yet; launching a recipe installs its own")
    for unused in inventory.list_unused_engines():
        print_status(f"! {unused.what}; {unused.hint}")
    return 0


def engine_install(args: argparse.Namespace) -> int:
    """Install the engine of a recipe, and make its patched engine."""
    planned = plan_launch_here(read_launch_request(args))
    confirm_trust(planned.resolved.recipe, [planned.plan], args)
    chosen = asyncio.run(_install(planned))
    print_result(chosen, chosen.folder)
    return 0


async def _install(planned: PlannedLaunch) -> Engine:
    report = PreparingLines()
    engine = await preparation.install_engine(planned.resolved.engine, planned.plan, report)
    return await preparation.make_patched_engine(planned.plan, engine, report)


def engine_inspect(args: argparse.Namespace) -> int:
    """Print the packages of an engine, as its own Python reports them, and the state of every patch."""
    chosen = inventory.find_engine_by_name(args.engine)
    contents = inventory.describe_environment(chosen.python)
    patches, unusable = patch_file.load_all_patches()
    states = [status.find_patch_status(patch, chosen) for patch in patches]
    if is_json():
        patched = {state.name: state.state.value for state in states} | dict.fromkeys(unusable, "unusable")
        about = {"folder": chosen.folder, "adopted": chosen.adopted, "patches": patched, "base": chosen.base}
        print_json(msgspec.to_builtins(contents) | about)
        return 0
    named = ("torch", "transformers", "flashinfer-python", "triton", "huggingface_hub", "ray")
    parts = [(name, contents.packages[name]) for name in named if name in contents.packages]
    rows = [("folder", f"{chosen.folder}{' (adopted)' if chosen.adopted else ''}"), ("Python", contents.python)]
    rows += [("made from", chosen.base)] if chosen.base else []
    rows += [(contents.distribution, f"{contents.vllm}{'' if contents.dflash else ', without DFlash'}"), *parts]
    rows += [("packages", str(len(contents.packages)))]
    rows += [("patch", f"{state.name}: {state.state.value}") for state in states]
    rows += [("patch", f"{name} is unusable: {why}") for name, why in unusable.items()]
    rows += [("drift", line) for line in _drift(chosen, contents)]
    print_data("\n".join(f"{label:<18} {value}" for label, value in rows))
    return 0


def engine_remove(args: argparse.Namespace) -> int:
    """Delete an installed engine, or remove an adopted one from the list."""
    incomplete = paths.engines_folder() / args.engine
    if incomplete in inventory.list_leftovers():
        inventory.clear_leftover(incomplete)
        folder, is_kept = str(incomplete), False
    else:
        chosen = inventory.find_engine_by_name(args.engine)
        inventory.remove_engine(chosen)
        folder, is_kept = chosen.folder, chosen.adopted
    print_items([RemovedEngine(folder)])
    print_status(f"{folder} is no longer listed; nothing in it was changed" if is_kept else f"removed {folder}")
    return 0


def engine_adopt(args: argparse.Namespace) -> int:
    """Add the user's own environment to the list of engines."""
    chosen = inventory.adopt_engine(Path(args.folder))
    print_result(chosen, chosen.folder)
    print_status(f"{chosen.distribution} {chosen.vllm}, adopted, and never changed: a launch that needs patches "
                 f"makes an engine of its own from it. Use it with --engine {chosen.folder}")  # fmt: skip
    return 0


def _drift(chosen: Engine, contents: inventory.EnvironmentContents) -> list[str]:
    if chosen.adopted:
        return []
    then = dict(line.split("==", 1) for line in chosen.packages)
    now = {name.lower().replace("_", "-"): version for name, version in contents.packages.items()}
    changed = [
        f"{name} {version} was installed, now {now.get(name.lower().replace('_', '-'), 'gone')}"
        for name, version in then.items()
        if now.get(name.lower().replace("_", "-")) != version
    ]
    return sorted(changed)
