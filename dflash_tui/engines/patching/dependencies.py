"""Check dependencies between patches (`together_with`) and conflicts (`instead_of`) before files are changed."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_tui.common.errors import PatchError, UsageError
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import ledger, status
from dflash_tui.engines.patching.status import IN_EFFECT, PatchState
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import patch_file
from dflash_tui.planning.patch_file import Patch


def list_our_patches(engine: Engine) -> set[str]:
    """Return the names of all patches in the engine's record.

    Raises:
        PatchError: the record is damaged.
    """
    return {name for entry in ledger.read_ledger(engine).values() for name in entry.patches}


def _requirements(name: str) -> set[str]:
    """Return the patches of which `name` requires one; a file that is gone or not valid by now requires none."""
    try:
        return set(patch_file.load_patch(name).together_with)
    except UsageError:
        return set()


def check_dependencies(needed: Sequence[Patch], engine: Engine, hardware: Hardware | None, removed: set[str]) -> None:
    """Return when `needed` may be applied while `removed` is reverted.

    Args:
        needed: The patches to apply.
        engine: The engine that they are applied to.
        hardware: The class of hardware that states are judged for; None is any.
        removed: The names of patches that are reverted in the same step.

    Raises:
        PatchError: one requires a patch that is not applied, or is an alternative to one that is.
    """
    names = {patch.name for patch in needed}
    for patch in needed:
        if patch.instead_of in names:
            raise PatchError(
                f"patch {patch.name} is an alternative to {patch.instead_of}", hint="choose one of the two"
            )
        _refuse_conflicts(patch, engine, hardware, removed)
        required = patch.together_with
        if not required or names & set(required):
            continue
        if not any(
            status.find_patch_status(patch_file.load_patch(name), engine, hardware).state in IN_EFFECT
            for name in required
        ):
            raise PatchError(
                f"patch {patch.name} requires {' or '.join(required)}",
                evidence=" ".join(patch.why.split()),
                hint=f"apply both: --only {patch.name} --only {required[0]}",
            )


def _refuse_conflicts(patch: Patch, engine: Engine, hardware: Hardware | None, removed: set[str]) -> None:
    """An alternative that is applied already has to be reverted first."""
    for other in patch_file.load_all_patches()[0]:
        if other.name in removed or not patch_file.are_alternatives(patch, other):
            continue
        state = status.find_patch_status(other, engine, hardware).state
        if state in {PatchState.APPLIED, PatchState.APPLIED_BY_OTHER}:
            unit = [other.name, *sorted(list_our_patches(engine) & _requirements(other.name))]
            revert = f"revert it first: dflash-tui patch revert --only {' --only '.join(unit)}"
            by_whom = ", not by dflash-tui" if state is PatchState.APPLIED_BY_OTHER else ""
            raise PatchError(
                f"patch {patch.name} is an alternative to {other.name}, which is already applied{by_whom}",
                hint=revert if state is PatchState.APPLIED else f"do without it: --set patches.{patch.name}=false",
            )


def refuse_orphaned_patches(staying: set[str], removed: set[str]) -> None:
    """Return when none of `staying` requires what is reverted.

    Raises:
        PatchError: one does.
    """
    for name in sorted(staying):
        required = _requirements(name)
        if required & removed and not required & staying:
            raise PatchError(
                f"{name} requires {' or '.join(sorted(required & removed))}",
                hint=f"revert both: --only {' --only '.join(sorted({name, *removed}))}",
            )


def warn_orphaned_patches(engine: Engine, removed: set[str]) -> list[str]:
    """Return a warning for each patch not applied by us that loses what it requires: we do not revert those."""
    warnings = []
    present = set(status.list_present_patches(engine)) if removed else set()
    for name in sorted(present - list_our_patches(engine)):
        required = _requirements(name)
        if required & removed and not required & (present - removed):
            lost = " or ".join(sorted(required & removed))
            warnings.append(f"{name} stays, since dflash-tui did not apply it, but requires {lost}")
    return warnings
