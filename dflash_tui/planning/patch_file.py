"""Patch files: what a change of vLLM's source is, for which releases and machines, and how upstream has it."""

from __future__ import annotations

import difflib
import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from dflash_tui.common import paths, yaml_loader
from dflash_tui.common.errors import RecipeError, UsageError
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.recipe import EnvName, Link, Name, Prose, Text

RelativePath = Annotated[str, Meta(pattern=r"^(?:[A-Za-z0-9_]+/)*[A-Za-z0-9_]+\.py$(?!\n)")]
DottedName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*$(?!\n)")]
Identifier = Annotated[str, Meta(pattern=r"^(?:[A-Za-z_][A-Za-z0-9_]*)?$(?!\n)")]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a patch file; a key that is not a field is an error."""


class Edit(_Strict, frozen=True):
    """Text that must stand in the file exactly once, and what replaces it."""

    old: Annotated[str, Meta(min_length=1)]
    new: str


class FileEdits(_Strict, frozen=True):
    """The edits of one file; `path` is relative to the `vllm` package."""

    path: RelativePath
    edits: Annotated[tuple[Edit, ...], Meta(min_length=1)]


class Fingerprint(_Strict, frozen=True):
    """What shows in the source of the file `path` that something is done: code that uses the name `has`.

    With `in_class` it is a base, a field or a method of that class, which does not merely answer no. With `returns`
    it is a function (with `in_class` a method) that returns this at once.
    """

    path: RelativePath
    has: DottedName
    in_class: Identifier = ""
    returns: bool | None = None


class Upstream(Fingerprint, frozen=True):
    """How to see that the source does by itself what the patch is for.

    `since` is the first release that has it; empty while none does.
    """

    since: Annotated[str, Meta(pattern=r"^(?:\d+\.\d+\.\d+)?$(?!\n)")] = ""


class WithoutPatch(_Strict, frozen=True):
    """A way to the same end that changes no file: variables for the server, and what it costs."""

    env: dict[EnvName, Text]
    why: Prose


class Patch(_Strict, frozen=True):
    """One change: why, for which releases (`versions`, PEP 440) of which distribution, and its edits.

    Somebody else has made the change in another form when all of `by_others` are seen.
    `hardware` and `cuda` (the major version of the build) narrow it down; empty and None are any. It makes sense only
    beside one of `together_with`; `instead_of` names the patch that it is an alternative to. An `experimental` one is
    applied only when it is asked for by name. `stands_for` names keys of speculative-config that these releases do not
    know and whose work the patch does.
    """

    title: Text
    why: Prose
    link: Link
    distribution: Name
    versions: Text
    files: Annotated[tuple[FileEdits, ...], Meta(min_length=1)]
    recipes: tuple[Name, ...] = ()
    hardware: tuple[Hardware, ...] = ()
    cuda: Annotated[int, Meta(ge=1, le=99)] | None = None
    upstream: Upstream | None = None
    by_others: tuple[Fingerprint, ...] = ()
    together_with: tuple[Name, ...] = ()
    instead_of: Name | None = None
    without_patch: WithoutPatch | None = None
    experimental: bool = False
    stands_for: tuple[Name, ...] = ()
    name: str = ""

    @property
    def digest(self) -> str:
        """What tells this edition of the edits from another."""
        return hashlib.sha256(msgspec.json.encode(self.files)).hexdigest()[:16]

    @property
    def fingerprints(self) -> tuple[Fingerprint, ...]:
        """What in the source shows that it is not needed, or done in another way."""
        return (*((self.upstream,) if self.upstream else ()), *self.by_others)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files it changes, relative to the `vllm` package."""
        return tuple(file.path for file in self.files)


register_type(Patch)


def are_alternatives(one: Patch, other: Patch) -> bool:
    """Whether either is an alternative to the other, so that only one of both may be in."""
    return one.name == other.instead_of or other.name == one.instead_of


def list_patch_names() -> list[str]:
    """Return the names of all patches, the user's own included."""
    return sorted(_files())


def load_all_patches() -> tuple[list[Patch], dict[str, str]]:
    """Return all patches, and by name why the file of each other one is not valid: those few stop nothing else."""
    usable, broken = [], {}
    for name in list_patch_names():
        try:
            usable.append(load_patch(name))
        except UsageError as error:
            # YAML can spell lone surrogates, and names of files may hold them: neither can be written to a terminal.
            broken[ascii(name)[1:-1]] = str(error).encode(errors="backslashreplace").decode()
    return usable, broken


def load_patch(name: str) -> Patch:
    """Return the patch called `name`; a user's own wins over a shipped one.

    Raises:
        UsageError: there is no such patch; the message names the nearest one.
        RecipeError: its file is not valid.
    """
    known = _files()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(sorted(known))}"
        raise UsageError(f"no patch called '{name}'", hint=hint)
    path = known[name]
    try:
        msgspec.convert(name, Name)
    except msgspec.ValidationError:
        said = "cannot be a patch's name: small letters, digits, . _ and -, at most 64"
        raise RecipeError(f"{ascii(path.name)[1:-1]}: {said}") from None
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise RecipeError(f"{path}: {error.strerror}") from None
    return _read(path, changed)


def _files() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder in (paths.bundled_folder("patches"), paths.user_patches_folder()):
        found |= {path.stem: path for path in folder.glob("[!_.]*.yaml")}
    return found


@lru_cache(maxsize=64)
def _read(path: Path, _changed: int) -> Patch:
    """Return the patch in the file; the panel asks at every draw."""
    patch = yaml_loader.load_yaml(path, Patch)
    if patch.name not in {"", path.stem}:
        raise yaml_loader.build_file_error(path, ["name"], f"expected '{path.stem}', as the file is called")
    try:
        SpecifierSet(patch.versions)
    except InvalidSpecifier as error:
        raise yaml_loader.build_file_error(path, ["versions"], str(error)) from None
    if len(set(patch.paths)) < len(patch.files):
        raise yaml_loader.build_file_error(path, ["files"], "a file is named twice")
    for index, file in enumerate(patch.files):
        for number, edit in enumerate(file.edits):
            if edit.old == edit.new:
                raise yaml_loader.build_file_error(path, ["files", index, "edits", number], "old and new are the same")
    return msgspec.structs.replace(patch, name=path.stem)
