"""Graphs mode: what it adds to the command by release, hardware and model, and where it is refused."""

import json
from typing import Any

import pytest

from dflash_tui.common.errors import UsageError
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.cuda_graphs import apply_graphs_mode
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.plan_builder import build_plan
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from tests.support import plans

V2 = "VLLM_USE_V2_MODEL_RUNNER"


def resolve(name: str = "gemma-4-26b-a4b", hardware: Hardware = Hardware.H200, **how: Any) -> ResolvedRecipe:
    return plans.resolve(name, hardware, **how)


def planned(*, tokens: int | None = None, **kwargs) -> Plan:
    return build_plan(resolve(**kwargs), mode=Mode.GRAPHS, num_speculative_tokens=tokens)


def config_of(plan: Plan) -> dict[str, object]:
    assert plan.argv.count("--compilation-config") == 1
    config: dict[str, object] = json.loads(plan.argv[plan.argv.index("--compilation-config") + 1])
    return config


def test_the_command_names_mode_and_sizes():
    """Never left to vLLM: a mode without a name is eager before 0.30, and its own sizes are for other steps."""
    plan = planned()
    assert config_of(plan) == {
        "mode": 0,
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [16, 32, 48, 64, 80, 96, 112, 128],
    }
    assert "--enforce-eager" not in plan.argv
    assert plan.argv[plan.argv.index("--max-num-seqs") + 1] == "8"
    assert any("max-num-seqs" in warning for warning in plan.warnings)


@pytest.mark.parametrize(
    ("tokens", "settings", "sizes"),
    [
        (8, {"max-num-seqs": 4}, [9, 18, 27, 36]),
        (0, {"max-num-seqs": 4}, [1, 2, 3, 4]),
        (15, {"max-num-seqs": 4, "max-num-batched-tokens": 40}, [16, 32]),
        (15, {"max_num_seqs": "4", "max_num_batched_tokens": "0.04k"}, [16, 32]),
        (0, {"max-num-seqs": "1t"}, [*range(1, 17), *range(24, 4097, 8)]),
        (7, {"max-num-seqs": 42}, [8 * count for count in (*range(1, 17), 24, 32, 40, 42)]),
        (7, {"max-num-seqs": 4, "compilation-config": {"cudagraph_capture_sizes": [8, 32]}}, [8, 32]),
    ],
)
def test_capture_sizes_match_decode_steps(tokens, settings, sizes):
    """A step verifies n+1 tokens of each request, up to as many requests as fit; sizes set by hand stay."""
    assert config_of(planned(tokens=tokens, settings=settings))["cudagraph_capture_sizes"] == sizes


@pytest.mark.parametrize(
    ("name", "vllm", "tokens", "variable"),
    [
        ("gemma-4-26b-a4b", "0.22.1", 15, None),
        ("gemma-4-26b-a4b", "0.24.0", 15, "1"),
        ("gemma-4-26b-a4b", "0.28.0", 15, "1"),
        ("gemma-4-26b-a4b", "0.28.0", 0, None),
        ("gemma-4-26b-a4b", "0.29.0", 15, None),
        ("qwen3.5-35b-a3b", "0.25.1", 15, None),  # a hybrid with aligned cache blocks
        ("qwen3.5-35b-a3b", "0.26.0", 15, "1"),
    ],
)
def test_v2_runner_is_planned_for_eager_drafter(name, vllm, tokens, variable):
    assert planned(name=name, vllm=vllm, tokens=tokens).env.get(V2) == variable


@pytest.mark.parametrize("mode", [Mode.COMPILE, Mode.EAGER])
@pytest.mark.parametrize(
    ("vllm", "tokens", "settings", "most"),
    [
        ("0.26.0", 15, {f"env.{V2}": "1"}, "64"),
        ("0.26.0", 3, {f"env.{V2}": "1"}, "256"),
        ("0.26.0", 15, {f"env.{V2}": "1", "max_num_seqs": "512"}, "512"),
        ("0.26.0", 15, {f"env.{V2}": "0"}, None),
        ("0.26.0", 0, {f"env.{V2}": "1"}, None),
        ("0.22.1", 15, {f"env.{V2}": "1"}, None),
        ("0.29.0", 15, {f"env.{V2}": "1"}, None),
    ],
)
def test_v2_runner_limits_requests_to_available_memory(mode, vllm, tokens, settings, most):
    """As it starts it verifies the drafts of all at once: 1,024 of them were too many for one H200."""
    plan = build_plan(resolve(vllm=vllm, settings=settings), mode=mode, num_speculative_tokens=tokens)
    words = [word.replace("_", "-") for word in plan.argv]
    assert ("--max-num-seqs" in words) is bool(most)
    if most:
        assert plan.argv[words.index("--max-num-seqs") + 1] == most
    assert any("max-num-seqs" in warning for warning in plan.warnings) is (most in {"64", "256"})


def test_v2_runner_keeps_memory_margin():
    before, since = (
        planned(vllm="0.28.0", settings={"gpu-memory-utilization": 0.96}),
        planned(vllm="0.29.0", settings={"gpu-memory-utilization": 0.96}),
    )
    assert before.argv[before.argv.index("--gpu-memory-utilization") + 1] == "0.92"
    assert since.argv[since.argv.index("--gpu-memory-utilization") + 1] == "0.96"


@pytest.mark.parametrize(
    ("hardware", "vllm", "settings", "refused"),
    [
        (Hardware.H200, "0.29.0", {"attention-backend": "FLASHINFER"}, True),
        (Hardware.H200, "0.30.0", {"attention-backend": "FLASHINFER"}, False),
        (Hardware.GB10, "0.26.0", {"attention-backend": "flashinfer"}, True),
        (Hardware.GB10, "0.28.0", {"speculation.attention_backend": "FLASHINFER"}, False),
        (Hardware.ADA, "0.32.0", {"speculation.attention_backend": "FLASHINFER"}, True),
        (Hardware.ADA, "0.33.0", {"attention-backend": "FLASHINFER"}, False),
        (Hardware.H200, "0.26.0", {"attention-backend": "TRITON_ATTN"}, False),
    ],
)
def test_flashinfer_is_refused_where_it_stays_eager(hardware, vllm, settings, refused):
    resolved = resolve(hardware=hardware, vllm=vllm, settings=settings)
    if not refused:
        apply_graphs_mode(resolved, 15)
        return
    with pytest.raises(UsageError) as error:
        apply_graphs_mode(resolved, 15)
    assert "--set" in (error.value.hint or "")


@pytest.mark.parametrize("settings", [{"compilation-config.mode": 3}, {"compilation_config": {"mode": 3}}])
def test_another_compilation_mode_by_hand_is_refused(settings):
    with pytest.raises(UsageError) as error:
        planned(settings=settings)
    assert "compile" in (error.value.hint or "")
