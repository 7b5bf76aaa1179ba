"""What a plan wants of an engine's patches: what is brought in, what comes out again, how each stands by that."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import status
from dflash_tui.engines.patching.status import PatchState, PatchStatus
from dflash_tui.planning import patch_file
from dflash_tui.planning.patch_file import Patch
from dflash_tui.planning.plan import Plan


class PatchSet(NamedTuple):
    """The patches that a plan brings in, and by name why each other one is taken out where it is in by us."""

    bring: list[Patch]
    out: dict[str, str]


def patches_for(plan: Plan) -> PatchSet:
    """Return what a launch of `plan` does to the patches of its engine; the rest of them is left as it is.

    Raises:
        UsageError: a patch of the plan is gone or not valid.
    """
    bring = [patch_file.load_patch(name) for name in plan.patches]
    out = {}
    for patch in patch_file.load_all_patches()[0]:
        rival = next((other.name for other in bring if patch_file.are_alternatives(patch, other)), "")
        if patch.name not in plan.patches and (rival or patch.experimental):
            out[patch.name] = f"{rival} is its alternative" if rival else "an experiment, and not asked for"
    return PatchSet(bring, out | dict.fromkeys(plan.unpatched, "left out by hand"))


def patches_to_remove(plan: Plan, engine: Engine) -> dict[str, str]:
    """Return the patches that a launch of `plan` takes out of `engine`, and why."""
    there = status.list_applied_patches(engine)
    return {name: why for name, why in patches_for(plan).out.items() if name in there}


def patch_status(plan: Plan, engine: Engine) -> list[PatchStatus]:
    """Return how each patch that `plan` speaks of, or takes out, stands in `engine`.

    One that it does not want is not applicable with the plan's reason, however well it would fit.
    """
    out = patches_to_remove(plan, engine)
    reasons = {**out, **dict.fromkeys(plan.unpatched, "left out by hand"), **plan.unneeded}
    ours = status.list_applied_patches(engine)
    made = []
    for name in dict.fromkeys([*plan.patches, *reasons]):
        one = status.find_patch_status(patch_file.load_patch(name), engine, plan.hardware)
        if name not in plan.patches:
            if one.state is PatchState.NEEDED or (one.state is PatchState.DRIFTED and name not in ours):
                one = PatchStatus(name, PatchState.NOT_APPLICABLE, reasons[name])
            elif name in out:
                one = replace(one, why=f"{reasons[name]}: a launch takes it out")
        made.append(one)
    return made
