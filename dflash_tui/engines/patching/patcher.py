"""Apply patches to an engine together, and revert them byte for byte."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from dflash_tui.common.errors import PatchError, UsageError
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import dependencies, import_check, ledger, permissions, status, text_edits, transaction
from dflash_tui.engines.patching.ledger import LedgerEntry
from dflash_tui.engines.patching.status import PatchState, PatchStatus
from dflash_tui.engines.patching.transaction import FileChange
from dflash_tui.engines.patching.unpatched_files import UnpatchedFiles
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import patch_file
from dflash_tui.planning.patch_file import Patch


class PatchOutcome(msgspec.Struct, frozen=True):
    """What `apply_patches` or `revert_patches` did, or with `dry` would do."""

    names: tuple[str, ...]
    """The patches that were applied or reverted."""
    notes: tuple[str, ...] = ()
    """Warnings for the user."""
    diffs: dict[str, str] = {}
    """Path of a changed file -> unified diff."""
    reverted: tuple[str, ...] = msgspec.field(default=(), name="dropped")
    """The patches that `apply_patches` reverted in the same step."""
    pending: bool = False
    """Whether a dry run found an interrupted change: what is done after its end is not known yet."""


def apply_patches(
    patches: Sequence[Patch],
    engine: Engine,
    hardware: Hardware | None = None,
    *,
    remove: Iterable[str] = (),
    dry: bool = False,
) -> PatchOutcome:
    """Apply every patch that `engine` needs, and revert some in the same step.

    All new texts are computed, compiled and imported by the engine's own Python before the first file is written.

    Args:
        patches: The patches to apply; those that the engine does not need are skipped.
        engine: The engine whose files are changed.
        hardware: The class of hardware that states are judged for; None is any.
        remove: Names of patches to revert where we applied them.
        dry: Neither import nor write: no code of a patch is run.

    Raises:
        PatchError: a patch does not fit or may not be applied; nothing was changed.
    """
    with _locked(engine, dry=dry) as notes:
        if dry and _is_interrupted(engine):
            return PatchOutcome((), tuple(notes), pending=True)
        states = {patch.name: status.find_patch_status(patch, engine, hardware) for patch in patches}
        for patch in patches:
            if states[patch.name].state is PatchState.DRIFTED:
                raise _drift_error(patch, engine, states[patch.name])
        needed = [patch for patch in patches if states[patch.name].state is PatchState.NEEDED]
        names = tuple(patch.name for patch in needed)
        ours = dependencies.list_our_patches(engine)
        removed = ours & set(remove)
        dependencies.check_dependencies(needed, engine, hardware, removed)
        dependencies.refuse_orphaned_patches((ours - removed) | set(names), removed)
        outcome = _change_files(engine, add=needed, remove=removed, dry=dry)
        return replace(outcome, names=names, reverted=tuple(sorted(removed)), notes=(*notes, *outcome.notes))


def preview_patches(patches: Sequence[Patch], engine: Engine, hardware: Hardware | None = None) -> dict[str, str]:
    """Return by path the unified diff of those of `patches` that are needed or applied by us.

    Raises:
        PatchError: one does not fit.
    """
    chosen = []
    for patch in patches:
        state = status.find_patch_status(patch, engine, hardware)
        if state.state is PatchState.DRIFTED:
            raise _drift_error(patch, engine, state)
        if state.state in {PatchState.NEEDED, PatchState.APPLIED}:
            chosen.append(patch)
    base = UnpatchedFiles(engine, {path for patch in chosen for path in patch.paths})
    after = text_edits.patch_texts(chosen, base.texts)
    return {path: text_edits.diff_file(path, base.texts[path] or "", new) for path, new in sorted(after.items())}


def revert_patches(engine: Engine, names: Iterable[str] | None = None, *, dry: bool = False) -> PatchOutcome:
    """Revert the patches `names` (None: all) that we applied to `engine`, byte for byte.

    Raises:
        PatchError: a file was modified since, or a patch that stays requires one of them; nothing was changed.
    """
    with _locked(engine, dry=dry) as notes:
        if dry and _is_interrupted(engine):
            return PatchOutcome((), tuple(notes), pending=True)
        ours = dependencies.list_our_patches(engine)
        removed = ours if names is None else ours & set(names)
        dependencies.refuse_orphaned_patches(ours - removed, removed)
        warnings = dependencies.warn_orphaned_patches(engine, removed)
        outcome = _change_files(engine, add=(), remove=removed, dry=dry)
        return replace(outcome, names=tuple(sorted(removed)), notes=(*notes, *warnings, *outcome.notes))


def _is_interrupted(engine: Engine) -> bool:
    """Whether a change was interrupted and is not finished: half of it says nothing about states."""
    unfinished = transaction.find_unfinished_change(engine)
    return unfinished is not None and unfinished.repairs_itself


@contextmanager
def _locked(engine: Engine, *, dry: bool) -> Iterator[list[str]]:
    """Hold the engine's lock and finish an interrupted change; yield the notes about that.

    An error that follows has them as evidence, too.
    """
    with ledger.lock_ledger(engine), ledger.explain_failed_write(engine):
        unfinished = transaction.find_unfinished_change(engine)
        if unfinished and not dry:
            permissions.find_carrying_distribution(engine)
        note = transaction.recover_change(engine) if not dry else unfinished.message if unfinished else ""
        notes = [note] if note else []
        try:
            yield notes
        except PatchError as error:
            error.evidence = "\n  ".join(filter(None, [*notes, error.evidence]))
            raise


def _drift_error(patch: Patch, engine: Engine, state: PatchStatus) -> PatchError:
    reinstall = f"dflash-tui engine remove {engine.folder}, and install it again"
    if tree := engine.source_tree:
        return PatchError(
            f"patch {patch.name} does not fit the source tree of {engine.distribution} {engine.vllm}",
            evidence=state.drift.rstrip() or state.why,
            hint=f"update {tree}, or launch without it: --set patches.{patch.name}=false",
        )
    return PatchError(
        f"patch {patch.name} does not fit {engine.distribution} {engine.vllm}",
        evidence=state.drift.rstrip() or state.why,
        hint=f"{f'reinstall vLLM in {engine.folder}' if engine.adopted else reinstall}, or report it: {patch.link}",
    )


class _FilePlan(NamedTuple):
    """The files to write: those that are touched, the changes of those that differ, and the whole record after."""

    touched: set[str]
    changes: list[FileChange]
    record: dict[str, LedgerEntry]


def _change_files(engine: Engine, *, add: Sequence[Patch], remove: Iterable[str], dry: bool) -> PatchOutcome:
    """Apply the patches `add` and revert those of `remove`; with `dry` do neither."""
    record = ledger.read_ledger(engine)
    after = _plan_files(engine, record, {patch.name: patch for patch in add}, set(remove))
    if not after.changes and after.record == record:
        return PatchOutcome(())
    permissions.require_writable_files(engine, after.touched)
    diffs = {c.path: text_edits.diff_file(c.path, c.before.decode(), c.after.decode()) for c in after.changes}
    if dry:
        return PatchOutcome((), (), diffs)  # an import runs the code of the patch
    note = import_check.check_imports(engine, {change.path: change.after for change in after.changes}) if add else ""
    outcome = PatchOutcome((), (note,) if note else (), diffs)
    # The import check takes a while, and a server may have been started meanwhile.
    permissions.require_writable_files(engine, after.touched)
    transaction.commit_changes(engine, after.changes, list(after.record.values()))
    if wrong := [change.path for change in after.changes if ledger.read_vllm_file(engine, change.path) != change.after]:
        raise PatchError(
            f"another process modified {', '.join(wrong)} at the same time", hint="see dflash-tui patch verify"
        )
    return outcome


def _plan_files(engine: Engine, record: dict[str, LedgerEntry], add: dict[str, Patch], remove: set[str]) -> _FilePlan:
    """Rebuild every file that is touched from its pristine text and the patches that are to be applied to it.

    Args:
        engine: The engine whose files are changed.
        record: The engine's record, by path.
        add: The patches to apply, by name.
        remove: The names of the patches to revert.
    """
    add, touched = _find_touched(record, UnpatchedFiles(engine, record).ours, add, remove)
    # A patch that stays may share a file with one that is applied or reverted, and have a second file.
    base = UnpatchedFiles(engine, touched | set(record))
    _refuse_lost(engine, base.lost & touched)
    staying: dict[str, tuple[str, ...]] = {}
    for path in touched:
        entry = record.get(path)
        if entry and path not in base.ours:
            _refuse_modified(engine, path, entry, base.now[path])
        applied = base.ours[path].patches if path in base.ours else ()
        staying[path] = tuple(name for name in applied if name not in remove and name not in add)
    texts = _build_texts(base, add, staying)
    after = _FilePlan(touched, [], {path: entry for path, entry in record.items() if path not in touched})
    for path in sorted(touched):
        before, pristine = base.now[path] or b"", base.bytes[path] or b""
        names = (*staying[path], *(name for name, patch in add.items() if path in patch.paths))
        data = texts[path].encode() if names else pristine
        if names:
            digests = {name: (add.get(name) or _load_kept(name)).digest for name in names}
            shas = (ledger.hash_bytes(pristine), ledger.hash_bytes(data))
            after.record[path] = LedgerEntry(path, names, *shas, time.time(), digests, engine.vllm)
        if data != before:
            after.changes.append(FileChange(path, before, data))
    return after


def _find_touched(
    record: dict[str, LedgerEntry], ours: dict[str, LedgerEntry], add: dict[str, Patch], remove: set[str]
) -> tuple[dict[str, Patch], set[str]]:
    """Return the patches that are applied whole, and the files that are rebuilt.

    The former include a patch that stays in one of the files and of which another edition is applied: half of each
    would be neither.

    Args:
        record: The engine's record, by path.
        ours: Those entries of the record whose files are still as we left them.
        add: The patches to apply, by name.
        remove: The names of the patches to revert.
    """
    while True:
        touched = {path for patch in add.values() for path in patch.paths}
        # An edition of a patch that is replaced may have changed other files, too.
        touched |= {path for path, entry in record.items() if (remove | add.keys()) & set(entry.patches)}
        entries = [entry for path, entry in ours.items() if path in touched]
        editions = {(name, entry.digests.get(name)) for entry in entries for name in entry.patches}
        other_editions = {
            name: _load_kept(name) for name, _ in sorted(editions, key=str) if name not in {*remove, *add}
        }
        outdated = {
            name: other_editions[name]
            for name, digest in editions
            if name in other_editions and digest not in {None, other_editions[name].digest}
        }
        if not outdated:
            return add, touched
        add = add | outdated


def _load_kept(name: str) -> Patch:
    """Return a patch that is applied already and stays.

    Raises:
        PatchError: its file is gone or not valid by now, so that nothing can be rebuilt with it.
    """
    try:
        return patch_file.load_patch(name)
    except UsageError as error:
        raise PatchError(
            f"{name} is applied to the same file of vLLM, and its patch file can no longer be loaded",
            evidence=str(error),
            hint=f"revert it first: dflash-tui patch revert --only {name}",
        ) from None


def _build_texts(base: UnpatchedFiles, add: dict[str, Patch], staying: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """Return the text of each touched file with its patches; only edits of the files that are touched are made."""
    names = dict.fromkeys([*(name for applied in staying.values() for name in applied), *add])
    chosen = []
    for name in names:
        patch = add.get(name) or _load_kept(name)
        chosen.append(replace(patch, files=tuple(file for file in patch.files if file.path in staying)))
    return text_edits.patch_texts(chosen, base.texts)


def _refuse_lost(engine: Engine, lost: set[str]) -> None:
    """Without its pristine copy a file of ours can neither be rebuilt nor restored."""
    if lost:
        raise PatchError(
            f"the pristine copy of {', '.join(sorted(lost))} is missing or damaged, so no file was changed",
            hint=f"reinstall vLLM {engine.vllm} in {engine.folder}",
        )


def _refuse_modified(engine: Engine, path: str, entry: LedgerEntry, data: bytes | None) -> None:
    """Refuse a file that others modified since; one that is as published again is only dropped from the record."""
    digests = {entry.pristine_sha256, permissions.read_wheel_digests(engine).get(path)}
    if data is not None and ledger.hash_bytes(data) in digests:
        return
    raise PatchError(
        f"{path} was modified since {', '.join(entry.patches)} was applied, so it was left as it is",
        hint=f"undo that modification, or reinstall vLLM {engine.vllm} in {engine.folder}",
    )
