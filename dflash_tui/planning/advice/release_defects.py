"""What is wrong with a pair in one release of vLLM, as recipes and patches say it, and what mends it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.version import Version

from dflash_tui.planning import patch_applicability, patch_file
from dflash_tui.planning.patch_applicability import VllmBuild
from dflash_tui.planning.patch_file import Patch
from dflash_tui.planning.patch_selection import PatchSelection, describe_planned_build, explain_other_method
from dflash_tui.planning.recipes.recipe import ReleaseDefect, iterate_layers
from dflash_tui.planning.recipes.resolution import ResolvedRecipe

_OF_VLLM = re.compile(r"^https://github\.com/vllm-project/vllm/(?:pull|issues)/(\d+)$")


def list_defects(resolved: ResolvedRecipe, patches: PatchSelection) -> list[str]:
    """Return what is wrong with the pair in the release of a plan, each with its reference and what mends it.

    A development build has none: its number does not tell what is in it.
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
    """Yield the defects that patches of the recipe mend and that were disabled by --set."""
    for patch in map(patch_file.load_patch, resolved.disabled_patches):
        named = any(patch.name in layer.patches for _, layer in iterate_layers(resolved.recipe))
        other = explain_other_method(patch, resolved.method)
        if named and not other and not patch_applicability.explain_not_needed(patch, build, resolved.hardware):
            why = " ".join(patch.why.split()).partition(". ")[0].rstrip(".")
            yield _format_defect(resolved, f"without {patch.name}: {why}", patch.link, _list_remedies(patch))


def _list_remedies(patch: Patch) -> list[str]:
    return [f"--vllm {patch.upstream.since} or newer"] if patch.upstream and patch.upstream.since else []


def is_in(defect: ReleaseDefect, release: Version) -> bool:
    """Whether a release has the defect."""
    return Version(defect.since or "0") <= release and (not defect.fixed_in or release < Version(defect.fixed_in))


def _format_defect(resolved: ResolvedRecipe, what: str, link: str, remedies: list[str]) -> str:
    finding = f"vLLM {resolved.engine.vllm}: {what}{format_reference(link)}"
    return "; ".join(filter(None, [finding, ", or ".join(remedies)]))


def format_reference(link: str) -> str:
    """Return a link in parentheses, one of vLLM's own threads by its number; empty for no link."""
    numbered = _OF_VLLM.sub(r"vllm#\1", link)
    return f" ({numbered})" if link else ""
