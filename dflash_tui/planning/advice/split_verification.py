"""Whether Triton attention splits a long context while it verifies drafts, and how few drafts it would take. Pure."""

from __future__ import annotations

from collections.abc import Collection

from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.flag_values import normalize_flag_names
from dflash_tui.planning.patch_selection import describe_planned_build
from dflash_tui.planning.recipes.resolution import ResolvedRecipe

PATCH = "triton-split-verify"
# MAX_3D_QUERY_LEN of v1/attention/ops/triton_unified_attention.py; releases before split steps of one token only.
_MOST_SPLIT = {"0.33.0": 8}
# Where FlashAttention takes heads of at most 256, so that wider ones are left to Triton.
_WITHOUT_WIDE_HEADS = frozenset({Hardware.GB10, Hardware.RTX_5090, Hardware.RTX_5090_LAPTOP})
_WIDEST_HEAD = 256


def find_most_split_drafts(resolved: ResolvedRecipe, tokens: int, patches: Collection[str]) -> int:
    """Return the most drafted tokens that this release verifies in a split; 0 where a plan has nothing to gain by it.

    Args:
        resolved: The recipe for one kind of machine.
        tokens: Tokens that the plan drafts per step.
        patches: The names of the plan's patches.
    """
    most = _MOST_SPLIT.get(str(describe_planned_build(resolved).release), 0) - 1  # the token before the drafts counts
    if not 0 < most < tokens or PATCH in patches or not _uses_triton(resolved):
        return 0
    return most


def _uses_triton(resolved: ResolvedRecipe) -> bool:
    """Whether the target's attention runs on Triton: as it is told to, or since its heads leave no choice."""
    backend = normalize_flag_names(resolved.flags).get("attention-backend")
    if backend is not None:
        return str(backend).upper() == "TRITON_ATTN"
    config = resolved.target.config
    widest = max(config.head_dim or 0, config.global_head_dim or 0) if config else 0
    return widest > _WIDEST_HEAD and resolved.hardware in _WITHOUT_WIDE_HEADS
