"""Changes to vLLM's files in an engine of ours: exact text, all or nothing, with the pristine file kept."""

from __future__ import annotations

import ast
import hashlib
import os
import tempfile
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from dflash_tui.core import paths, yamlfile
from dflash_tui.core.engine import Engine
from dflash_tui.core.recipe import Name, Text
from dflash_tui.errors import PatchError, RecipeError

_MANIFEST = "dflash-patches.json"
_PRISTINE = "dflash-pristine"
RelativePath = Annotated[str, Meta(pattern=r"^(?:[a-z0-9_]+/)*[a-z0-9_]+\.py$")]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a patch file; a key that is not a field is an error."""


class Edit(_Strict, frozen=True):
    """Text that must stand in the file exactly once, and what replaces it."""

    old: Annotated[str, Meta(min_length=1)]
    new: str


class FileEdits(_Strict, frozen=True):
    """The edits of one file; `path` is relative to the `vllm` package."""

    path: RelativePath
    edits: Annotated[tuple[Edit, ...], Meta(min_length=1)]


class Patch(_Strict, frozen=True):
    """One change: why, for which releases (`versions`, PEP 440) of which distribution, and its edits."""

    title: Text
    why: str
    link: Text
    distribution: Name
    versions: Text
    files: Annotated[tuple[FileEdits, ...], Meta(min_length=1)]
    name: str = ""


class State(StrEnum):
    """How a patch stands in an engine."""

    NEEDED = "absent-needed"
    APPLIED = "applied-by-us"
    APPLIED_BY_OTHER = "applied-by-other"
    NOT_APPLICABLE = "not-applicable"
    DRIFTED = "drifted"


class Applied(msgspec.Struct, frozen=True):
    """What was done to one file: the patches in it and the SHA-256 before and after."""

    path: str
    patches: tuple[str, ...]
    pristine_sha256: str
    patched_sha256: str
    at: float


def load(name: str) -> Patch:
    """Return the shipped patch called `name`.

    Raises:
        RecipeError: there is no such patch, or its file is not valid.
    """
    path = paths.bundled("patches") / f"{name}.yaml"
    if not path.is_file():
        raise RecipeError(f"no patch called '{name}' is shipped")
    patch = yamlfile.load(path, Patch)
    try:
        SpecifierSet(patch.versions)
    except InvalidSpecifier as error:
        raise RecipeError(f"{path}: versions: {error}") from None
    return msgspec.structs.replace(patch, name=path.stem)


def state(patch: Patch, engine: Engine) -> State:
    """Return how `patch` stands in `engine`, read from the files themselves."""
    if not _applies_to(patch, engine):
        return State.NOT_APPLICABLE
    counts = []
    for file in patch.files:
        try:
            text = _target(engine, file.path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError, PatchError):
            return State.DRIFTED
        # An edit that only inserts has its old text within the new one.
        counts += [(text.replace(edit.new, "").count(edit.old), text.count(edit.new)) for edit in file.edits]
    if all(count == (1, 0) for count in counts):
        return State.NEEDED
    if all(count == (0, 1) for count in counts):
        ours = {(entry.path, name) for entry in manifest(engine) for name in entry.patches}
        mine = all((file.path, patch.name) in ours for file in patch.files)
        return State.APPLIED if mine else State.APPLIED_BY_OTHER
    return State.DRIFTED


def manifest(engine: Engine) -> tuple[Applied, ...]:
    """Return what was done to the engine's files; empty when nothing was or the record is unreadable."""
    try:
        return msgspec.json.decode((Path(engine.folder) / _MANIFEST).read_bytes(), type=tuple[Applied, ...])
    except (OSError, msgspec.MsgspecError):
        return ()


def apply(patches: list[Patch], engine: Engine) -> list[str]:
    """Bring every patch that `engine` needs into it and return the names of those applied now.

    All new texts are computed and checked before the first file is written; each file is then replaced in one
    step. A file is never written in place, since uv may share it with other environments by a hard link.

    Raises:
        PatchError: a patch does not fit the files; nothing was written.
    """
    needed = []
    for patch in patches:
        match state(patch, engine):
            case State.NEEDED:
                needed.append(patch)
            case State.DRIFTED:
                raise PatchError(
                    f"patch {patch.name} does not fit {engine.distribution} {engine.vllm}",
                    evidence=f"the text it replaces is not in {', '.join(f.path for f in patch.files)} exactly once",
                    do=f"reinstall the engine (remove {engine.folder}) or report it: {patch.link}",
                )
            case _:
                pass
    if not needed:
        return []
    before, after = _texts(needed, engine)
    record = {entry.path: entry for entry in manifest(engine)}
    for path, text in after.items():
        earlier = record.get(path)
        names = tuple(p.name for p in needed if any(f.path == path for f in p.files))
        pristine = earlier.pristine_sha256 if earlier else _sha256(before[path])
        if earlier is None:
            _write(Path(engine.folder) / _PRISTINE / pristine, before[path])
        patched = _sha256(text)
        all_names = tuple(dict.fromkeys((*(earlier.patches if earlier else ()), *names)))
        record[path] = Applied(path, all_names, pristine, patched, time.time())
    # The record goes first: killed after it, the next run finds files that are still pristine and patches them.
    _write(Path(engine.folder) / _MANIFEST, msgspec.json.encode(tuple(record.values())).decode())
    for path, text in after.items():
        target = _target(engine, path)
        _write(target, text, mode=target.stat().st_mode & 0o777)
        for stale in (target.parent / "__pycache__").glob(f"{target.stem}.*.pyc"):
            stale.unlink(missing_ok=True)
    return [patch.name for patch in needed]


def _applies_to(patch: Patch, engine: Engine) -> bool:
    return patch.distribution == engine.distribution and engine.vllm in SpecifierSet(patch.versions)


def _texts(patches: list[Patch], engine: Engine) -> tuple[dict[str, str], dict[str, str]]:
    """Return each touched file's text before and after; every new text is valid Python."""
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    for patch in patches:
        for file in patch.files:
            if file.path not in before:
                before[file.path] = after[file.path] = _target(engine, file.path).read_text(encoding="utf-8")
            for edit in file.edits:
                if after[file.path].count(edit.old) != 1:
                    raise PatchError(f"patch {patch.name}: its text is not in {file.path} exactly once")
                after[file.path] = after[file.path].replace(edit.old, edit.new)
    for path, text in after.items():
        try:
            ast.parse(text)
        except SyntaxError as error:
            raise PatchError(f"{path} would no longer be valid Python", evidence=str(error)) from None
    return before, after


def _target(engine: Engine, path: str) -> Path:
    """Return the file inside the engine's `vllm` package that `path` names.

    Raises:
        PatchError: the path leads out of the package.
    """
    package = (engine.site_packages / "vllm").resolve()
    target = (package / path).resolve()
    if not target.is_relative_to(package) or not package.is_relative_to(Path(engine.folder).resolve()):
        raise PatchError(f"{path} leads out of the engine's vllm package", evidence=str(target))
    return target


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace `path` by a new file with `text` in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
