"""Estimate the GPU memory that a launch needs, and compare it with what the GPU has. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from packaging.version import Version

from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import cuda_graphs, kv_cache
from dflash_tui.planning.kv_cache import GEMMA_VISION, STEP, KvCache
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes.recipe import Mode, ModelConfig
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.planning.serve_flags import is_text_only, normalize_flag_names, read_whole_number

if TYPE_CHECKING:  # the arithmetic itself asks no driver
    from dflash_tui.machine.gpus import Gpu

GIB = 1 << 30
# vLLM's own defaults, engine/arg_utils.py and config/cache.py of 0.20.2 to 0.33.0.
DEFAULT_UTILIZATION = 0.92
_LARGE_GPU = 70 * GIB
# CUDA context and libraries: 0.22 to 0.24 GiB on an H200 with vLLM 0.26.0.
_CONTEXT = int(0.25 * GIB)
# CUDA graphs: 0.56 GiB on an H200 with vLLM 0.26.0, Gemma 4 26B-A4B shape, target and drafter.
_GRAPHS = int(0.6 * GIB)
# Decode graphs alone: 0.09 GiB for 8 graphs of the target there.
_DECODE_GRAPHS = int(0.2 * GIB)
# Peak activations, fitted to four runs there (hidden size 2816, vocabulary 262144; sequences, batched tokens, GiB):
# without speculation 1024, 16384, 5.13; with it 1024, 16384, 9.13 and 1024, 32768, 10.59 and 4, 8192, 1.54. They grow
# with the tokens, and with one float32 matrix of logits (1 GiB for 1024 sequences) times three, or seven with drafts.
_ALWAYS = int(0.8 * GIB)
_PER_TOKEN = 17
_LOGITS = 3
_LOGITS_DRAFTING = 7
_PARAMETERS = re.compile(r"(?<![A-Za-z0-9.])(\d{1,4}(?:\.\d{1,3})?)[Bb](?![A-Za-z0-9])")
_MOST_BITS = 32
# From 0.26.0 on vLLM reserves a sliding window for two batches under way (pull request 47728).
_TWO_BATCHES = Version("0.26.0")


class GpuMemory(NamedTuple):
    """The memory a launch may use: bytes of one GPU in all and free, and whether it is the system's (unified)."""

    hardware: Hardware
    total: int
    free: int
    unified: bool


def smallest_gpu_memory(cards: Sequence[Gpu]) -> GpuMemory | None:
    """Return the memory of the GPUs that a server is divided over, by the smallest; None when it is unknown."""
    readable_cards = [card for card in cards if card.memory_total]
    if not readable_cards:
        return None
    total = min(card.memory_total or 0 for card in readable_cards)
    free = min((card.memory_total or 0) - (card.memory_used or 0) for card in readable_cards)
    return GpuMemory(readable_cards[0].hardware, total, free, readable_cards[0].unified)


_BITS = 16  # of a weight that is not quantized


class LocalModel(NamedTuple):
    """What is known of a model that is on this machine."""

    config: ModelConfig | None
    """Its shape, as its config.json says."""
    total_bytes: int | None
    """The size of its files."""


class MemoryShare(msgspec.Struct, frozen=True):
    """One part of the memory of a launch in bytes, None when it is unknown, and how it was found."""

    name: str
    size: int | None
    source: str
    least: bool = False
    """Whether it takes that much at least."""


class MemoryEstimate(msgspec.Struct, frozen=True):
    """The memory that a launch needs on one GPU, in bytes."""

    shares: tuple[MemoryShare, ...]
    """Its parts without the KV cache, in the order of loading."""
    budget: int
    """What vLLM takes: `--gpu-memory-utilization` of the whole."""
    total: int
    """The memory of the GPU."""
    free: int
    """The memory of the GPU that is free now."""
    unified: bool
    """Whether it is the machine's memory (GB10)."""
    kv_needed: int | None
    """The KV cache of one request of `max_model_len` tokens; None when unknown."""
    kv_left: int
    """What the budget leaves for the KV cache."""
    max_model_len: int | None
    """The longest request in tokens; None when unknown."""
    utilization: float
    """`--gpu-memory-utilization`, 0 to 1."""
    longest: int | None = None
    """The length, in whole 1024 tokens, of the longest request that fits into `kv_left`."""
    unknown: tuple[str, ...] = ()
    """The parts of which nothing is known, or what they take at least: the sums are lower bounds then."""

    @property
    def fixed(self) -> int:
        """What is needed whatever the KV cache."""
        return sum(share.size or 0 for share in self.shares)

    @property
    def certain(self) -> int:
        """What is needed at least: everything but the activations, which are an estimate, and one request's cache."""
        return sum(share.size or 0 for share in self.shares if share.name != "activations") + (self.kv_needed or 0)

    @property
    def knows_weights(self) -> bool:
        """Whether the size of the weights is known, and not only what they take at least."""
        return "weights" not in self.unknown

    @property
    def holds_request(self) -> bool:
        """Whether one request of the longest length fits, as far as that is known."""
        return self.kv_needed is None or self.kv_needed <= self.kv_left

    @property
    def requests(self) -> float | None:
        """How many requests of the longest length fit into the KV cache at a time."""
        return self.kv_left / self.kv_needed if self.kv_needed else None


def estimate_memory(
    resolved: ResolvedRecipe,
    machine: GpuMemory,
    *,
    mode: Mode,
    tokens: int,
    models: Sequence[LocalModel | None] = (),
) -> MemoryEstimate:
    """Return what a launch with `tokens` drafts per step needs on each GPU of `machine`.

    Weights and KV cache are divided by `tensor-parallel-size`. `models` are the target and the drafter where they are
    on this machine; the recipe has what is not known of them.
    """
    local_target, local_drafter = [*models, None, None][:2]
    resolved = cuda_graphs.apply_mode(resolved, mode, tokens)
    flags = normalize_flag_names(resolved.flags)
    target = (local_target and local_target.config) or resolved.target.config
    split = read_whole_number(flags, "tensor-parallel-size") or 1
    batched, sequences = read_batch_limits(resolved, machine)
    # A quantization while loading leaves something else than the files.
    files = None if resolved.weights_gb or not local_target else local_target.total_bytes
    weights = _share("weights", files, resolved.weights_gb or resolved.target.size_gb, split)
    if not resolved.weights_gb:
        weights = _quantize_weights(weights, resolved, target, split)
    shares = [weights if weights.size else _guess_least_weights(resolved, split)]
    encoder = None if is_text_only(flags) or shares[0].least else measure_vision_encoder(target)
    if encoder:
        # Each GPU has the whole of it. The files hold it; what was measured after quantizing was for text alone.
        if shares[0].size and not resolved.weights_gb:
            shares[0] = msgspec.structs.replace(shares[0], size=max(0, shares[0].size - encoder // split))
        shares.append(MemoryShare("vision encoder", encoder, "config.json"))
    draft = resolved.drafter if tokens else None
    if draft:
        shares.append(_share("drafter", local_drafter and local_drafter.total_bytes, draft.size_gb, split))
    shares.append(MemoryShare("activations", _activations(target, batched, sequences, tokens), "estimate from an H200"))
    if mode is not Mode.EAGER:
        graphs = _GRAPHS if mode is Mode.COMPILE else _DECODE_GRAPHS
        shares.append(MemoryShare("CUDA graphs", graphs, "measured on an H200"))
    shares.append(MemoryShare("CUDA context", _CONTEXT, "measured on an H200"))
    has_own_head = tokens and not draft and target and resolved.method is Method.MTP
    cached = kv_cache.add_head(target) if has_own_head and target else target
    cache = KvCache(
        models=(cached, (local_drafter and local_drafter.config) or draft.config) if draft else (cached,),
        in_flight=batched * (2 if Version(resolved.engine.vllm) >= _TWO_BATCHES else 1),
        tokens=tokens,
        split=split,
        dtype=str(flags.get("kv-cache-dtype", "auto")),
        state_dtype=str(flags.get("mamba-ssm-cache-dtype", "auto")),
    )
    return _compare_with_gpu(machine, flags, tuple(shares), cache, target.max_position_embeddings if target else None)


def _compare_with_gpu(
    machine: GpuMemory, flags: Mapping[str, Any], shares: tuple[MemoryShare, ...], cache: KvCache, most: int | None
) -> MemoryEstimate:
    """Return the estimate for `shares` and `cache`, where the model takes `most` tokens."""
    fixed = sum(share.size or 0 for share in shares)
    kv_bytes = read_whole_number(flags, "kv-cache-memory-bytes")
    utilization = _fraction(flags, "gpu-memory-utilization", DEFAULT_UTILIZATION)
    budget = fixed + kv_bytes if kv_bytes else int(machine.total * utilization)
    longest = cache.longest(budget - fixed, most)
    # With `auto` vLLM takes what fits.
    automatic = str(flags.get("max-model-len")) in {"-1", "auto"}
    length = (longest or STEP) if automatic else read_whole_number(flags, "max-model-len") or most
    needed = cache.needed(length) if length else None
    missing = cache.unknown or (("KV cache",) if needed is None else ())
    return MemoryEstimate(
        shares=shares,
        budget=budget,
        total=machine.total,
        free=machine.free,
        unified=machine.unified,
        kv_needed=needed,
        kv_left=budget - fixed,
        max_model_len=length,
        utilization=utilization,
        longest=longest,
        unknown=(*(share.name for share in shares if share.size is None or share.least), *missing),
    )


def measure_vision_encoder(model: ModelConfig | None) -> int | None:
    """Return the bytes of a Gemma 4 vision encoder's weights, which stay in 16 bits; None for another or none.

    Its parts are those of transformers' Gemma4VisionModel, with the projection to the language model behind it: some
    0.58B weights for 27 layers, where the cards say about 0.55B of the encoder alone.
    """
    vision = model.vision_config if model else None
    if not (model and model.hidden_size and vision and vision.model_type == GEMMA_VISION):
        return None
    width, inner, layers = vision.hidden_size, vision.intermediate_size, vision.num_hidden_layers
    patch, positions = vision.patch_size, vision.position_embedding_size
    if not (width and inner and layers and patch and positions):
        return None
    before = 3 * patch**2 * width + 2 * positions * width
    return 2 * (before + layers * (4 * width**2 + 3 * width * inner) + width * model.hidden_size)


def read_batch_limits(resolved: ResolvedRecipe, machine: GpuMemory) -> tuple[int, int]:
    """Return the tokens and the sequences that vLLM schedules at most in a step, by flag or by its default."""
    flags = normalize_flag_names(resolved.flags)
    # vLLM leaves the A100 out by name; no other Ampere GPU has that much memory.
    large = machine.total >= _LARGE_GPU and machine.hardware is not Hardware.AMPERE
    if machine.hardware is Hardware.GB10 and Version(resolved.engine.vllm) >= Version("0.33.0"):
        large = False
    tokens, sequences = (8192, 1024) if large else (2048, 256)
    return read_whole_number(flags, "max-num-batched-tokens") or tokens, read_whole_number(
        flags, "max-num-seqs"
    ) or sequences


def _activations(model: ModelConfig | None, batched: int, sequences: int, tokens: int) -> int | None:
    if model is None or not (model.hidden_size and model.vocab_size):
        return None
    logits = sequences * model.vocab_size * 4 * (_LOGITS_DRAFTING if tokens else _LOGITS)
    return _ALWAYS + logits + batched * model.hidden_size * 2 * _PER_TOKEN


def _share(name: str, files: int | None, recipe_gb: float | None, split: int) -> MemoryShare:
    if files:
        return MemoryShare(name, files // split, "files")
    return (
        MemoryShare(name, int(recipe_gb * 1e9) // split, "recipe") if recipe_gb else MemoryShare(name, None, "unknown")
    )


def _quantize_weights(
    weights: MemoryShare, resolved: ResolvedRecipe, target: ModelConfig | None, split: int
) -> MemoryShare:
    """Return the weights as `--quantization` of a target in 16 bits leaves them: its embeddings stay as they are."""
    flag = str(normalize_flag_names(resolved.flags).get("quantization") or "")
    bits = read_bits(flag)
    if not (bits and bits < _BITS and weights.size) or resolved.target.quantization.lower() not in {"", "bf16"}:
        return weights
    embeddings = 2 * 2 * ((target and target.vocab_size) or 0) * ((target and target.hidden_size) or 0) // split
    layers = max(0, weights.size - embeddings)
    size = weights.size - layers + layers * bits // _BITS
    return msgspec.structs.replace(weights, size=size, source=f"{weights.source}, in {flag} while loading")


def _guess_least_weights(resolved: ResolvedRecipe, split: int) -> MemoryShare:
    """Return what the target's weights take at least, by how many they are and the bits of its quantization.

    The recipe or the model's name says how many; of a mixture of experts a name may count those of one token alone.
    """
    name, flag = resolved.target.model.rstrip("/").rpartition("/")[2], resolved.flags.get("quantization")
    texts = (resolved.target.quantization, str(flag or ""))
    named, least = _PARAMETERS.search(name), min((bits for bits in map(read_bits, texts) if bits), default=0)
    billions = resolved.target.parameters_b or (float(named[1]) if named else 0.0)
    if not (billions and least):
        return MemoryShare("weights", None, "unknown")
    source = "the recipe" if resolved.target.parameters_b else "the model's name"
    size = int(billions * 1e9 * least / 8) // split
    return MemoryShare("weights", size, f"{billions:g}B of {least} bits by {source}", least=True)


def read_bits(quantization: str) -> int | None:
    """Return the bits of a weight, the fewest by what the quantization is called; None where that does not say."""
    numbers = map(int, re.findall(r"\d{1,3}", quantization))
    return min((number for number in numbers if 1 < number <= _MOST_BITS), default=None)


def read_max_model_len(resolved: ResolvedRecipe) -> int | None:
    """Return the tokens that `--max-model-len` lets a request have; None where it is not given, or `auto`."""
    return read_whole_number(normalize_flag_names(resolved.flags), "max-model-len")


def _fraction(flags: Mapping[str, Any], name: str, default: float) -> float:
    try:
        value = float(str(flags[name]))
    except (KeyError, ValueError):
        return default
    return value if math.isfinite(value) else default
