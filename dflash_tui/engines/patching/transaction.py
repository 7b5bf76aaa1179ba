"""Replace several files of an engine in one transaction: all or none, whatever kills the process meanwhile.

`dflash-patching.json` in the engine's folder, the journal, exists only while files are being replaced.
"""

import contextlib
import os
import re
import stat
from collections.abc import Sequence, Set
from pathlib import Path
from typing import NamedTuple

import msgspec

from dflash_tui.common import private_files
from dflash_tui.common.errors import PatchError
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import ledger, permissions
from dflash_tui.engines.patching.atomic_write import (
    new_file_path,
    old_file_path,
    remove_byte_code,
    replace_file,
    sync_folder,
    write_synced_file,
)
from dflash_tui.engines.patching.ledger import (
    MANIFEST,
    PRISTINE,
    LedgerEntry,
    hash_bytes,
    read_ledger_or_none,
    read_vllm_file,
    resolve_vllm_file,
)
from dflash_tui.planning.patch_file import RelativePath

_JOURNAL = "dflash-patching.json"
_LARGEST_JOURNAL = 16 << 20
_COPY = re.compile(r"[0-9a-f]{64}|\.[0-9a-f]{64}\.dflash-new")  # the latter by a write that was killed


class FileChange(NamedTuple):
    """A file to be replaced: its path relative to the `vllm` package, and its bytes before and after."""

    path: str
    before: bytes
    after: bytes


class _Replaced(msgspec.Struct, frozen=True):
    path: RelativePath
    before: str
    after: str


class _Journal(msgspec.Struct, frozen=True):
    """The journal of a change: the files by their SHA-256 before and after, and the record that will be true then."""

    files: tuple[_Replaced, ...]
    manifest: tuple[LedgerEntry, ...]

    @property
    def named(self) -> str:
        return ", ".join(file.path for file in self.files)


register_type(_Journal)


class UnfinishedChange(NamedTuple):
    """An interrupted change or a damaged record, and whether the next apply, revert or launch repairs it by itself."""

    message: str
    repairs_itself: bool


def find_unfinished_change(engine: Engine) -> UnfinishedChange | None:
    """Return what is left of a change that was killed, or that the record is damaged; None when all is well."""
    try:
        if journal := _journal(engine):
            note = "the next apply, revert or launch finishes or undoes it"
            return UnfinishedChange(f"an interrupted change of {journal.named}: {note}", repairs_itself=True)
        ledger.read_ledger(engine)
    except PatchError as error:
        return UnfinishedChange(f"{error.what} ({error.evidence}): {error.hint}", repairs_itself=False)
    return None


def recover_change(engine: Engine, *, finish: bool = True) -> str:
    """Finish or undo a change that was killed, and return a sentence that says which; empty when there was none.

    Needs the lock.

    It is finished when every file is new already (and with `finish`), else undone. No data is written for the
    files, so that a full disk does not stop it.

    Raises:
        PatchError: the journal is damaged, or a file cannot be restored; nothing is lost then.
    """
    journal = _journal(engine)
    if journal is None:
        _tidy(engine)
        return ""
    _refuse_edited(engine, journal)
    now = {file.path: hash_bytes(read_vllm_file(engine, file.path) or b"") for file in journal.files}
    finished = finish and all(now[file.path] == file.after for file in journal.files)
    for file in journal.files:
        if not finished and now[file.path] != file.before:
            _restore(engine, file, now[file.path])
        remove_byte_code(resolve_vllm_file(engine, file.path))
    if finished:
        _write_manifest(engine, journal.manifest)
    _end(engine, journal)
    return f"an interrupted change of {journal.named} was {'finished' if finished else 'undone'}"


def commit_changes(engine: Engine, changes: Sequence[FileChange], record: Sequence[LedgerEntry]) -> None:
    """Replace the files and record `record`: all of it, or nothing. Needs the lock.

    Each file is written anew beside the old one and takes its place in one step: uv shares files between
    environments by hard links, so nothing is ever written in place. A process that is killed leaves a journal, by
    which `recover` finishes or undoes; an error undoes at once.

    Raises:
        PatchError: a file changed meanwhile, or cannot be written; the old state is there, or the error says that the
            journal is left.
    """
    files = tuple(_Replaced(change.path, hash_bytes(change.before), hash_bytes(change.after)) for change in changes)
    journal = _Journal(files, tuple(record))
    if (Path(engine.folder) / PRISTINE).is_symlink():
        raise PatchError(f"{Path(engine.folder) / PRISTINE} is a link, so no file was changed", hint="remove that link")
    try:
        with ledger.explain_failed_write(engine):
            _make(engine, changes, journal)
    except BaseException as error:
        try:  # it is done once it is recorded
            recover_change(engine, finish=read_ledger_or_none(engine) == journal.manifest)
        except (PatchError, OSError):  # the journal stays, and the next run tries again
            left = find_unfinished_change(engine)
            if left and isinstance(error, PatchError):
                error.evidence = "\n  ".join(filter(None, [error.evidence, left.message]))
        raise
    with contextlib.suppress(OSError):  # what is done is done; the next run cleans up
        _end(engine, journal)


def _make(engine: Engine, changes: Sequence[FileChange], journal: _Journal) -> None:
    folder, wanted = Path(engine.folder), {entry.pristine_sha256 for entry in journal.manifest}
    for change in changes:
        if hash_bytes(change.before) in wanted:
            replace_file(folder / PRISTINE / hash_bytes(change.before), change.before)
    replace_file(folder / _JOURNAL, msgspec.json.encode(journal))
    for change in changes:
        path = resolve_vllm_file(engine, change.path)
        write_synced_file(old_file_path(path), change.before, like=path)
        write_synced_file(new_file_path(path), change.after, like=path)
    for change in changes:
        _exchange(engine, change)
    _write_manifest(engine, journal.manifest)


def _exchange(engine: Engine, change: FileChange) -> None:
    path = resolve_vllm_file(engine, change.path)
    if private_files.read_file(path, ledger.LARGEST_FILE) != change.before:
        raise PatchError(f"another process modified {change.path} in the meantime", hint="see dflash-tui patch status")
    new_file_path(path).replace(path)
    sync_folder(path.parent)
    remove_byte_code(path)


def _refuse_edited(engine: Engine, journal: _Journal) -> None:
    """Stop where somebody has edited a file that may have been new already: half of the change would stay in it.

    As long as the new text waits beside it, a file was not reached, nor was any where neither a copy is nor another
    file is new; and one that is as published was reinstalled.
    """
    now = {file.path: hash_bytes(read_vllm_file(engine, file.path) or b"") for file in journal.files}
    begun = any(now[file.path] == file.after for file in journal.files)
    for file in journal.files:
        path = resolve_vllm_file(engine, file.path)
        if not path.exists() or now[file.path] in {file.before, file.after} or new_file_path(path).exists():
            continue
        copied = _copied(engine, file)
        if (copied or begun) and now[file.path] != permissions.read_wheel_digests(engine).get(file.path):
            raise PatchError(
                f"{file.path} was edited after a change of {journal.named} was interrupted, which is not undone",
                evidence=f"its copy from before both: {old_file_path(path)}" if copied else "",
                hint=f"undo the edit, {'put that copy in its place, ' * copied}or reinstall vLLM {engine.vllm}",
            )


def _copied(engine: Engine, file: _Replaced) -> bool:
    """Whether the file as it was before the change lies beside it."""
    copy = old_file_path(resolve_vllm_file(engine, file.path))
    try:
        return hash_bytes(private_files.read_file(copy, ledger.LARGEST_FILE)) == file.before
    except OSError:
        return False


def _restore(engine: Engine, file: _Replaced, now: str) -> None:
    """Put the old file back, unless somebody else has written another one since, or another release has none."""
    path = resolve_vllm_file(engine, file.path)
    if now != file.after if path.exists() else file.path not in permissions.list_wheel_files(engine):
        return
    if not _copied(engine, file):
        raise PatchError(
            f"{file.path} is half of an interrupted change, and its old copy is missing",
            hint=f"reinstall vLLM {engine.vllm} in {engine.folder}",
        )
    old_file_path(path).replace(path)
    sync_folder(path.parent)


def _end(engine: Engine, journal: _Journal) -> None:
    for file in journal.files:
        path = resolve_vllm_file(engine, file.path)
        new_file_path(path).unlink(missing_ok=True)
        old_file_path(path).unlink(missing_ok=True)
    (Path(engine.folder) / _JOURNAL).unlink(missing_ok=True)
    _tidy(engine, {file.before for file in journal.files})


def _tidy(engine: Engine, new_copies: Set[str] = frozenset()) -> None:
    """Remove the copies that no record speaks of, and what a killed write left.

    Where there is no record, a copy that is as published of a file that differs now is kept (unless it is one of
    `new_copies`, by us just now): it may be the record that was lost, and the file still have a patch.
    """
    folder = Path(engine.folder)
    ledger_entries = read_ledger_or_none(engine)
    if ledger_entries is not None and (folder / PRISTINE).is_dir() and not (folder / PRISTINE).is_symlink():
        names = {path.name for path in (folder / PRISTINE).iterdir() if _COPY.fullmatch(path.name)}
        needed_names = (
            {entry.pristine_sha256 for entry in ledger_entries}
            if ledger_entries
            else _still_needed(engine, names) - new_copies
        )
        for path in (folder / PRISTINE / name for name in names - needed_names):
            if stat.S_ISREG(path.lstat().st_mode):
                path.unlink()
    with contextlib.suppress(OSError):
        (folder / PRISTINE).rmdir()
    for name in (MANIFEST, _JOURNAL):
        if os.path.lexists(new_file_path(folder / name)):  # a read-only disk refuses even what has nothing to remove
            new_file_path(folder / name).unlink()


def _still_needed(engine: Engine, names: Set[str]) -> set[str]:
    """Return those SHA-256 that the wheel's RECORD has of files that are other ones now."""
    published = permissions.read_wheel_digests(engine).items() if names else ()
    return {sha for path, sha in published if sha in names and hash_bytes(read_vllm_file(engine, path) or b"") != sha}


def _journal(engine: Engine) -> _Journal | None:
    try:
        return msgspec.json.decode(
            private_files.read_file(Path(engine.folder) / _JOURNAL, _LARGEST_JOURNAL), type=_Journal
        )
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PatchError(
            f"a change of {engine.folder} was interrupted, and its journal cannot be read",
            evidence=f"{_JOURNAL}: {error}",
            hint=f"reinstall vLLM {engine.vllm} there, and remove that file",
        ) from None


def _write_manifest(engine: Engine, record: Sequence[LedgerEntry]) -> None:
    path = Path(engine.folder) / MANIFEST
    if record:
        replace_file(path, msgspec.json.format(msgspec.json.encode(record), indent=2))
    else:
        path.unlink(missing_ok=True)
