"""The KV cache of a request against what real servers said, and against shapes that are easy to count."""

import pytest
from msgspec.structs import replace

from dflash_tui.planning import kv_cache
from dflash_tui.planning.kv_cache import KvCache
from dflash_tui.planning.recipes.recipe import ModelConfig
from tests.support import recordings

GIB = 1 << 30
SMALL = ModelConfig(num_hidden_layers=8, num_key_value_heads=4, head_dim=64, hidden_size=512, vocab_size=1000)
PER_TOKEN = 2 * 4 * 64 * 2  # bytes in one layer of SMALL: keys and values, heads, width, bfloat16


@pytest.mark.parametrize(("name", "drafter_layers"), [("eager", 0), ("dflash", 2), ("ci_warm_dflash", 2)])
def test_kv_cache_size_matches_vllm_on_cpu(name, drafter_layers):
    """The toy pair: four layers and two of the drafter, each with two heads of 32."""
    requests = recordings.said(
        f"cpu-vllm-0.32.0/{name}", r"Maximum concurrency for 4,096 tokens per request: ([\d.]+)x"
    )
    target = ModelConfig(num_hidden_layers=4, num_key_value_heads=2, head_dim=32)
    drafter = replace(target, num_hidden_layers=drafter_layers)
    models = (target, drafter) if drafter_layers else (target,)
    needed = KvCache(models, in_flight=2048).needed(4096)
    assert needed is not None
    assert GIB / needed == pytest.approx(requests, rel=0.001)


def test_longest_request_matches_vllm_estimate():
    """With 8 MiB vLLM said that 8064 tokens fit; one block of 128 is its own."""
    estimated = recordings.said("cpu-vllm-0.32.0/fail_max_model_len_kv", r"estimated maximum model length is (\d+)")
    cache = KvCache((ModelConfig(num_hidden_layers=4, num_key_value_heads=2, head_dim=32),), in_flight=2048)
    assert cache.longest(8388608, 32768) == pytest.approx(estimated, abs=1024)
    assert cache.needed(8192) == 8388608


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        ({}, "full " * 8),
        ({"layer_types": ("sliding_attention", "full_attention") * 4}, "sliding full " * 4),
        ({"layer_types": ("linear_attention",) * 3 + ("full_attention",)}, "linear linear linear full"),
        ({"full_attention_interval": 4}, "linear linear linear full " * 2),
        # Of Gemma 4 the last layer is a full one, whatever the pattern.
        ({"sliding_window_pattern": 6}, "sliding " * 5 + "full sliding full"),
        ({"hybrid_override_pattern": "MEM*-MEM"}, "mamba none mamba full none mamba none mamba"),
        ({"layers_block_type": ("mamba", "moe", "attention", "mlp")}, "mamba none full none"),
        ({"layer_types": ("full_attention", "compressed_sparse_attention")}, "full unknown"),
    ],
)
def test_layer_kinds(words, kinds):
    """What a config.json says of its layers, in each of the ways that there are."""
    assert kv_cache.classify_layers(replace(SMALL, **words)) == kinds.split()


def test_sliding_layer_keeps_window_plus_batch():
    """A long request costs a sliding layer no more than that, and a short one no more than its length."""
    model = replace(SMALL, layer_types=("sliding_attention",) * 7 + ("full_attention",), sliding_window=1024)
    cache = KvCache((model,), in_flight=2048)
    assert cache.needed(100_000) == PER_TOKEN * (7 * (1023 + 2048) + 100_000)
    assert cache.needed(2000) == PER_TOKEN * 8 * 2000


def test_linear_layer_keeps_state_per_drafted_token():
    model = replace(
        SMALL, full_attention_interval=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
        linear_value_head_dim=32, linear_conv_kernel_dim=4,
    )  # fmt: skip
    plain, drafting = KvCache((model,), in_flight=2048), KvCache((model,), in_flight=2048, tokens=7)
    for length in (1000, 2000):
        states = 6 * 2 * (4 * 16 * 32 * 4 + (2 * 2 * 16 + 4 * 32) * 3 * 2)
        assert plain.needed(length) == 2 * PER_TOKEN * length + states
        states = 6 * 9 * (4 * 16 * 32 * 4 + (2 * 2 * 16 + 4 * 32) * 10 * 2)
        assert drafting.needed(length) == 2 * PER_TOKEN * length + states


def test_mamba_layer_keeps_state_per_drafted_token():
    """Nemotron 3.5 Lightning has six layers of attention among 52: 6 KiB for each token, as published.

    Its 26 layers of Mamba are padded to five groups of six.
    """
    model = ModelConfig(
        num_hidden_layers=52, num_key_value_heads=2, head_dim=128, hybrid_override_pattern="MEMEM*" * 6 + "ME" * 8,
        mamba_num_heads=64, mamba_head_dim=64, ssm_state_size=128, n_groups=8, conv_kernel=4,
    )  # fmt: skip
    plain, drafting = KvCache((model,), in_flight=2048), KvCache((model,), in_flight=2048, tokens=3)
    mamba, columns = 30, 64 * 64 + 2 * 8 * 128
    for length in (1000, 2000):
        states = mamba * 2 * (64 * 64 * 128 * 4 + columns * 3 * 2)
        assert plain.needed(length) == 6 * 1024 * length + states
        states = mamba * 5 * (64 * 64 * 128 * 4 + columns * 6 * 2)
        assert drafting.needed(length) == 6 * 1024 * length + states


@pytest.mark.parametrize(("dtype", "number"), [("auto", 4), ("float32", 4), ("float16", 2), ("bfloat16", 2)])
def test_state_size_follows_its_own_dtype(dtype, number):
    """That of vLLM's --mamba-ssm-cache-dtype; the convolution's tail is in that of the model."""
    linear = replace(
        SMALL, full_attention_interval=8, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
        linear_value_head_dim=32, linear_conv_kernel_dim=4,
    )  # fmt: skip
    mamba = replace(SMALL, layers_block_type=("mamba",) * 8, mamba_num_heads=4, mamba_head_dim=8, ssm_state_size=16)
    one = KvCache((linear,), in_flight=0, state_dtype=dtype).needed(1)
    other = KvCache((mamba,), in_flight=0, state_dtype=dtype).needed(1)
    assert one == PER_TOKEN + 7 * 2 * (4 * 16 * 32 * number + (2 * 2 * 16 + 4 * 32) * 3 * 2)
    assert other == 8 * 2 * 4 * 8 * 16 * number


@pytest.mark.parametrize(("more", "bytes_per_token"), [({}, 2 * 576), ({"index_head_dim": 128}, 2 * 576 + 132)])
def test_every_gpu_keeps_whole_latent_vector(more, bytes_per_token):
    """DeepSeek V3's 61 layers keep 68.6 KiB of a token, however many heads they have; V3.2's an index as well."""
    model = ModelConfig(num_hidden_layers=61, num_key_value_heads=128, head_dim=128, kv_lora_rank=512,
                        qk_rope_head_dim=64, **more)  # fmt: skip
    for split in (1, 8):
        assert KvCache((model,), in_flight=0, split=split).needed(1000) == 61 * 1000 * bytes_per_token


@pytest.mark.parametrize("words", [{"linear_attn_config": {"kda_layers": [1]}}, {"compress_ratios": [0, 4]}])
def test_unknown_layers_leave_kv_cache_size_unknown(words):
    model = kv_cache.read_model_shape({"num_hidden_layers": 8, "num_key_value_heads": 4, "head_dim": 64, **words})
    cache = KvCache((model,), in_flight=0)
    assert (cache.needed(1000), cache.unknown) == (None, ("KV cache",))


def test_nested_language_config_is_read():
    """A model that reads images has it nested; its outer numbers are of something else."""
    inner = {"num_hidden_layers": 8, "num_key_value_heads": 4, "head_dim": 64, "rope_theta": 1e6}
    nested = {"model_type": "x", "vision_config": {"num_hidden_layers": 99}, "hidden_size": 1, "text_config": inner}
    assert (
        kv_cache.read_model_shape(nested)
        == kv_cache.read_model_shape(inner)
        == ModelConfig(num_hidden_layers=8, num_key_value_heads=4, head_dim=64)
    )
