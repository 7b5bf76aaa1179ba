"""Which patches belong together, and how those of a plan stand in its engine."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dflash_tui.common.errors import PatchError
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import status
from dflash_tui.engines.patching.status import IN_EFFECT, PatchState, PatchStatus
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import patch_file
from dflash_tui.planning.patch_file import Patch
from dflash_tui.planning.plan import Plan

_DISABLED = "disabled by --set"


def load_planned_patches(plan: Plan) -> list[Patch]:
    """Return the patches of a plan.

    Raises:
        UsageError: one is gone or not valid.
    """
    return [patch_file.load_patch(name) for name in plan.patches]


def explain_unwanted(plan: Plan, present: Collection[str]) -> dict[str, str]:
    """Return why a launch of `plan` should run without patches that are `present` in its engine: name -> reason."""
    wanted = load_planned_patches(plan)
    reasons = {}
    for patch in patch_file.load_all_patches()[0]:
        rival = next((other.name for other in wanted if patch_file.are_alternatives(patch, other)), "")
        if patch.name in present and patch.name not in plan.patches and (rival or patch.experimental):
            reasons[patch.name] = f"{rival} is its alternative" if rival else "experimental, and not asked for"
    return reasons | {name: _DISABLED for name in plan.disabled_patches if name in present}


def patch_status(plan: Plan, engine: Engine | None) -> list[PatchStatus]:
    """Return how each patch that `plan` names stands in its engine, or will stand in one that is not installed yet.

    One that the plan does not want is not applicable with the plan's reason, however well it would fit.
    """

    def find_state(patch: Patch) -> PatchStatus:
        planned = PatchStatus(patch.name, PatchState.NEEDED)
        return status.find_patch_status(patch, engine, plan.hardware) if engine else planned

    reasons = plan.skipped_patches | dict.fromkeys(plan.disabled_patches, _DISABLED)
    reasons |= explain_unwanted(plan, status.list_present_patches(engine)) if engine else {}
    states = [find_state(patch) for patch in load_planned_patches(plan)]
    for name, why in reasons.items():
        state = find_state(patch_file.load_patch(name)).state
        unneeded = state in {PatchState.NEEDED, PatchState.DRIFTED}
        states.append(PatchStatus(name, PatchState.NOT_APPLICABLE if unneeded else state, why))
    return states


def check_dependencies(needed: Sequence[Patch], engine: Engine, hardware: Hardware | None) -> None:
    """Return when an engine can be made from `engine` with these patches.

    Raises:
        PatchError: one requires a patch that is not there, or is an alternative to one that is.
    """
    names = {patch.name for patch in needed}
    for patch in needed:
        for other in patch_file.load_all_patches()[0]:
            if not patch_file.are_alternatives(patch, other):
                continue
            if other.name in names:
                raise PatchError(f"patch {patch.name} is an alternative to {other.name}", hint="choose one of the two")
            state = status.find_patch_status(other, engine, hardware).state
            if state in {PatchState.APPLIED, PatchState.APPLIED_BY_OTHER}:
                raise PatchError(
                    f"patch {patch.name} is an alternative to {other.name}, which is in {engine.folder} already",
                    hint=f"choose another engine, or do without it: --set patches.{patch.name}=false",
                )
        partners = [patch_file.load_patch(name) for name in patch.together_with if not names & {*patch.together_with}]
        if partners and not any(
            status.find_patch_status(partner, engine, hardware).state in IN_EFFECT for partner in partners
        ):
            raise PatchError(
                f"patch {patch.name} requires {' or '.join(patch.together_with)}",
                evidence=" ".join(patch.why.split()),
                hint=f"apply both: --only {patch.name} --only {partners[0].name}",
            )
