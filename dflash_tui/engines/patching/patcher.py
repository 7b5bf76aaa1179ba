"""Patches brought into an engine together, and taken out of it again byte for byte."""

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
    """What `apply` or `revert` did: the patches that it brought in or took out, and what else is to be said.

    `dropped` are those that `apply` took out in the same step. With `pending` a dry run found an interrupted change,
    and what would be done after its end is not known yet.
    """

    names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    diffs: dict[str, str] = {}
    dropped: tuple[str, ...] = ()
    pending: bool = False


def apply_patches(
    patches: Sequence[Patch],
    engine: Engine,
    hardware: Hardware | None = None,
    *,
    drop: Iterable[str] = (),
    dry: bool = False,
) -> PatchOutcome:
    """Bring every patch that `engine` needs into it; those that it does not need are left out.

    In the same step those of `drop` that we applied are taken out. All new texts are computed, compiled and imported
    by the engine's own Python before the first file is written. With `dry` nothing is written, and all else is done.

    Raises:
        PatchError: a patch does not fit or may not be applied; nothing was changed.
    """
    with _opened(engine, dry=dry) as notes:
        if dry and _half(engine):
            return PatchOutcome((), tuple(notes), pending=True)
        found = {patch.name: status.find_patch_status(patch, engine, hardware) for patch in patches}
        for patch in patches:
            if found[patch.name].state is PatchState.DRIFTED:
                raise _drifted(patch, engine, found[patch.name])
        needed = [patch for patch in patches if found[patch.name].state is PatchState.NEEDED]
        brought = tuple(patch.name for patch in needed)
        ours = dependencies.list_our_patches(engine)
        doomed = ours & set(drop)
        dependencies.check_dependencies(needed, engine, hardware, doomed)
        dependencies.refuse_orphaned_patches((ours - doomed) | set(brought), doomed)
        done = _bring_to(engine, add=needed, drop=doomed, dry=dry)
        return replace(done, names=brought, dropped=tuple(sorted(doomed)), notes=(*notes, *done.notes))


def preview_patches(patches: Sequence[Patch], engine: Engine, hardware: Hardware | None = None) -> dict[str, str]:
    """Return by path the unified diff that those of `patches` make which are needed or applied by us.

    Raises:
        PatchError: one does not fit.
    """
    shown = []
    for patch in patches:
        found = status.find_patch_status(patch, engine, hardware)
        if found.state is PatchState.DRIFTED:
            raise _drifted(patch, engine, found)
        if found.state in {PatchState.NEEDED, PatchState.APPLIED}:
            shown.append(patch)
    base = UnpatchedFiles(engine, {path for patch in shown for path in patch.paths})
    after = text_edits.patch_texts(shown, base.texts)
    return {path: text_edits.diff_file(path, base.texts[path] or "", new) for path, new in sorted(after.items())}


def revert_patches(engine: Engine, names: Iterable[str] | None = None, *, dry: bool = False) -> PatchOutcome:
    """Take the patches `names` (None: all) that we applied out of `engine` again, byte for byte.

    Raises:
        PatchError: somebody else has changed a file since, or one of a unit would stay alone; nothing was changed.
    """
    with _opened(engine, dry=dry) as notes:
        if dry and _half(engine):
            return PatchOutcome((), tuple(notes), pending=True)
        ours = dependencies.list_our_patches(engine)
        doomed = ours if names is None else ours & set(names)
        dependencies.refuse_orphaned_patches(ours - doomed, doomed)
        alone = dependencies.warn_orphaned_patches(engine, doomed)
        done = _bring_to(engine, add=(), drop=doomed, dry=dry)
        return replace(done, names=tuple(sorted(doomed)), notes=(*notes, *alone, *done.notes))


def _half(engine: Engine) -> bool:
    """Whether an interrupted change waits for its end: what half of it looks like says nothing."""
    left = transaction.find_unfinished_change(engine)
    return left is not None and left.mends_itself


@contextmanager
def _opened(engine: Engine, *, dry: bool) -> Iterator[list[str]]:
    """Hold the engine's lock and end an interrupted change; yield what is to be said of that.

    An error that follows says it, too.
    """
    with ledger.lock_ledger(engine), ledger.explain_failed_write(engine):
        left = transaction.find_unfinished_change(engine)
        if left and not dry:
            permissions.find_carrying_distribution(engine)
        ended = transaction.recover_change(engine) if not dry else left.said if left else ""
        notes = [ended] if ended else []
        try:
            yield notes
        except PatchError as error:
            error.evidence = "\n  ".join(filter(None, [*notes, error.evidence]))
            raise


def _drifted(patch: Patch, engine: Engine, found: PatchStatus) -> PatchError:
    again = f"dflash-tui engine remove {engine.folder}, and install it again"
    return PatchError(
        f"patch {patch.name} does not fit {engine.distribution} {engine.vllm}",
        evidence=found.drift.rstrip() or found.why,
        hint=f"{f'reinstall vLLM in {engine.folder}' if engine.adopted else again}, or report it: {patch.link}",
    )


class _Next(NamedTuple):
    """What is to be written: the files that are touched, the changes of those that differ, the whole record after."""

    touched: set[str]
    changes: list[FileChange]
    record: dict[str, LedgerEntry]


def _bring_to(engine: Engine, *, add: Sequence[Patch], drop: Iterable[str], dry: bool) -> PatchOutcome:
    """Bring the patches `add` in and take those of `drop` out; with `dry` do all but write."""
    record = ledger.read_ledger(engine)
    after = _next(engine, record, {patch.name: patch for patch in add}, set(drop))
    if not after.changes and after.record == record:
        return PatchOutcome(())
    permissions.require_writable_files(engine, after.touched)
    note = import_check.check_imports(engine, {change.path: change.after for change in after.changes}) if add else ""
    diffs = {c.path: text_edits.diff_file(c.path, c.before.decode(), c.after.decode()) for c in after.changes}
    done = PatchOutcome((), (note,) if note else (), diffs)
    if dry:
        return done
    permissions.require_writable_files(
        engine, after.touched
    )  # the trial takes a while, and a server may have been started meanwhile
    transaction.commit_changes(engine, after.changes, list(after.record.values()))
    if wrong := [change.path for change in after.changes if ledger.read_vllm_file(engine, change.path) != change.after]:
        raise PatchError(f"{', '.join(wrong)} was changed by somebody else at the same time", hint="patch verify")
    return done


def _next(engine: Engine, record: dict[str, LedgerEntry], wanted: dict[str, Patch], dropped: set[str]) -> _Next:
    """Rebuild every file that is touched from its pristine text and the patches that are to be in it then."""
    wanted, touched = _touched(record, UnpatchedFiles(engine, record).ours, wanted, dropped)
    # A patch that stays may share a file with one that comes or goes, and be in a second file.
    base = UnpatchedFiles(engine, touched | set(record))
    _refuse_lost(engine, base.lost & touched)
    stays: dict[str, tuple[str, ...]] = {}
    for path in touched:
        entry = record.get(path)
        if entry and path not in base.ours:
            _refuse_foreign(engine, path, entry, base.now[path])
        kept = base.ours[path].patches if path in base.ours else ()
        stays[path] = tuple(name for name in kept if name not in dropped and name not in wanted)
    texts = _new_texts(base, wanted, stays)
    after = _Next(touched, [], {path: entry for path, entry in record.items() if path not in touched})
    for path in sorted(touched):
        before, pristine = base.now[path] or b"", base.bytes[path] or b""
        mine = (*stays[path], *(name for name, patch in wanted.items() if path in patch.paths))
        data = texts[path].encode() if mine else pristine
        if mine:
            digests = {name: (wanted.get(name) or _kept(name)).digest for name in mine}
            shas = (ledger.hash_bytes(pristine), ledger.hash_bytes(data))
            after.record[path] = LedgerEntry(path, mine, *shas, time.time(), digests, engine.vllm)
        if data != before:
            after.changes.append(FileChange(path, before, data))
    return after


def _touched(
    record: dict[str, LedgerEntry], ours: dict[str, LedgerEntry], wanted: dict[str, Patch], dropped: set[str]
) -> tuple[dict[str, Patch], set[str]]:
    """Return the files that are rebuilt, and what is brought into them whole.

    That includes a patch that stays in one of them and of which another edition is in: half of each would be neither.
    """
    while True:
        touched = {path for patch in wanted.values() for path in patch.paths}
        # An edition of a patch that is replaced may have been in other files, too.
        touched |= {path for path, entry in record.items() if (dropped | wanted.keys()) & set(entry.patches)}
        entries = [entry for path, entry in ours.items() if path in touched]
        stay = {(name, entry.digests.get(name)) for entry in entries for name in entry.patches}
        kept = {name: _kept(name) for name, _ in sorted(stay, key=str) if name not in dropped and name not in wanted}
        other = {name: kept[name] for name, digest in stay if name in kept and digest not in {None, kept[name].digest}}
        if not other:
            return wanted, touched
        wanted = wanted | other


def _kept(name: str) -> Patch:
    """Return a patch that is in already and stays.

    Raises:
        PatchError: its file is gone or not valid by now, so that nothing can be rebuilt with it.
    """
    try:
        return patch_file.load_patch(name)
    except UsageError as error:
        raise PatchError(
            f"{name} is in the same file of vLLM, and what it changes there is not known any more",
            evidence=str(error),
            hint=f"take it out first: dflash-tui patch revert --only {name}",
        ) from None


def _new_texts(base: UnpatchedFiles, wanted: dict[str, Patch], stays: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """Return the text of each touched file with its patches; only edits of the files that are touched are made."""
    names = dict.fromkeys([*(name for kept in stays.values() for name in kept), *wanted])
    chosen = []
    for name in names:
        patch = wanted.get(name) or _kept(name)
        here = tuple(file for file in patch.files if file.path in stays)
        chosen.append(replace(patch, files=here))
    return text_edits.patch_texts(chosen, base.texts)


def _refuse_lost(engine: Engine, lost: set[str]) -> None:
    """Without its pristine copy a file of ours can neither be rebuilt nor restored."""
    if lost:
        raise PatchError(
            f"the pristine copy of {', '.join(sorted(lost))} is gone or damaged, so nothing is changed",
            hint=f"reinstall vLLM {engine.vllm} in {engine.folder}",
        )


def _refuse_foreign(engine: Engine, path: str, entry: LedgerEntry, data: bytes | None) -> None:
    """A file that is as published again needs only to be forgotten; one that others changed is theirs."""
    known = {entry.pristine_sha256, permissions.read_wheel_digests(engine).get(path)}
    if data is not None and ledger.hash_bytes(data) in known:
        return
    raise PatchError(
        f"{path} was changed by somebody else since {', '.join(entry.patches)} went in, and is left as it is",
        hint=f"take that change back, or reinstall vLLM {engine.vllm} in {engine.folder}",
    )
