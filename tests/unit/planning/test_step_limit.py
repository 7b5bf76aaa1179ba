"""What a step must read, against what one H200 measured, and against shapes that are easy to count."""

import pytest
from msgspec.structs import replace

from dflash_tui.common import paths
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.memory import measure_vision_encoder
from dflash_tui.planning.methods import Method
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import ModelConfig
from dflash_tui.planning.step_limit import ModelWeights, StepModel, StepReader, Tensor, expect_experts, sort_weights
from tests.support.boot_factories import plan
from tests.support.values import present

GEMMA = recipe_loader.load_recipe(paths.bundled_folder("recipes") / "gemma-4-26b-a4b.yaml")
# Its public shape: 30 layers of 128 experts with three matrices of 2,816 by 704, and the table of its vocabulary.
EXPERTS, TABLE = 30 * 128 * 3 * 2816 * 704 * 2, 262_144 * 2816 * 2
SMALL = ModelConfig(num_hidden_layers=2, num_key_value_heads=4, head_dim=64)
PER_TOKEN = 2 * 2 * 4 * 64 * 2  # bytes of SMALL: two layers, keys and values


def on_h200(**changes) -> Plan:
    return plan(**({"hardware": Hardware.H200, "num_speculative_tokens": 15} | changes))


def gemma() -> StepReader:
    target, drafter = GEMMA.target, present(GEMMA.drafter)
    text = int((target.size_gb or 0) * 1e9) - (measure_vision_encoder(target.config) or 0)
    weights = ModelWeights(text - EXPERTS - TABLE, TABLE, EXPERTS, 128, 8)
    drafts = ModelWeights(int((drafter.size_gb or 0) * 1e9), 0)
    return StepReader(on_h200(), StepModel("t", target.config, weights), StepModel("d", drafter.config, drafts))


@pytest.mark.parametrize(
    ("context", "least", "stock", "compiled"),
    [
        (2_000, 8.4, (14.22, 0.59), (11.60, 0.72)),
        (8_000, 8.5, (16.88, 0.50), (12.46, 0.68)),
        (32_000, 8.6, (26.92, 0.32), (14.04, 0.61)),
    ],
)
def test_limit_agrees_with_a_measured_h200(context, least, stock, compiled):
    """Milliseconds of a step and the share of the bandwidth, vLLM 0.26.0; 79 experts were counted, 82 are expected."""
    assert expect_experts(128, 8, 16) == pytest.approx(79, rel=0.05)
    for measured, share in (stock, compiled):
        step = gemma().compare(context, 1, measured / 1000)
        assert step.least_seconds is not None
        assert step.least_seconds * 1000 == pytest.approx(least, rel=0.1)
        assert step.share == pytest.approx(share, rel=0.1)


def test_dense_step_reads_all_weights_once():
    target, drafter = StepModel("t", SMALL, ModelWeights(1000, 10)), StepModel("d", SMALL, ModelWeights(5, 0))
    reader = StepReader(on_h200(), target, drafter)
    assert reader.count_bytes(100) == 1000 + 10 + 5 + 10 + 2 * 100 * PER_TOKEN
    assert reader.count_bytes(100, 3) == 1000 + 10 + 5 + 10 + 3 * 2 * 100 * PER_TOKEN
    alone = StepReader(on_h200(num_speculative_tokens=0), target, None)
    assert alone.count_bytes(100) == 1000 + 10 + 100 * PER_TOKEN


def test_flags_change_what_is_read():
    """Two GPUs share weights and heads; FP8 halves the matrices of 16 bits, not the logits' one."""
    target = StepModel("t", SMALL, ModelWeights(1000, 10))
    for argv, size in (
        (("--tensor-parallel-size", "2"), 505 + 100 * PER_TOKEN // 2),
        (("--quantization", "fp8"), 510 + 100 * PER_TOKEN),
        (("--kv-cache-dtype", "fp8"), 1010 + 100 * PER_TOKEN // 2),
    ):
        assert StepReader(on_h200(num_speculative_tokens=0, argv=argv), target, None).count_bytes(100) == size


WINDOWED = replace(SMALL, sliding_window=32, layer_types=("full_attention", "sliding_attention"))


def test_sliding_layer_reads_its_window():
    reader = StepReader(on_h200(num_speculative_tokens=0), StepModel("t", WINDOWED, ModelWeights(0, 0)), None)
    assert reader.count_bytes(100) == (100 + 32) * PER_TOKEN // 2


@pytest.mark.parametrize(
    ("changes", "target", "unknown"),
    [
        ({"hardware": Hardware.B200}, ModelWeights(1, 1), "the memory bandwidth of the class b200"),
        ({}, None, "the weights of t, which has no safetensors files here"),
        ({}, ModelWeights(1, 1, 5, 128), "which experts of t a step reads"),
        ({}, ModelWeights(1, 1, 0, 128, 8), "which experts of t a step reads"),
        ({"method": Method.EAGLE3}, ModelWeights(1, 1), "what the drafts of eagle3 read"),
        ({"argv": ("--data-parallel-size=2",)}, ModelWeights(1, 1), "how the weights are split"),
        ({"argv": ("--quantization", "new")}, ModelWeights(1, 1), "the bits of a weight in new"),
        ({"argv": ("--kv-cache-dtype", "new")}, ModelWeights(1, 1), "KV cache"),
    ],
)
def test_unknown_part_gives_no_figure(changes, target, unknown):
    reader = StepReader(on_h200(**changes), StepModel("t", SMALL, target), StepModel("d", SMALL, ModelWeights(1, 0)))
    step = reader.compare(100, 1, 0.01)
    assert (reader.unknown, step.least_seconds, step.share) == ((unknown,), None, None)


def test_tensors_are_sorted_by_how_steps_read_them():
    names = {
        "model.language_model.embed_tokens.weight": 1,
        "model.language_model.layers.0.self_attn.q_proj.weight": 10,
        "model.language_model.layers.0.mlp.experts.3.up_proj.weight": 100,
        "model.language_model.layers.1.mlp.shared_expert.up_proj.weight": 1_000,
        "model.language_model.layers.2.mlp.up_proj.weight": 1 << 40,  # of a draft head, after the last layer
        "model.vision_tower.layers.0.mlp.up_proj.weight": 1 << 40,
        "mtp.layers.0.mlp.experts.0.up_proj.weight": 1 << 40,
        "model.language_model.embed_tokens_per_layer.weight": 1 << 40,
    }
    config = {"text_config": {"num_hidden_layers": 2, "num_experts": 128, "top_k_experts": 8}}
    tensors = [Tensor(name, "BF16", size) for name, size in names.items()]
    assert sort_weights(tensors, config) == ModelWeights(1_010, 1, 100, 128, 8)
    own = [*tensors, Tensor("lm_head.weight", "F8_E4M3", 7), Tensor("layers.0.mlp.weight", "U8", 5)]
    assert sort_weights(own, config) == ModelWeights(1_015, 7, 100, 128, 8, is_quantized=True)
