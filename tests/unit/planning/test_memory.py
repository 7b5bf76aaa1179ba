"""The memory arithmetic against what real servers said, and against shapes that are easy to count."""

from typing import Any

import pytest
from msgspec.structs import replace

from dflash_tui.machine import nvml
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import memory
from dflash_tui.planning.kv_cache import read_model_shape
from dflash_tui.planning.memory import GIB, GpuMemory, LocalModel, MemoryEstimate, measure_vision_encoder
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes.recipe import EngineSpec, Mode, ModelConfig
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from tests.support import command_line, recordings
from tests.support.plans import resolve
from tests.support.values import present

H200 = GpuMemory(Hardware.H200, int(139.8 * GIB), int(139.29 * GIB), unified=False)
SMALL = ModelConfig(num_hidden_layers=8, num_key_value_heads=4, head_dim=64, hidden_size=512, vocab_size=1000)


def gemma(vllm: str = "0.26.0", **flags: Any) -> ResolvedRecipe:
    """Return the shipped recipe of the shape that was recorded, with the flags of the recordings."""
    given = {"max-model-len": 16384, "max-num-batched-tokens": 16384, "gpu-memory-utilization": 0.8} | flags
    return resolve("gemma-4-26b-a4b", Hardware.H200, engine=EngineSpec(vllm=vllm, packages=("vllm",)), settings=given)


def made(
    machine: GpuMemory = H200, *, tokens: int = 15, mode: Mode = Mode.EAGER, vllm: str = "0.26.0", **flags
) -> MemoryEstimate:
    given = {name.replace("_", "-"): value for name, value in flags.items()}
    return memory.estimate_memory(gemma(vllm, **given), machine, mode=mode, tokens=tokens)


def share(found: MemoryEstimate, name: str) -> int:
    (size,) = [part.size for part in found.shares if part.name == name]
    assert size is not None
    return size


@pytest.mark.parametrize(
    ("name", "mode", "tokens"),
    [
        ("g26-plain-eager", Mode.EAGER, 0),
        ("g26-dflash-eager", Mode.EAGER, 15),
        ("g26-dflash-compile", Mode.COMPILE, 15),
    ],
)
def test_memory_estimate_matches_vllm_on_h200(name, mode, tokens):
    """The cache of a request within 1 %, what else is taken within 15 %, the number of requests within 5 %."""
    log = f"h200-vllm-0.26.0/{name}"
    available = recordings.said(log, r"Available KV cache memory: ([\d.]+) GiB")
    requests = recordings.said(log, r"Maximum concurrency for 16,384 tokens per request: ([\d.]+)x")
    weights, peak = (
        recordings.said(log, r"([\d.]+) GiB for weight"),
        recordings.said(log, r"([\d.]+) GiB for peak activation"),
    )
    found = made(mode=mode, tokens=tokens)
    assert found.kv_needed is not None
    assert found.kv_needed / GIB == pytest.approx(available / requests, rel=0.01)
    assert share(found, "activations") / GIB == pytest.approx(peak, rel=0.15)
    assert recordings.said(log, r"Model loading took ([\d.]+) GiB") == weights
    loaded = share(found, "weights") + (share(found, "drafter") if tokens else 0)
    assert loaded / GIB == pytest.approx(weights, rel=0.03)
    assert found.budget / GIB == pytest.approx(recordings.said(log, r"\(0.8, ([\d.]+) GiB\)"), rel=0.001)
    assert found.kv_left / GIB == pytest.approx(available, rel=0.05)
    assert found.requests == pytest.approx(requests, rel=0.05)
    graphs = [part.size for part in found.shares if part.name == "CUDA graphs"]
    assert bool(graphs) is (mode is Mode.COMPILE)
    if mode is Mode.COMPILE:
        assert share(found, "CUDA graphs") / GIB == pytest.approx(
            recordings.said(log, r"([\d.]+) GiB \(actual\)"), rel=0.15
        )
    assert found.unknown == ()


@pytest.mark.parametrize(
    ("flags", "peak", "available", "requests"),
    [
        ({"max_num_seqs": 1024, "max_num_batched_tokens": 32768, "max_model_len": 262144}, 10.59, 68.47, 3.02),
        ({"max_num_seqs": 4, "max_num_batched_tokens": 8192, "max_model_len": 16384}, 1.54, 78.44, 20.90),
    ],
)
def test_memory_estimate_matches_vllm_with_other_batches(flags, peak, available, requests):
    """Two more runs of vLLM 0.26.0 on an H200 (2026-11-21), launched by this program; the figures are of their logs."""
    found = made(gpu_memory_utilization=0.92, **flags)
    assert share(found, "activations") / GIB == pytest.approx(peak, rel=0.1)
    assert found.kv_left / GIB == pytest.approx(available, rel=0.02)
    assert found.requests == pytest.approx(requests, rel=0.02)


def test_padding_beside_a_drafter_is_counted():
    """VLLM 0.26.0 on an H200 padded 48 and 16 layers of Qwen3.5-27B beside five of a drafter, by 4 % and 25 %."""
    given = {"max-model-len": 32768, "max-num-batched-tokens": 32768, "gpu-memory-utilization": 0.55}
    engine = EngineSpec(vllm="0.26.0", packages=("vllm",))
    made = resolve("qwen3.5-27b", Hardware.H200, engine=engine, settings=given)
    assert made.drafter
    assert made.drafter.config
    config = replace(made.drafter.config, num_hidden_layers=5, sliding_window_pattern=None)
    served = replace(made, drafter=replace(made.drafter, config=config))
    needed = memory.estimate_memory(served, H200, mode=Mode.EAGER, tokens=15).kv_needed
    assert needed
    assert needed / GIB == pytest.approx(15.45 / 2.68, rel=0.03)


def test_mtp_head_adds_to_kv_cache():
    """One more layer of full attention."""
    made = resolve("qwen3.5-122b-a10b", Hardware.H200, method=Method.MTP)
    without = replace(made, method=Method.NONE, drafter=None)
    drafting, plain = (memory.estimate_memory(each, H200, mode=Mode.EAGER, tokens=3) for each in (made, without))
    assert (drafting.kv_needed or 0) > (plain.kv_needed or 0) > 0


def test_quantization_by_flag_reduces_weights():
    """The weights of the layers take half in FP8, the embeddings what they took."""
    plain, halved = (share(made(quantization=name), "weights") for name in (None, "fp8"))
    embeddings = 2 * 2 * 262_144 * 2816
    assert halved == pytest.approx(embeddings + (plain - embeddings) / 2, rel=0.05)


def test_two_batches_overlap_since_0_26():
    old, new = (made(vllm=vllm, max_num_batched_tokens=2048).kv_needed for vllm in ("0.25.1", "0.26.0"))
    assert old is not None
    assert new is not None
    assert new - old == 25 * 2 * 8 * 256 * 2 * 2048


def test_unknown_sizes_are_named_and_not_counted(snapshot):
    """The sums are lower bounds then; nothing unknown passes for nothing."""
    found = gemma()
    nothing = replace(found, target=replace(found.target, size_gb=None, config=None))
    bare = memory.estimate_memory(nothing, H200, mode=Mode.EAGER, tokens=15)
    assert bare.unknown == ("weights", "activations", "KV cache")
    assert (bare.kv_needed, bare.requests, bare.longest) == (None, None, None)
    assert found.drafter
    drafter = replace(found, drafter=replace(found.drafter, size_gb=None, config=None))
    part = memory.estimate_memory(drafter, H200, mode=Mode.EAGER, tokens=15)
    assert part.unknown == ("drafter", snapshot)
    assert part.kv_needed == memory.estimate_memory(found, H200, mode=Mode.EAGER, tokens=0).kv_needed
    assert memory.estimate_memory(drafter, H200, mode=Mode.EAGER, tokens=0).unknown == ()
    assert made(kv_cache_dtype="nvfp4").unknown == ("KV cache",)


@pytest.mark.parametrize(
    ("model", "quantization", "flag", "size"),
    [
        ("nvidia/Qwen3.5-122B-A10B-NVFP4", "NVFP4", None, 61_000_000_000),
        ("someone/Qwen3.5-122B-A10B-int4-fp8-hybrid", "int4 and fp8", None, 61_000_000_000),
        ("someone/small-3.8b", "BF16", None, 7_600_000_000),
        ("/models/70B/target-8B/", "BF16", "fp8", 8_000_000_000),  # which makes eight bits of them while it loads
        ("someone/big-70B", "", None, None),  # nothing says how many bits
        ("someone/gemma-4-E4B", "BF16", None, None),  # parameters that act as so many
        ("someone/Mixtral-8x7B", "BF16", None, None),
        ("someone/gpt-v1.5", "MXFP4", None, None),
    ],
)
def test_model_name_gives_lower_bound_for_weights(model, quantization, flag, size):
    """Which may be too much for a GPU, and never enough to say that it fits."""
    resolved = gemma(**({"quantization": flag} if flag else {}))
    nameless = replace(resolved, target=replace(resolved.target, model=model, quantization=quantization, size_gb=None))
    estimate = memory.estimate_memory(nameless, H200, mode=Mode.EAGER, tokens=0)
    assert (estimate.shares[0].size, estimate.shares[0].least) == (size, size is not None)
    assert estimate.unknown == ("weights",)


def test_local_files_win_over_recipe_sizes():
    """Their sizes and their config.json are what is loaded; a quantization while loading is said by the recipe."""
    found = gemma()
    model = replace(SMALL, max_position_embeddings=4096)
    here = memory.estimate_memory(
        found, H200, mode=Mode.EAGER, tokens=15, models=[LocalModel(model, 10**9), LocalModel(None, 10**8)]
    )
    assert [(part.name, part.size, part.source) for part in here.shares[:2]] == [
        ("weights", 10**9, "files"),
        ("drafter", 10**8, "files"),
    ]
    assert share(here, "activations") == int(0.8 * GIB) + 7 * 1024 * 1000 * 4 + 16384 * 512 * 34
    quantized = replace(found, weights_gb=30.0)
    shares = memory.estimate_memory(
        quantized, H200, mode=Mode.EAGER, tokens=15, models=[LocalModel(None, 10**9)]
    ).shares
    assert (shares[0].size, shares[0].source) == (30 * 10**9, "recipe")


def test_several_gpus_share_weights_and_heads():
    """Logits do not get smaller; where there are more GPUs than heads, several keep the same one."""
    one, two, four = (made(tensor_parallel_size=count) for count in (1, 2, 4))
    assert share(two, "weights") == share(one, "weights") // 2
    assert share(two, "activations") == share(one, "activations")
    assert one.kv_needed is not None
    assert two.kv_needed == one.kv_needed // 2
    # Gemma 4's five full layers have two heads: on four GPUs each keeps one of them.
    twice = 5 * 2 * 512 * 2 * 16384
    assert four.kv_needed == one.kv_needed // 4 + twice // 2


@pytest.mark.parametrize("amount", [20 * GIB, "20G"])
def test_a_cache_of_given_size(amount):
    """`--kv-cache-memory-bytes` replaces what the share of the GPU would leave."""
    found = made(kv_cache_memory_bytes=amount)
    assert found.kv_left == 20 * GIB
    assert found.budget == found.fixed + 20 * GIB


@pytest.mark.parametrize(("written", "length"), [("8k", 8000), ("8K", 8192), ("1.5k", 1500), ("8192", 8192)])
def test_lengths_as_vllm_reads_them(written, length):
    """Its own suffixes, and `_` for `-`, of which the last one counts."""
    assert made(max_model_len=written).max_model_len == length
    assert (
        memory.estimate_memory(gemma(max_model_len=written), H200, mode=Mode.EAGER, tokens=15).max_model_len == length
    )


@pytest.mark.parametrize("word", [-1, "auto"])
def test_an_automatic_length_fits(word):
    card = GpuMemory(Hardware.H100, 64 * GIB, 64 * GIB, unified=False)
    found = made(card, max_model_len=word, gpu_memory_utilization=0.97)
    assert found.max_model_len == found.longest
    assert found.longest is not None
    assert found.longest < 262144
    for length, fits in ((found.longest, True), (found.longest + 1024, False)):
        requests = present(made(card, max_model_len=length, gpu_memory_utilization=0.97).requests)
        assert (requests >= 1) is fits


@pytest.mark.parametrize(
    ("hardware", "total", "vllm", "expected"),
    [
        (Hardware.H200, 140 * GIB, "0.26.0", (8192, 1024)),
        (Hardware.RTX_5090_LAPTOP, 24 * GIB, "0.26.0", (2048, 256)),
        (Hardware.AMPERE, 80 * GIB, "0.26.0", (2048, 256)),
        (Hardware.GB10, 119 * GIB, "0.32.0", (8192, 1024)),
        (Hardware.GB10, 119 * GIB, "0.33.0", (2048, 256)),
    ],
)
def test_default_batch_limits_match_vllm(hardware, total, vllm, expected):
    plain = gemma(vllm, **{"max-num-batched-tokens": None})
    assert memory.read_batch_limits(plain, GpuMemory(hardware, total, total, unified=False)) == expected
    given = gemma(vllm, **{"max-num-batched-tokens": 4096, "max-num-seqs": 4})
    assert memory.read_batch_limits(given, GpuMemory(hardware, total, total, unified=False)) == (4096, 4)


def test_vision_encoder_counts_only_if_images_served(monkeypatch):
    """Apart from the files' weights, which hold it, and beside those that were measured for text alone."""
    monkeypatch.setattr(nvml, "probe_gpus", GpuProbe)

    def read_shares(*words: str) -> dict[str, int | None]:
        estimate = present(command_line.planned(*words).memory)
        return {share.name: share.size for share in estimate.shares}

    text = read_shares("gemma-4-31b", "--gpu", "gb10")
    images = read_shares("gemma-4-31b", "--gpu", "gb10", "--variant", "vision")
    assert "vision encoder" not in text
    assert images["weights"] == text["weights"] == int(33e9)
    encoder = images["vision encoder"]
    assert encoder
    # Google's card says about 550 million weights of 16 bits, without the table of positions and the projection.
    assert 0.55e9 < encoder / 2 < 0.59e9
    files = read_shares("gemma-4-31b", "--gpu", "h200", "--variant", "vision")
    assert sum(files[name] or 0 for name in ("weights", "vision encoder")) == int(62e9)
    alone = read_shares("gemma-4-31b", "--gpu", "gb10", "--variant", "vision", "--set", "language-model-only=true")
    assert "vision encoder" not in alone


def test_vision_encoder_size_comes_from_hub_config():
    vision = {"model_type": "gemma4_vision", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
              "patch_size": 16, "position_embedding_size": 10240, "standardize": True}  # fmt: skip
    shape = read_model_shape({"text_config": {"hidden_size": 5376}, "vision_config": vision})
    assert measure_vision_encoder(shape) == 1_151_225_856
    other = read_model_shape({"text_config": {"hidden_size": 5376}, "vision_config": {"model_type": "qwen3_vl"}})
    assert measure_vision_encoder(other) is None
    assert measure_vision_encoder(SMALL) is None
