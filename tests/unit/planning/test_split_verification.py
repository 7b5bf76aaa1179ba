"""Where a plan offers fewer drafts, so that Triton attention splits a long context while it verifies them."""

from collections.abc import Mapping
from typing import Any

import pytest

from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.patch_selection import find_most_split_drafts
from dflash_tui.planning.plan_builder import build_plan
from dflash_tui.presentation import plan_text
from tests.support.plans import resolve


def offered(recipe: str, hardware: Hardware, vllm: str = "0.33.0", settings: Mapping[str, Any] | None = None) -> int:
    resolved = resolve(recipe, hardware, vllm, settings=settings)
    plan = build_plan(resolved)
    return find_most_split_drafts(resolved, plan.num_speculative_tokens, plan.patches)


@pytest.mark.parametrize(
    ("recipe", "hardware", "tokens"),
    [
        ("gemma-4-26b-a4b", Hardware.H200, 7),  # told to use Triton
        ("gemma-4-26b-a4b", Hardware.RTX_5090, 7),
        ("gemma-4-31b", Hardware.GB10, 7),  # heads of 512, which only Triton takes there
        ("gemma-4-31b", Hardware.H100, 0),  # FlashAttention takes them
        ("qwen3.5-27b", Hardware.H100, 0),  # told to use FlashAttention
        ("qwen3.5-35b-a3b", Hardware.GB10, 0),
    ],
)
def test_it_is_offered_where_triton_verifies(recipe, hardware, tokens):
    assert offered(recipe, hardware) == tokens


@pytest.mark.parametrize(
    ("vllm", "settings", "tokens"),
    [
        ("0.33.0", {"n": 15}, 7),
        ("0.33.0", {"n": 8}, 7),
        ("0.33.0", {"n": 7}, 0),
        ("0.33.0", {"n": 0}, 0),
        ("0.33.0", {"attention-backend": "flash_attn"}, 0),
        ("0.33.0", {"attention-backend": None}, 0),
        ("0.33.0", {"attention_backend": "TRITON_ATTN"}, 7),
        ("0.33.0", {"patches.triton-split-verify": True}, 0),
        ("0.32.0", {"n": 15}, 0),
    ],
)
def test_split_verification_is_offered_only_if_helpful(vllm, settings, tokens):
    """One release splits up to eight tokens; the patch, fewer drafts and another backend leave nothing to offer."""
    assert offered("gemma-4-26b-a4b", Hardware.H200, vllm, settings) == tokens


def test_a_plan_offers_it_with_its_source():
    """As graphs mode is: what to set, why, and that nobody has measured a server here."""
    resolved = resolve("gemma-4-31b", Hardware.GB10)
    plan = build_plan(resolved)
    text = plan_text.format_drafts_offer(resolved, plan)
    assert all(part in text for part in ("--set n=7", "n=8 has 9", "vllm#48076", "gb10", "patches.triton-split-verify"))
    patched = resolve("gemma-4-31b", Hardware.GB10, settings={"patches.triton-split-verify": True})
    assert plan_text.format_drafts_offer(patched, build_plan(patched)) == ""
