"""The record of applied patches, the pristine copies of changed files, and the lock on an engine's files.

In the engine's folder `dflash-patches.json` is the record, and `dflash-pristine/` holds each changed file as it was
before us, by its SHA-256.
"""

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from dflash_tui.common import paths, private_files, untrusted_json
from dflash_tui.common.errors import PatchError
from dflash_tui.common.file_lock import acquire_lock
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.engines import engine_python
from dflash_tui.engines.environments import Engine
from dflash_tui.planning.patch_file import RelativePath

MANIFEST = "dflash-patches.json"
PRISTINE = "dflash-pristine"
LARGEST_FILE = 64 << 20
TIMEOUT = 300.0  # importing vLLM for a check may take minutes


class LedgerEntry(msgspec.Struct, frozen=True):
    """What was done to one file: the patches applied to it, their digests, and the SHA-256 before and after."""

    path: RelativePath
    patches: tuple[str, ...]
    pristine_sha256: str
    patched_sha256: str
    at: float
    digests: dict[str, str] = {}
    vllm: str = ""


register_type(LedgerEntry)


class LedgerBusy(PatchError):
    """Another process is changing the engine's files."""


@contextmanager
def lock_ledger(engine: Engine, timeout: float = TIMEOUT) -> Iterator[None]:
    """Hold the lock on the engine's files; waits for another process that holds it.

    Raises:
        PatchError: the engine is no virtual environment.
        LedgerBusy: another process holds the lock for `timeout` seconds.
        Cancelled: the caller was cancelled meanwhile.
    """
    # The lock is on a file that every environment has, so that none of ours stays behind in a user's.
    with _opened(Path(engine.folder) / "pyvenv.cfg") as descriptor:
        if not acquire_lock(descriptor, timeout, engine_python.raise_if_cancelled):
            raise LedgerBusy(f"another dflash-tui is changing {engine.folder}", hint="try again when it is done")
        yield


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise PatchError(
            f"{path.parent} is not a virtual environment, so its files are left as they are",
            evidence=f"{path.name}: {error.strerror}",
            hint="python3 -m venv creates one; without --engine dflash-tui creates its own",
        ) from None
    with file:
        yield file.fileno()


def read_applied_entries(engine: Engine) -> dict[str, LedgerEntry]:
    """Return what was done to the engine's files, by path; empty when nothing was or the record is unreadable."""
    return {entry.path: entry for entry in read_ledger_or_none(engine) or ()}


def read_ledger(engine: Engine) -> dict[str, LedgerEntry]:
    """Return what was done to the engine's files, by path.

    Raises:
        PatchError: the record is damaged.
    """
    entries = read_ledger_or_none(engine)
    if entries is None:
        raise PatchError(
            f"the record of the patches in {engine.folder} cannot be read, so no file was changed",
            evidence=MANIFEST,
            hint=f"reinstall vLLM {engine.vllm} there, and remove that file",
        )
    return {entry.path: entry for entry in entries}


def read_ledger_or_none(engine: Engine) -> tuple[LedgerEntry, ...] | None:
    """Return the record; None when it is there and cannot be read."""
    manifest = Path(engine.folder) / MANIFEST
    if not os.path.lexists(manifest):
        return ()
    return untrusted_json.read_own_json(manifest, tuple[LedgerEntry, ...])


def read_pristine_copy(engine: Engine, entry: LedgerEntry) -> bytes | None:
    """Return the file as it was before us, or None when that copy is gone or damaged."""
    try:
        data = private_files.read_file(Path(engine.folder) / PRISTINE / entry.pristine_sha256, LARGEST_FILE)
    except OSError:
        return None
    return data if hash_bytes(data) == entry.pristine_sha256 else None


def resolve_vllm_file(engine: Engine, path: str) -> Path:
    """Return the file inside the engine's `vllm` package that `path` names.

    Raises:
        PatchError: it is a link, or leads out of the package.
    """
    package = paths.resolve_links(engine.vllm_package)
    there = package / path
    # One that is in a circle of links resolves to itself.
    inside = there.is_relative_to(package) and paths.resolve_links(there) == there and not there.is_symlink()
    holder = engine.source_tree or paths.resolve_links(Path(engine.folder))
    if not inside or not package.is_relative_to(holder):
        raise PatchError(f"{path} leads out of the engine's vllm package", evidence=str(paths.resolve_links(there)))
    return there


def read_vllm_file(engine: Engine, path: str) -> bytes | None:
    """Return the bytes of a file of the `vllm` package; None when it is not there or leads out of it."""
    try:
        return private_files.read_file(resolve_vllm_file(engine, path), LARGEST_FILE)
    except (OSError, PatchError):
        return None


def explain_unreadable_file(engine: Engine, path: str) -> str:
    """Return why `read_vllm_file` finds no bytes: the file is gone, leads out of the package, or may not be read."""
    try:
        private_files.read_file(resolve_vllm_file(engine, path), LARGEST_FILE)
    except PatchError as error:
        return error.what
    except FileNotFoundError:
        return f"{path} does not exist"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return f"{path} was missing a moment ago"


def hash_bytes(data: bytes) -> str:
    """Return the SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


@contextmanager
def explain_failed_write(engine: Engine) -> Iterator[None]:
    """Turn an OSError of the block into a PatchError."""
    try:
        yield
    except OSError as error:
        what = f"the files of {engine.folder} cannot be changed"
        hint = "free some space" if error.errno == errno.ENOSPC else "see that the environment is yours and writable"
        evidence = f"{error.filename or ''}: {error.strerror}".lstrip(": ")
        raise PatchError(what, evidence=evidence, hint=hint) from None
