"""Patch files: what a change of vLLM's source is, for which releases and machines, and how upstream has it."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from dflash_tui.core import paths, yamlfile
from dflash_tui.core.hardware import Hardware
from dflash_tui.core.recipe import EnvName, Link, Name, Prose, Text
from dflash_tui.errors import UsageError

RelativePath = Annotated[str, Meta(pattern=r"^(?:[A-Za-z0-9_]+/)*[A-Za-z0-9_]+\.py$(?!\n)")]
Identifier = Annotated[str, Meta(pattern=r"^(?:[A-Za-z_][A-Za-z0-9_]*)?$(?!\n)")]
# The wheels of vLLM on the index are built for CUDA 13 from this release on (its `_C.abi3.so` needs libcudart.so.13).
_FIRST_WITH_CUDA_13 = Version("0.20.0")
_LOCAL_CUDA = re.compile(r"\+(?:.*\.)?cu(\d\d)\d")
_RUNTIME = re.compile(r"^nvidia[-_]cuda[-_]runtime(?:[-_]cu\d+)?==(\d+)\.")


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


class Upstream(_Strict, frozen=True):
    """How to see in the source that it does by itself what the patch is for.

    `has` is text of the file `path`, or with `in_class` the name of a base, a method or a field of that class.
    `since` is the first release that has it; empty while none does.
    """

    path: RelativePath
    has: Annotated[str, Meta(min_length=1)]
    in_class: Identifier = ""
    since: Annotated[str, Meta(pattern=r"^(?:\d+\.\d+\.\d+)?$(?!\n)")] = ""


class WithoutPatch(_Strict, frozen=True):
    """A way to the same end that changes no file: variables for the server, and what it costs."""

    env: dict[EnvName, Text]
    why: Prose


class Patch(_Strict, frozen=True):
    """One change: why, for which releases (`versions`, PEP 440) of which distribution, and its edits.

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
    def paths(self) -> tuple[str, ...]:
        """The files it changes, relative to the `vllm` package."""
        return tuple(file.path for file in self.files)


class Build(msgspec.Struct, frozen=True):
    """What a patch has to know of a vLLM: distribution, version, and the major version of its CUDA, if any is known."""

    distribution: str
    vllm: str
    cuda: int | None = None


def build_of(distribution: str, vllm: str, packages: Iterable[str] = ()) -> Build:
    """Return the build that `packages` (requirements or `name==version` lines) come to."""
    if distribution != "vllm":
        return Build(distribution, vllm)
    for line in packages:
        if match := _LOCAL_CUDA.search(line) or _RUNTIME.match(line):
            return Build(distribution, vllm, int(match[1]))
    return Build(distribution, vllm, 13 if Version(vllm) >= _FIRST_WITH_CUDA_13 else 12)


def unneeded(patch: Patch, build: Build, hardware: Hardware | None = None) -> str:
    """Return why `build` on `hardware` (None: any) does not need `patch`, by what its file says; empty when it does."""
    if patch.distribution != build.distribution:
        return f"for {patch.distribution}, and this is {build.distribution}"
    if not covers(patch, build):
        since = patch.upstream.since if patch.upstream else ""
        if since and Version(build.vllm) >= Version(since):
            return f"upstream since {since}"
        return f"for vLLM {patch.versions}"
    if patch.cuda and build.cuda != patch.cuda:
        return f"for builds with CUDA {patch.cuda}, and this one has {f'CUDA {build.cuda}' if build.cuda else 'none'}"
    if patch.hardware and hardware and hardware not in patch.hardware:
        return f"for {', '.join(patch.hardware)}"
    return ""


def covers(patch: Patch, build: Build) -> bool:
    """Whether the release is one that the patch is for, pre-releases included."""
    return SpecifierSet(patch.versions).contains(build.vllm, prereleases=True)


def names() -> list[str]:
    """Return the names of all patches, the user's own included."""
    return sorted(_files())


def load(name: str) -> Patch:
    """Return the patch called `name`; a user's own wins over a shipped one.

    Raises:
        UsageError: there is no such patch; the message names the nearest one.
        RecipeError: its file is not valid.
    """
    known = _files()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(sorted(known))}"
        raise UsageError(f"no patch called '{name}'", do=hint)
    path = known[name]
    return _read(path, path.stat().st_mtime_ns)


def _files() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder in (paths.bundled("patches"), paths.user_patches()):
        found |= {path.stem: path for path in folder.glob("[!_.]*.yaml")}
    return found


@lru_cache(maxsize=64)
def _read(path: Path, _changed: int) -> Patch:
    """Return the patch in the file; the panel asks at every draw."""
    patch = yamlfile.load(path, Patch)
    try:
        SpecifierSet(patch.versions)
    except InvalidSpecifier as error:
        raise yamlfile.wrong(path, ["versions"], str(error)) from None
    if len(set(patch.paths)) < len(patch.files):
        raise yamlfile.wrong(path, ["files"], "a file is named twice")
    for index, file in enumerate(patch.files):
        for number, edit in enumerate(file.edits):
            if edit.old == edit.new:
                raise yamlfile.wrong(path, ["files", index, "edits", number], "old and new are the same")
    return msgspec.structs.replace(patch, name=path.stem)
