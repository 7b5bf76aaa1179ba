"""Whether a patch is for a build of vLLM, by version, CUDA and hardware alone. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.patch_file import Patch

# The wheels of vLLM on the index are built for CUDA 13 from this release on (its `_C.abi3.so` needs libcudart.so.13).
_FIRST_WITH_CUDA_13 = Version("0.20.0")
_PACKAGE = re.compile(r"^\s*([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*(?:==|@)\s*(.*)$")
_RUNTIME = re.compile(r"^nvidia[-_]cuda[-_]runtime(?:[-_]cu\d+)?==(\d+)\.")
_TORCH = re.compile(r"^cuda\b[^=\n]*=\s*(?:'(\d+)\.(\d+)|None)", re.MULTILINE)


class VllmBuild(msgspec.Struct, frozen=True):
    """A build of vLLM: distribution, version, major version of CUDA (0: none, None: not known), from where it runs."""

    distribution: str
    vllm: str
    cuda: int | None = None
    editable: bool = False
    """Whether it runs from a source tree, which may be another than its version says."""

    @property
    def number(self) -> Version | None:
        """Its version without the local part; None for one that is none by PEP 440."""
        try:
            return Version(self.vllm.partition("+")[0])
        except ValueError:
            return None

    @property
    def release(self) -> Version | None:
        """The release that it is; None of a development build, pre-release or source tree, whose number says little."""
        number = self.number
        return None if self.editable or number is None or number.is_prerelease else number


def describe_build(distribution: str, vllm: str, packages: Iterable[str] = (), backend: str = "") -> VllmBuild:
    """Return the build of an environment; its CUDA is that of vLLM's version, else of torch, else of the one runtime.

    Args:
        distribution: The distribution that carries vLLM.
        vllm: Its version.
        packages: The packages of the environment, as requirements or `name==version`.
        backend: What torch is built for, e.g. cu129 or cpu.
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
    """Return the major version in a name such as cu129, 0 for one without CUDA, None when it says nothing."""
    if match := re.search(r"(?:^|\.)cu(\d\d)\d", backend):
        return int(match[1])
    return 0 if re.search(r"(?:^|\.)(?:cpu|rocm|xpu)", backend) else None


def parse_torch_backend(version_py: str) -> str:
    """Return the backend by torch's version.py: wheels of the index do not have it in their version."""
    match = _TORCH.search(version_py)
    return "" if match is None else f"cu{match[1]}{match[2]}" if match[1] else "cpu"


def assume_index_cuda(build: VllmBuild) -> VllmBuild:
    """Return a build that is not installed yet, with the CUDA of the index's wheels where nothing else is known."""
    if build.cuda is None and (version := build.release):
        return msgspec.structs.replace(build, cuda=13 if version >= _FIRST_WITH_CUDA_13 else 12)
    return build


def explain_not_needed(patch: Patch, build: VllmBuild, hardware: Hardware | None = None) -> str:
    """Return why `build` on `hardware` (None: any) does not need `patch`, by the patch file; empty when it does.

    Of a build that is no release only the source tells: its version is no reason.
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
    """Return why a release that the patch is not for does not need it."""
    if patch.upstream and has_reached_upstream(patch, build):
        return f"upstream since {patch.upstream.since}"
    if keys := find_keys_instead(patch, build):
        return f"{', '.join(keys)} of --speculative-config does it"
    return explain_out_of_range(patch)


def find_keys_instead(patch: Patch, build: VllmBuild) -> dict[str, bool | int | str]:
    """Return the keys of --speculative-config that do what the patch does in this release; empty where none do."""
    keys = patch.by_key
    return keys.speculation if keys and build.release and build.release in SpecifierSet(keys.versions) else {}


def explain_out_of_range(patch: Patch) -> str:
    """Return the reason why a release outside of the patch's range does not need it."""
    return f"for vLLM {patch.versions}"


def covers_build(patch: Patch, build: VllmBuild) -> bool:
    """Whether the patch is for that version, pre-releases included; one newer than it was verified on may need it."""
    bounds = [bound for bound in SpecifierSet(patch.versions) if bound.operator != "<="]
    number = build.number
    return number is not None and all(bound.contains(number, prereleases=True) for bound in bounds)


def has_reached_upstream(patch: Patch, build: VllmBuild) -> bool:
    """Whether the build is the first release in which upstream has it, or a later one."""
    since = patch.upstream.since if patch.upstream else ""
    return bool(since and build.release and build.release >= Version(since))


def explain_caveat(patch: Patch, build: VllmBuild) -> str:
    """Return why a verdict rests on the source alone; empty for the releases that the patch was verified on."""
    if build.editable:
        return "an editable install: judged by its source"
    if build.release is None:
        return f"{build.vllm} is not a release: judged by its source"
    last = [Version(bound.version) for bound in SpecifierSet(patch.versions) if bound.operator == "<="]
    if last and build.release > min(last):
        return f"newer than {min(last)}, the last release it was verified on"
    return ""
