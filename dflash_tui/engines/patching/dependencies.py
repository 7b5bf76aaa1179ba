"""Patches that belong together, and those of which only one may be in."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_tui.common.errors import PatchError, UsageError
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import ledger, status
from dflash_tui.engines.patching.status import THERE, PatchState
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import patch_file
from dflash_tui.planning.patch_file import Patch


def list_our_patches(engine: Engine) -> set[str]:
    """Return the names of all patches in the engine's record.

    Raises:
        PatchError: the record is damaged.
    """
    return {name for entry in ledger.read_ledger(engine).values() for name in entry.patches}


def _partners(name: str) -> set[str]:
    """Return the patches of which one has to be beside `name`; a file that is gone or broken by now names none."""
    try:
        return set(patch_file.load_patch(name).together_with)
    except UsageError:
        return set()


def check_dependencies(needed: Sequence[Patch], engine: Engine, hardware: Hardware | None, doomed: set[str]) -> None:
    """Return when `needed` may come in while `doomed` goes out.

    Raises:
        PatchError: one makes sense only beside another patch that is not there, or is an alternative to one that is.
    """
    names = {patch.name for patch in needed}
    for patch in needed:
        if patch.instead_of in names:
            raise PatchError(f"patch {patch.name} is an alternative to {patch.instead_of}", hint="choose one of both")
        _refuse_rivals(patch, engine, hardware, doomed)
        partners = patch.together_with
        if not partners or names & set(partners):
            continue
        if not any(
            status.find_patch_status(patch_file.load_patch(name), engine, hardware).state in THERE for name in partners
        ):
            raise PatchError(
                f"patch {patch.name} makes no sense without {' or '.join(partners)}",
                evidence=" ".join(patch.why.split()),
                hint=f"apply both: --only {patch.name} --only {partners[0]}",
            )


def _refuse_rivals(patch: Patch, engine: Engine, hardware: Hardware | None, doomed: set[str]) -> None:
    """What is in already counts as well: an alternative has to go first."""
    for other in patch_file.load_all_patches()[0]:
        if other.name in doomed or not patch_file.are_alternatives(patch, other):
            continue
        state = status.find_patch_status(other, engine, hardware).state
        if state in {PatchState.APPLIED, PatchState.APPLIED_BY_OTHER}:
            unit = [other.name, *sorted(list_our_patches(engine) & _partners(other.name))]
            first = f"take it out first: dflash-tui patch revert --only {' --only '.join(unit)}"
            by = "in by other hands" if state is PatchState.APPLIED_BY_OTHER else "in"
            raise PatchError(
                f"patch {patch.name} is an alternative to {other.name}, which is {by}",
                hint=first if state is PatchState.APPLIED else f"leave it at that: --set patches.{patch.name}=false",
            )


def refuse_orphaned_patches(stay: set[str], doomed: set[str]) -> None:
    """Return when none of `stay` needs what goes out.

    Raises:
        PatchError: one of a unit would stay alone.
    """
    for name in sorted(stay):
        partners = _partners(name)
        if partners & doomed and not partners & stay:
            raise PatchError(
                f"{name} makes no sense without {' or '.join(sorted(partners & doomed))}",
                hint=f"take both out: --only {' --only '.join(sorted({name, *doomed}))}",
            )


def warn_orphaned_patches(engine: Engine, doomed: set[str]) -> list[str]:
    """Return what is to be said of patches by other hands that lose their partners: those are not ours to take out."""
    said = []
    there = set(status.list_present_patches(engine)) if doomed else set()
    for name in sorted(there - list_our_patches(engine)):
        partners = _partners(name)
        if partners & doomed and not partners & (there - doomed):
            said.append(f"{name} is in by other hands and stays, without {' or '.join(sorted(partners & doomed))}")
    return said
