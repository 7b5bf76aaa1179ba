"""The fast set-up: split verification, and a runner that captures the drafter. Pure.

docs/faster.md has its gain, and the comparison of its answers with the published command's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from packaging.version import Version

from dflash_tui.common.errors import UsageError
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import cuda_graphs, patch_file, patch_selection
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.planning.serve_flags import normalize_flag_names, read_whole_number

_PATCHES = ("triton-split-verify-0.24", "triton-split-verify-0.32", "triton-split-verify")
_SECOND_EDITION = "triton-split-verify-2"
# GPUs on which the second edition was measured and its answers were compared, too.
_SECOND_COMPARED = frozenset({Hardware.H200})
# The patches split steps of up to 16 tokens: the drafts and the token before them.
_MOST_DRAFTS = 15
# At 16 streams of 2k tokens an H200 showed no gain (docs/faster.md).
_MOST_STREAMS = 15
# GPU and release for which its answers were compared with the published command's, without a fault.
_COMPARED = {(Hardware.H100, "0.26.0"), (Hardware.H200, "0.26.0")}
_COMPILES = frozenset({Hardware.H100, Hardware.H200})


class FastSetUp(NamedTuple):
    """What the fast set-up changes in the published one."""

    mode: Mode
    patches: tuple[str, ...]
    settings: dict[str, Any]
    """Settings as for `--set`, those of the patches included."""
    gain: str
    """Tok/s as a multiple of the published command's after 2k to 32k of different words, on one H200."""
    is_compared: bool
    """Whether its answers were compared with the published command's on this class of GPU and release."""


def build_fast_set_up(resolved: ResolvedRecipe, tokens: int, streams: int | None) -> FastSetUp:
    """Return the fast set-up for `tokens` drafts per step and `streams` requests; raise UsageError if there is none."""
    named = read_whole_number(normalize_flag_names(resolved.flags), "max-num-seqs")
    streams = streams or named or cuda_graphs.DEFAULT_SEQUENCES
    if reason := _explain_none(resolved, tokens, streams):
        raise UsageError(f"{resolved.recipe.name} has no fast set-up here: {reason}", hint="--published")
    build = patch_selection.describe_planned_build(resolved)
    names = (name for name in _PATCHES if patch_file.covers_build(patch_file.load_patch(name), build))
    if (patch := next(names, None)) is None:
        what = f"{resolved.recipe.name} has no fast set-up: split verification has no patch for vLLM {build.number}"
        raise UsageError(what, hint="--vllm 0.26.0, or --published")
    patches: tuple[str, ...] = (patch,)
    gain = "1.2 to 1.9"
    if resolved.hardware in _SECOND_COMPARED and patch_file.covers_build(patch_file.load_patch(_SECOND_EDITION), build):
        patches, gain = (patch, _SECOND_EDITION), "1.3 to 2.3"
    settings: dict[str, Any] = {f"patches.{name}": True for name in patches} | {"max-num-seqs": streams}
    if cuda_graphs.can_choose_v2_runner(Version(resolved.engine.vllm)):
        settings[f"env.{cuda_graphs.RUNNER}"] = 1
    compiles = resolved.hardware in _COMPILES or resolved.mode is Mode.COMPILE
    is_compared = (resolved.hardware, str(build.release)) in _COMPARED
    return FastSetUp(Mode.COMPILE if compiles else Mode.GRAPHS, patches, settings, gain, is_compared)


def find_fast_set_up(resolved: ResolvedRecipe, tokens: int, streams: int | None) -> FastSetUp | None:
    """Return the fast set-up of a recipe, as `build_fast_set_up`; None if it has none."""
    try:
        return build_fast_set_up(resolved, tokens, streams)
    except UsageError:
        return None


def _explain_none(resolved: ResolvedRecipe, tokens: int, streams: int) -> str:
    if resolved.recipe.for_cpu:
        return "it is for GPUs"
    if not 0 < tokens <= _MOST_DRAFTS:
        return f"it drafts {tokens} tokens per step, and steps of 1 to {_MOST_DRAFTS} drafts can be split"
    if resolved.hosts > 1:
        return "it is served by several hosts"
    if not patch_selection.uses_triton(resolved):
        return "its attention does not run on Triton"
    if streams > _MOST_STREAMS:
        return f"it gains nothing from {_MOST_STREAMS + 1} streams upward"
    return ""
