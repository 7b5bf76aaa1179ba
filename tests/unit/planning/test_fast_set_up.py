"""The fast set-up: where it is the default, where it is offered, and what it changes."""

import pytest
from msgspec.structs import replace

from dflash_tui.common.errors import UsageError
from dflash_tui.experiments.variation import OURS, STOCK, build_stock_variation
from dflash_tui.launch.planner import PlannedLaunch, plan_launch
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes.recipe import Mode, SetUp
from dflash_tui.planning.request import LaunchChanges, LaunchRequest
from dflash_tui.presentation import plan_text

V2 = "VLLM_USE_V2_MODEL_RUNNER"


def planned(recipe: str = "gemma-4-26b-a4b", gpu: str = "h200", vllm: str | None = "0.26.0", **asked) -> PlannedLaunch:
    return plan_launch(LaunchRequest(recipe=recipe, gpu=gpu, vllm=vllm, **asked), GpuProbe())


@pytest.mark.parametrize(
    ("gpu", "patches", "gain"),
    [
        ("h100", ("triton-split-verify-0.24",), "1.2 to 1.9 ×"),
        ("h200", ("triton-split-verify-0.24", "triton-split-verify-2"), "1.3 to 2.3 ×"),
    ],
)
def test_compared_answers_make_fast_default(gpu, patches, gain):
    launch = planned(gpu=gpu, vllm=None)
    plan, words = launch.plan, plan_text.format_set_up(launch)
    assert (plan.set_up, plan.mode, plan.patches, plan.vllm) == (SetUp.FAST, Mode.COMPILE, patches, "0.26.0")
    assert (plan.env[V2], plan.find_flag("max-num-seqs")) == ("1", "8")
    assert gain in words
    assert "not compared" not in words
    assert words.endswith("--published for the other")
    assert not any("patch" in warning for warning in plan.warnings)


@pytest.mark.parametrize(
    "asked",
    [
        {"set_up": SetUp.PUBLISHED},
        {"streams": 16},
        {"num_speculative_tokens": 0},
        {"method": Method.NONE},
        {"mode": Mode.EAGER},
        {"gpu": "b200"},
        {"vllm": "0.33.0"},
        {"settings": {"attention-backend": "flash_attn"}},
    ],
    ids=str,
)
def test_elsewhere_the_published_one_is_planned(asked):
    plan = planned(**asked).plan
    assert (plan.set_up, V2 in plan.env) == (SetUp.PUBLISHED, False)
    assert not any(name.startswith("triton-split") for name in plan.patches)


@pytest.mark.parametrize(
    ("vllm", "patch", "runner"),
    [
        ("0.28.0", "triton-split-verify-0.24", "1"),
        ("0.29.0", "triton-split-verify-0.24", None),
        ("0.32.0", "triton-split-verify-0.32", None),
        ("0.33.0", "triton-split-verify", None),
    ],
)
def test_each_release_has_its_patch(vllm, patch, runner):
    launch = planned(vllm=vllm, set_up=SetUp.FAST)
    assert (launch.plan.patches, launch.plan.env.get(V2)) == ((patch, "triton-split-verify-2"), runner)
    assert f"answers not compared on h200 with vLLM {vllm}" in plan_text.format_set_up(launch)
    assert planned(vllm=vllm, gpu="h100", set_up=SetUp.FAST).plan.patches == (patch,)


def test_manual_setting_wins():
    plan = planned(set_up=SetUp.FAST, mode=Mode.GRAPHS, settings={"max-num-seqs": "4", f"env.{V2}": "0"}).plan
    assert (plan.mode, plan.find_flag("max-num-seqs"), plan.env[V2]) == (Mode.GRAPHS, "4", "0")
    assert planned(settings={"max-num-seqs": "20"}).plan.set_up is SetUp.PUBLISHED
    assert planned(streams=3).plan.find_flag("max-num-seqs") == "3"
    assert planned(streams=20).plan.find_flag("max-num-seqs") == "20"


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"recipe": "demo-cpu", "gpu": "cpu", "vllm": None}, "it is for GPUs"),
        ({"recipe": "qwen3.5-27b", "gpu": "h100", "vllm": None}, "does not run on Triton"),
        ({"num_speculative_tokens": 16}, "it drafts 16 tokens"),
        ({"streams": 16}, "gains nothing from 16 streams"),
        ({"vllm": "0.23.0"}, "no patch for vLLM 0.23.0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_impossible_fast_set_up_is_refused(asked, why):
    with pytest.raises(UsageError, match=why):
        planned(set_up=SetUp.FAST, **asked)


def test_stock_is_published_and_ours_is_fast():
    request = LaunchRequest(recipe="gemma-4-26b-a4b", gpu="h200")
    for vllm, ours in ((None, LaunchChanges()), ("0.33.0", LaunchChanges(set_up=SetUp.FAST))):
        wanted = replace(request, vllm=vllm)
        arms = build_stock_variation(wanted, lambda each: plan_launch(each, GpuProbe())).arms
        assert (arms[STOCK].set_up, arms[OURS]) == (SetUp.PUBLISHED, ours)
        plans = [plan_launch(wanted.with_changes(arm), GpuProbe()).plan for arm in arms.values()]
        assert [plan.set_up for plan in plans] == [SetUp.PUBLISHED, SetUp.FAST]
        assert plans[0].vllm == plans[1].vllm
