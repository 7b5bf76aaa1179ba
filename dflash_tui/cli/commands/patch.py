"""`patch`: how the patches of an engine stand, what they change, applied, taken out, verified."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import msgspec

from dflash_tui.cli.console import print_data, print_json, print_status
from dflash_tui.common.errors import UsageError
from dflash_tui.common.formatting import format_table
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.engines import inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import patch_set, patcher, transaction
from dflash_tui.engines.patching import status as patching_status
from dflash_tui.engines.patching.status import PatchState, PatchStatus
from dflash_tui.launch.planner import plan_launch
from dflash_tui.machine import gpus, nvml
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import patch_file
from dflash_tui.planning.patch_file import Patch
from dflash_tui.planning.plan import Plan


class Scope(NamedTuple):
    """The engine in question, the patches and how they stand, and the hardware they are judged for (None: any).

    `plan` is the recipe's, where not patches by name are meant. `unusable` says of other patch files why they are not
    valid.
    """

    engine: Engine
    patches: list[Patch]
    hardware: Hardware | None
    unusable: dict[str, str]
    plan: Plan | None = None

    @property
    def found(self) -> list[PatchStatus]:
        """How each of the patches stands, by the plan if there is one."""
        if self.plan:
            return patch_set.patch_status(self.plan, self.engine)
        return [patching_status.find_patch_status(patch, self.engine, self.hardware) for patch in self.patches]


def patch(args: argparse.Namespace) -> int:
    """`patch status|diff|apply|revert|verify [RECIPE]`."""
    actions = {"status": status, "diff": diff, "apply": apply, "revert": revert, "verify": verify}
    return actions[args.action](args)


def _scope(args: argparse.Namespace) -> Scope:
    """Return what the arguments speak of: a recipe's patches in its engine, or all patches in the engine named.

    Raises:
        UsageError: neither is named, settings are given for none, or the recipe's engine is not installed.
    """
    if args.settings and not args.recipe:
        raise UsageError("--set changes a recipe, and none is named", hint="dflash-tui recipes")
    plan: Plan | None = None
    known, unusable = patch_file.load_all_patches()
    if args.recipe:
        plan = plan_launch(args).plan
        engine = inventory.find_any_engine(Path(plan.engine_folder))
        if engine is None:
            raise UsageError(
                f"the engine of {args.recipe} is not installed", hint=f"dflash-tui engine install {args.recipe}"
            )
        patches = [patch_file.load_patch(one.name) for one in patch_set.patch_status(plan, engine)]
        hardware: Hardware | None = plan.hardware
    elif args.engine:
        engine, hardware = inventory.find_engine_by_name(args.engine), _hardware(args.gpu)
        patches = [patch for patch in known if patch.distribution == engine.distribution]
    else:
        raise UsageError("name a recipe, or an engine with --engine", hint="dflash-tui engine list")
    if args.only:
        patches, plan = (
            [patch_file.load_patch(name) for name in args.only if name not in _by_name_alone(args, engine)],
            None,
        )
    return Scope(engine, patches, hardware, unusable, plan)


def _by_name_alone(args: argparse.Namespace, engine: Engine) -> set[str]:
    """Return what can be taken out although its own file is gone or not valid by now: all that is in by us."""
    return set(patching_status.list_applied_patches(engine)) if args.action == "revert" else set()


def _hardware(wanted: str | None) -> Hardware | None:
    """Return the class that is named; else that of this machine's GPUs when it is one."""
    if wanted in set(Hardware):
        return Hardware(wanted)
    if wanted:
        return gpus.choose_gpus(nvml.probe_visible_gpus().gpus, wanted, 1)[0].hardware
    kinds = {card.hardware for card in nvml.probe_visible_gpus().gpus if not card.trouble}
    return kinds.pop() if len(kinds) == 1 else None


def _chosen(scope: Scope, args: argparse.Namespace) -> list[Patch]:
    """Return what is applied: what is named; else what the plan needs; else all but experiments and alternatives.

    Without a plan an alternative that is in already stands for what it replaces.
    """
    if args.only:
        return scope.patches
    if scope.plan:
        return patch_set.patches_for(scope.plan).bring
    there = patching_status.list_present_patches(scope.engine)
    replaced = {patch.instead_of for patch in scope.patches if patch.name in there}
    usual = (patch for patch in scope.patches if not patch.experimental and not patch.instead_of)
    return [patch for patch in usual if patch.name not in replaced]


def status(args: argparse.Namespace) -> int:
    """Print how each patch stands, and how the source differs where one does not fit."""
    scope = _scope(args)
    left = transaction.find_unfinished_change(scope.engine)
    half = left is not None and left.mends_itself  # what half of a change looks like says nothing
    found = scope.found
    if args.json:
        for patch, one in zip(scope.patches, found, strict=True):
            about = {"title": patch.title, "experimental": patch.experimental, "recipes": patch.recipes}
            about |= {"link": patch.link, "files": patch.paths}
            where = {"engine": scope.engine.folder, "trouble": left.said if left else ""}
            print_data(json.dumps(msgspec.to_builtins(one) | about | where))
        for name, why in scope.unusable.items():
            print_data(json.dumps({"name": name, "state": "unusable", "why": why}))
        return 0
    print_data(f"{scope.engine.distribution} {scope.engine.vllm} in {scope.engine.folder}")
    rows = [(one.name, one.state.value, _why(patch, one)) for patch, one in zip(scope.patches, found, strict=True)]
    if not half:
        print_data(format_table(("PATCH", "STATE", "WHY"), rows) if rows else "no patches")
    for name, why in scope.unusable.items():
        print_status(f"! {name} is unusable: {clean_line(why)}")
    for one in found:
        if one.drift and not half:
            print_data(f"\n{one.name}:\n{_plain(one.drift)}")
    if left:
        print_status(f"! {left.said}")
    return 0


def _why(patch: Patch, found: patching_status.PatchStatus) -> str:
    """Return the reason of a state; for what could be applied what it is."""
    if found.state not in {PatchState.NEEDED, PatchState.APPLIED, PatchState.APPLIED_BY_OTHER}:
        return found.why
    kind = "experimental, only by name: " if patch.experimental else ""
    alternative = f"alternative to {patch.instead_of}: " if patch.instead_of else ""
    users = f"for {', '.join(patch.recipes)}" if patch.recipes else ""
    return "; ".join(filter(None, [f"{kind}{alternative}{patch.title}", users, found.why]))


def diff(args: argparse.Namespace) -> int:
    """Print what the patches change, or have changed, as a unified diff."""
    scope = _scope(args)
    chosen = _chosen(scope, args)
    if scope.plan:  # what is in by us beside it is shown, too
        applied = {one.name for one in scope.found if one.state is PatchState.APPLIED}
        chosen = [patch for patch in scope.patches if patch in chosen or patch.name in applied]
    shown = patcher.preview_patches(chosen, scope.engine, scope.hardware)
    if args.json:
        print_data(json.dumps(shown))
    else:
        print_data(_plain("".join(shown.values())) if shown else "nothing to change")
    return 0


def apply(args: argparse.Namespace) -> int:
    """Apply what the engine needs; or with --dry-run print what that would change."""
    scope = _scope(args)
    chosen = _chosen(scope, args)
    drop = patch_set.patches_for(scope.plan).out if scope.plan else {}
    done = patcher.apply_patches(chosen, scope.engine, scope.hardware, drop=drop, dry=args.dry_run)
    _tell(done, args, "would be applied" if args.dry_run else "applied", "nothing to apply")
    for name in done.dropped if not args.json else ():
        print_status(f"· {name}: {'would be ' if args.dry_run else ''}taken out, {drop[name]}")
    for patch in chosen:
        if patch.name not in done.names and not args.json and not done.pending:
            found = patching_status.find_patch_status(patch, scope.engine, scope.hardware)
            print_status(f"· {patch.name}: {found.state.value}{f', {found.why}' if found.why else ''}")
    return 0


def revert(args: argparse.Namespace) -> int:
    """Take out what we applied: of the recipe, of --only, or everything."""
    scope = _scope(args)
    names = args.only or ([patch.name for patch in scope.patches] if args.recipe else None)
    done = patcher.revert_patches(scope.engine, names, dry=args.dry_run)
    _tell(done, args, "would be taken out" if args.dry_run else "taken out", "nothing of ours to take out")
    return 0


def _tell(done: patcher.PatchOutcome, args: argparse.Namespace, did: str, nothing: str) -> None:
    if args.json:
        print_json(done)
        return
    if args.dry_run and done.diffs:
        print_data(_plain("".join(done.diffs.values())))
    for said in done.notes:
        print_status(f"! {said}")
    if done.pending:
        return
    print_data(f"{did}: {', '.join(done.names)}" if done.names else nothing)


def _plain(diff: str) -> str:
    """Return source text so that it says nothing to the terminal."""
    return "\n".join(
        clean_line(line) or line[:1] for line in diff.splitlines()
    )  # an empty line of a diff begins with a blank


def verify(args: argparse.Namespace) -> int:
    """Print for each file that a patch could touch whether it is what it should be; 5 when one is not."""
    scope = _scope(args)
    only = {path for patch in scope.patches for path in patch.paths} if args.only else None
    checked = patching_status.verify_files(scope.engine, only)
    for one in checked:
        if args.json:
            print_json(one)
        else:
            print_data(f"{'✓' if one.ok else '✗'} {one.path}: {one.found}")
    if not checked:
        print_status("there is none of the files that a patch could touch")
    return 0 if all(one.ok for one in checked) else 5
