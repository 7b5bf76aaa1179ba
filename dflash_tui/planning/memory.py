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

if TYPE_CHECKING:  # only the types are needed
    from dflash_tui.machine.gpus import Gpu

GIB = 1 << 30
# vLLM's defaults, engine/arg_utils.py and config/cache.py of 0.20.2 to 0.33.0.
DEFAULT_UTILIZATION = 0.92
_LARGE_GPU = 70 * GIB
# CUDA context and libraries: 0.22 to 0.24 GiB on an H200 with vLLM 0.26.0.
_CONTEXT = int(0.25 * GIB)
# CUDA graphs: 0.56 GiB on an H200 with vLLM 0.26.0, Gemma 4 26B-A4B shape, target and drafter.
_GRAPHS = int(0.6 * GIB)
# Decode graphs alone: 0.09 GiB for 8 graphs of the target on that H200.
_DECODE_GRAPHS = int(0.2 * GIB)
# Peak activations, fitted to four runs on that H200 (hidden size 2816, vocabulary 262144; sequences, batched tokens,
# GiB): without speculation 1024, 16384, 5.13; with it 1024, 16384, 9.13 and 1024, 32768, 10.59 and 4, 8192, 1.54. They
# grow with the tokens, and with three float32 matrices of logits (1 GiB each for 1024 sequences), seven with drafts.
_ALWAYS = int(0.8 * GIB)
_PER_TOKEN = 17
_LOGITS = 3
_LOGITS_DRAFTING = 7
_PARAMETERS = re.compile(r"(?<![A-Za-z0-9.])(\d{1,4}(?:\.\d{1,3})?)[Bb](?![A-Za-z0-9])")
_MOST_BITS = 32
# From 0.26.0 on vLLM reserves a sliding window for two batches in flight (pull request 47728).
_TWO_BATCHES = Version("0.26.0")


class GpuMemory(NamedTuple):
    """The memory of one GPU in bytes, total and free, and whether it is the machine's (unified)."""

    hardware: Hardware
    total: int
    free: int
    unified: bool


def smallest_gpu_memory(cards: Sequence[Gpu]) -> GpuMemory | None:
    """Return the memory of the smallest of a server's GPUs; None if it is unknown."""
    readable_cards = [card for card in cards if card.memory_total]
    if not readable_cards:
        return None
    total = min(card.memory_total or 0 for card in readable_cards)
    free = min((card.memory_total or 0) - (card.memory_used or 0) for card in readable_cards)
    return GpuMemory(readable_cards[0].hardware, total, free, readable_cards[0].unified)


_BITS = 16  # of an unquantized weight


class LocalModel(NamedTuple):
    """A model on this machine."""

    config: ModelConfig | None
    """Its shape, from config.json; None if unknown."""
    total_bytes: int | None
    """The size of its files; None if unknown."""


class MemoryShare(msgspec.Struct, frozen=True):
    """One part of a launch's memory in bytes, None if unknown, and the source of the figure."""

    name: str
    size: int | None
    source: str
    least: bool = False
    """Whether `size` is a lower bound."""


class MemoryEstimate(msgspec.Struct, frozen=True):
    """The memory in bytes that a launch needs on one GPU."""

    shares: tuple[MemoryShare, ...]
    """All parts but the KV cache, in the order of loading."""
    budget: int
    """The memory that vLLM takes: `--gpu-memory-utilization` of `total`."""
    total: int
    free: int
    unified: bool
    """Whether it is the machine's memory (GB10)."""
    kv_needed: int | None
    """The KV cache of one request of `max_model_len` tokens; None if unknown."""
    kv_left: int
    """The budget left for the KV cache."""
    max_model_len: int | None
    """The longest request in tokens; None if unknown."""
    utilization: float
    """`--gpu-memory-utilization`, 0 to 1."""
    longest: int | None = None
    """The longest request that fits into `kv_left`, in whole 1024 tokens."""
    unknown: tuple[str, ...] = ()
    """The parts of unknown size, or with a lower bound only; the sums are lower bounds then."""

    @property
    def fixed(self) -> int:
        """The memory of all parts but the KV cache."""
        return sum(share.size or 0 for share in self.shares)

    @property
    def certain(self) -> int:
        """The memory needed at least: all but the activations, which are estimated, and one request's KV cache."""
        return sum(share.size or 0 for share in self.shares if share.name != "activations") + (self.kv_needed or 0)

    @property
    def knows_weights(self) -> bool:
        """Whether the size of the weights is known, not only a lower bound."""
        return "weights" not in self.unknown

    @property
    def holds_request(self) -> bool:
        """Whether one request of the longest length fits; True if its size is unknown."""
        return self.kv_needed is None or self.kv_needed <= self.kv_left

    @property
    def requests(self) -> float | None:
        """Requests of the longest length that fit into the KV cache at once; None if unknown."""
        return self.kv_left / self.kv_needed if self.kv_needed else None


def estimate_memory(
    resolved: ResolvedRecipe,
    machine: GpuMemory,
    *,
    mode: Mode,
    tokens: int,
    models: Sequence[LocalModel | None] = (),
) -> MemoryEstimate:
    """Return the memory that a launch with `tokens` drafts per step needs on each GPU of `machine`.

    Weights and KV cache are divided by `tensor-parallel-size`. `models` are target and drafter where they are on this
    machine; the recipe supplies what they lack.
    """
    local_target, local_drafter = [*models, None, None][:2]
    resolved = cuda_graphs.apply_mode(resolved, mode, tokens)
    flags = normalize_flag_names(resolved.flags)
    target = (local_target and local_target.config) or resolved.target.config
    split = read_whole_number(flags, "tensor-parallel-size") or 1
    batched, sequences = read_batch_limits(resolved, machine)
    # Quantizing while loading makes the weights differ from the files.
    files = None if resolved.weights_gb or not local_target else local_target.total_bytes
    weights = _share("weights", files, resolved.weights_gb or resolved.target.size_gb, split)
    if not resolved.weights_gb:
        weights = _quantize_weights(weights, resolved, target, split)
    shares = [weights if weights.size else _guess_least_weights(resolved, split)]
    encoder = None if is_text_only(flags) or shares[0].least else measure_vision_encoder(target)
    if encoder:
        # Each GPU holds all of it. The files include it; `weights_gb` was measured for text alone.
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
    fixed = sum(share.size or 0 for share in shares)
    kv_bytes = read_whole_number(flags, "kv-cache-memory-bytes")
    utilization = _fraction(flags, "gpu-memory-utilization", DEFAULT_UTILIZATION)
    budget = fixed + kv_bytes if kv_bytes else int(machine.total * utilization)
    longest = cache.longest(budget - fixed, most)
    # With `auto` vLLM takes the longest length that fits.
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
    """Return the bytes of a Gemma 4 vision encoder's weights in 16 bits; None for another encoder, or none.

    Counts transformers' Gemma4VisionModel and the projection behind it: about 0.58B weights for 27 layers; model cards
    say about 0.55B for the encoder alone.
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
    """Return the most tokens and sequences that vLLM schedules per step, by flag or default."""
    flags = normalize_flag_names(resolved.flags)
    # vLLM excludes the A100 by name; no other Ampere GPU has that much memory.
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
    size = int(recipe_gb * 1e9) // split if recipe_gb else None
    return MemoryShare(name, size, "recipe" if recipe_gb else "unknown")


def _quantize_weights(
    weights: MemoryShare, resolved: ResolvedRecipe, target: ModelConfig | None, split: int
) -> MemoryShare:
    """Return the weights after `--quantization` of a 16-bit target, whose embeddings stay in 16 bits."""
    flag = str(normalize_flag_names(resolved.flags).get("quantization") or "")
    bits = read_bits(flag)
    if not (bits and bits < _BITS and weights.size) or resolved.target.quantization.lower() not in {"", "bf16"}:
        return weights
    embeddings = 2 * 2 * ((target and target.vocab_size) or 0) * ((target and target.hidden_size) or 0) // split
    layers = max(0, weights.size - embeddings)
    size = weights.size - layers + layers * bits // _BITS
    return msgspec.structs.replace(weights, size=size, source=f"{weights.source}, in {flag} while loading")


def _guess_least_weights(resolved: ResolvedRecipe, split: int) -> MemoryShare:
    """Return a lower bound for the target's weights, from their number and the bits of the quantization.

    The number comes from the recipe or the model's name; a mixture of experts may be named by its active weights.
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
    """Return the bits per weight that a quantization's name says, the fewest of several; None if it says none."""
    numbers = map(int, re.findall(r"\d{1,3}", quantization))
    return min((number for number in numbers if 1 < number <= _MOST_BITS), default=None)


def read_max_model_len(resolved: ResolvedRecipe) -> int | None:
    """Return the tokens of `--max-model-len`; None if it is not set, or `auto`."""
    return read_whole_number(normalize_flag_names(resolved.flags), "max-model-len")


def _fraction(flags: Mapping[str, Any], name: str, default: float) -> float:
    try:
        value = float(str(flags[name]))
    except (KeyError, ValueError):
        return default
    return value if math.isfinite(value) else default
