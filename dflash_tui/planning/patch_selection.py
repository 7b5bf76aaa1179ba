"""Which patches a plan applies, which defects remain, and what replaces patches. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from packaging.version import Version

from dflash_tui.machine.hardware import SM_12X
from dflash_tui.planning import patch_file
from dflash_tui.planning.methods import Method
from dflash_tui.planning.patch_file import Patch, VllmBuild
from dflash_tui.planning.recipes.recipe import ReleaseDefect, iterate_layers
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.planning.serve_flags import normalize_flag_names


class PatchSelection(NamedTuple):
    """The patches of a plan, and the settings that replace the others."""

    applied: list[Patch]
    """The patches to apply if the engine needs them."""
    skipped: dict[str, str]
    """The recipe's other patches: name -> why it is not applied."""
    env: dict[str, str]
    """Variables that replace patches, for an environment that may not be patched."""
    speculation: dict[str, Any]
    """Keys of --speculative-config: the recipe's, as far as the release knows them, and keys that replace patches."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the applied patches."""
        return tuple(patch.name for patch in self.applied)


def select_patches(resolved: ResolvedRecipe, *, patchable: bool, judged: Mapping[str, str] = {}) -> PatchSelection:
    """Return which of a recipe's patches apply to the recipe's engine.

    `judged` says why the engine's own files do not need a patch, by name; empty text if they need it.
    """
    build = describe_planned_build(resolved)
    for name in resolved.disabled_patches:
        patch_file.load_patch(name)  # raises if there is no such patch
    patches = {name: patch_file.load_patch(name) for name in resolved.patches}
    reasons = {
        name: explain_other_method(patch, resolved.method)
        or (judged[name] if name in judged else patch_file.explain_not_needed(patch, build, resolved.hardware))
        for name, patch in patches.items()
    }
    skipped = {name: why for name, why in reasons.items() if why}
    for name, patch in patches.items():
        if name not in skipped and patch.instead_of in patches:
            skipped[patch.instead_of] = f"{name} is its alternative"
    env: dict[str, str] = {}
    for name, patch in patches.items():
        if name not in skipped and patch.without_patch and not patchable:
            env |= patch.without_patch.env
            way = " and ".join(patch.without_patch.env)
            skipped[name] = f"{way} instead, since this environment may not be patched; {patch.without_patch.why}"
    applied = [patch for name, patch in patches.items() if name not in skipped]
    return PatchSelection(applied, skipped, env, _adapt_speculation(resolved, patches, applied, build))


def explain_other_method(patch: Patch, method: Method) -> str:
    """Return why a server with this method does not need the patch; empty if it may."""
    return f"for {', '.join(patch.methods)}" if patch.methods and method not in patch.methods else ""


def describe_planned_build(resolved: ResolvedRecipe) -> VllmBuild:
    """Return the vLLM build of a recipe's engine; its CUDA is the index's unless the recipe names another."""
    spec = resolved.engine
    return patch_file.assume_index_cuda(
        patch_file.describe_build(spec.distribution, spec.vllm, spec.packages, spec.torch_backend)
    )


def _adapt_speculation(
    resolved: ResolvedRecipe, patches: Mapping[str, Patch], applied: list[Patch], build: VllmBuild
) -> dict[str, Any]:
    """Return the recipe's keys of --speculative-config for this release.

    Keys that an applied patch stands for are dropped, and keys that replace a patch are added. A build that is not a
    release keeps all of the recipe's keys: its version does not say which it knows, and all but the oldest know them.
    """
    dropped = {key for patch in applied if build.release for key in patch.stands_for}
    instead: dict[str, Any] = {}
    for patch in patches.values():
        if not explain_other_method(patch, resolved.method):
            instead |= patch_file.find_keys_instead(patch, build)
    return instead | {key: value for key, value in resolved.speculation.items() if key not in dropped}


_OF_VLLM = re.compile(r"^https://github\.com/vllm-project/vllm/(?:pull|issues)/(\d+)$")


def list_defects(resolved: ResolvedRecipe, patches: PatchSelection) -> list[str]:
    """Return the pair's defects in the plan's release, each with its reference and remedies.

    A development build has none: its version does not say what it contains.
    """
    build = describe_planned_build(resolved)
    if not build.release:
        return []
    return [*_list_known(resolved, patches, build.release), *_list_left_out(resolved, build)]


def _list_known(resolved: ResolvedRecipe, patches: PatchSelection, release: Version) -> Iterator[str]:
    for defect in resolved.defects:
        if not is_in(defect, release) or defect.patch in patches.names:
            continue
        remedies = [f"--vllm {defect.fixed_in} or newer"] if defect.fixed_in else []
        remedies += [f"--set patches.{defect.patch}=true"] if defect.patch else []
        yield _format_defect(resolved, " ".join(defect.what.split()), defect.link, remedies)


def _list_left_out(resolved: ResolvedRecipe, build: VllmBuild) -> Iterator[str]:
    for patch in map(patch_file.load_patch, resolved.disabled_patches):
        named = any(patch.name in layer.patches for _, layer in iterate_layers(resolved.recipe))
        other = explain_other_method(patch, resolved.method)
        if named and not other and not patch_file.explain_not_needed(patch, build, resolved.hardware):
            why = " ".join(patch.why.split()).partition(". ")[0].rstrip(".")
            remedies = [f"--vllm {patch.upstream.since} or newer"] if patch.upstream and patch.upstream.since else []
            yield _format_defect(resolved, f"without {patch.name}: {why}", patch.link, remedies)


def is_in(defect: ReleaseDefect, release: Version) -> bool:
    """Whether a release has the defect."""
    return Version(defect.since or "0") <= release and (not defect.fixed_in or release < Version(defect.fixed_in))


def _format_defect(resolved: ResolvedRecipe, what: str, link: str, remedies: list[str]) -> str:
    finding = f"vLLM {resolved.engine.vllm}: {what}{format_reference(link)}"
    return "; ".join(filter(None, [finding, ", or ".join(remedies)]))


def format_reference(link: str) -> str:
    """Return a link in parentheses, vLLM's threads shortened to their number; empty for no link."""
    numbered = _OF_VLLM.sub(r"vllm#\1", link)
    return f" ({numbered})" if link else ""


PATCH = "triton-split-verify"
# MAX_3D_QUERY_LEN of v1/attention/ops/triton_unified_attention.py; earlier releases split steps of one token only.
_MOST_SPLIT = {"0.33.0": 8}
# Where FlashAttention takes heads of at most 256, so that wider heads run on Triton.
_WIDEST_HEAD = 256


def find_most_split_drafts(resolved: ResolvedRecipe, tokens: int, patches: Collection[str]) -> int:
    """Return the most drafts that this release verifies in a split; 0 if fewer drafts would not help the plan."""
    most = _MOST_SPLIT.get(str(describe_planned_build(resolved).release), 0) - 1  # the token before the drafts counts
    if not 0 < most < tokens or PATCH in patches or not uses_triton(resolved):
        return 0
    return most


def uses_triton(resolved: ResolvedRecipe) -> bool:
    """Whether the target's attention runs on Triton, by flag or because its heads are too wide."""
    backend = normalize_flag_names(resolved.flags).get("attention-backend")
    if backend is not None:
        return str(backend).upper() == "TRITON_ATTN"
    config = resolved.target.config
    widest = max(config.head_dim or 0, config.global_head_dim or 0) if config else 0
    return widest > _WIDEST_HEAD and resolved.hardware in SM_12X
