"""Scratch of split verification: how many rows a release's own builder of attention metadata reserves, on no GPU."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tests.patching.arms import SCRATCH, on
from tests.support.vllm_stubs import vllm
from tests.support.wheels import Texts

pytestmark = pytest.mark.index
REQUESTS, MOST = 4, 16
MODES = SimpleNamespace(FULL="full", FULL_AND_PIECEWISE="both", FULL_DECODE_ONLY="decode", NONE="none")


class Step(NamedTuple):
    """What a server verifies for each request, and the sizes of batches that it captures graphs of."""

    tokens: int
    captured: list[int]


class Builder:
    """Stands for vLLM's base of all builders."""

    def __init__(self, _spec: Any, _layers: Any, config: Any, _device: Any) -> None:
        self.vllm_config = config

    def __class_getitem__(cls, _metadata: Any) -> Any:
        return cls


def reserve(texts: Texts, steps: list[Step], capability: tuple[int, int] = (9, 0)) -> list[tuple[int, int]]:
    """Return for each step from which number of blocks on it is not split, and the rows of scratch."""
    shapes: list[tuple[int, ...]] = []
    platform = SimpleNamespace(
        fp8_dtype=lambda: None,
        is_cuda=lambda: True,
        is_device_capability=lambda wanted: wanted == capability,
        num_compute_units=lambda: 170,
    )
    known = {
        "AttentionMetadataBuilder": Builder,
        "CUDAGraphMode": MODES,
        "cdiv": lambda one, other: -(-one // other),
        "current_platform": platform,
        "empty": lambda shape, **_kind: shapes.append(shape),
        "get_num_attention_heads_from_layers": lambda *_: None,
        "next_power_of_2": lambda value: 1 << (value - 1).bit_length(),
    }
    found = []
    with vllm(texts, **known) as load:
        module = load(SCRATCH)
        for step in steps:
            shapes.clear()
            spec = SimpleNamespace(block_size=16, kv_quant_mode=None)
            builder = module.TritonAttentionMetadataBuilder(spec, ["layer"], configuration(step), "cuda")
            output, *others = shapes
            assert all(shape == output[:-1] for shape in others)
            rows_of_16 = output[2] // 16  # rows of 64 segments are cut into rows of 16
            found.append((builder.seq_threshold_3D, output[0] * rows_of_16))
    return found


def configuration(step: Step) -> SimpleNamespace:
    """Return what the builder asks vLLM's configuration for; heads are those of Gemma 4 26B-A4B."""
    model = SimpleNamespace(
        get_num_attention_heads=lambda _parallel: 16,
        get_num_kv_heads=lambda _parallel: 8,
        get_head_size=lambda: 256,
        rswa_window=None,
    )
    mode = MODES.FULL_DECODE_ONLY if step.captured else MODES.NONE
    return SimpleNamespace(
        compilation_config=SimpleNamespace(cudagraph_mode=mode, cudagraph_capture_sizes=step.captured),
        model_config=model,
        parallel_config=None,
        scheduler_config=SimpleNamespace(max_num_seqs=REQUESTS),
        speculative_config=SimpleNamespace(num_speculative_tokens=step.tokens - 1, parallel_drafting=False),
    )


@on("triton-split-verify", "triton-split-verify-0.24", "triton-split-verify-0.32")
def test_split_step_has_row_for_each_token(arms):
    """Whatever sizes are captured, no more rows than the largest step needs, which a size of 64 once had.

    As published there are fewer: a step of 16 tokens is not split, or would write outside.
    """
    steps = [
        Step(tokens, captured)
        for tokens in (1, 9, 16, 17)
        for captured in ([], [64], [1, 2, 4, 8, 16], [tokens * number for number in range(1, REQUESTS + 1)])
    ]
    for step, (threshold, rows) in zip(steps, reserve(arms.patched, steps), strict=True):
        assert min(threshold, REQUESTS) * min(step.tokens, MOST) <= rows <= MOST * REQUESTS, step
    [(_, rows)] = reserve(arms.published, [Step(MOST, [])])
    assert rows < MOST * REQUESTS


@on("triton-split-verify", "triton-split-verify-0.32")
def test_gpu_with_64_segments_has_enough_rows(arms):
    """An RTX 5090 keeps as many segments in fewer, longer rows."""
    [(threshold, rows)] = reserve(arms.patched, [Step(MOST, [])], (12, 0))
    assert rows >= min(threshold, REQUESTS) * MOST
