"""Which patches a launch applies and which it reverts, and how each stands by that."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import status
from dflash_tui.engines.patching.status import PatchState, PatchStatus
from dflash_tui.planning import patch_file
from dflash_tui.planning.patch_file import Patch
from dflash_tui.planning.plan import Plan

_DISABLED = "disabled by --set"


class PatchSet(NamedTuple):
    """The patches that a plan adds to its engine, and those that it removes where dflash-tui applied them."""

    add: list[Patch]
    """The patches to apply."""
    remove: dict[str, str]
    """The patches to revert: name -> reason."""


def patches_for(plan: Plan) -> PatchSet:
    """Return what a launch of `plan` does to the patches of its engine; the rest of them is left as it is.

    Raises:
        UsageError: a patch of the plan is gone or not valid.
    """
    add = [patch_file.load_patch(name) for name in plan.patches]
    remove = {}
    for patch in patch_file.load_all_patches()[0]:
        rival = next((other.name for other in add if patch_file.are_alternatives(patch, other)), "")
        if patch.name not in plan.patches and (rival or patch.experimental):
            remove[patch.name] = f"{rival} is its alternative" if rival else "experimental, and not asked for"
    return PatchSet(add, remove | dict.fromkeys(plan.disabled_patches, _DISABLED))


def patches_to_remove(plan: Plan, engine: Engine) -> dict[str, str]:
    """Return the patches that a launch of `plan` reverts in `engine`: name -> reason."""
    applied = status.list_applied_patches(engine)
    return {name: why for name, why in patches_for(plan).remove.items() if name in applied}


def list_planned_states(plan: Plan) -> list[PatchStatus]:
    """Return how the patches of `plan` will stand in an engine that is not installed yet."""
    needed = [PatchStatus(name, PatchState.NEEDED) for name in plan.patches]
    skipped = [PatchStatus(name, PatchState.NOT_APPLICABLE, why) for name, why in plan.skipped_patches.items()]
    disabled = [PatchStatus(name, PatchState.NOT_APPLICABLE, _DISABLED) for name in plan.disabled_patches]
    return [*needed, *skipped, *disabled]


def patch_status(plan: Plan, engine: Engine) -> list[PatchStatus]:
    """Return how each patch that `plan` names or reverts stands in `engine`.

    One that the plan does not want is not applicable with the plan's reason, however well it would fit.
    """
    remove = patches_to_remove(plan, engine)
    reasons = {**remove, **dict.fromkeys(plan.disabled_patches, _DISABLED), **plan.skipped_patches}
    applied = status.list_applied_patches(engine)
    states = []
    for name in dict.fromkeys([*plan.patches, *reasons]):
        state = status.find_patch_status(patch_file.load_patch(name), engine, plan.hardware)
        if name not in plan.patches:
            if state.state is PatchState.NEEDED or (state.state is PatchState.DRIFTED and name not in applied):
                state = PatchStatus(name, PatchState.NOT_APPLICABLE, reasons[name])
            elif name in remove:
                state = replace(state, why=f"{reasons[name]}: a launch reverts it")
        states.append(state)
    return states
