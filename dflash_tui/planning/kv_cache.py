"""Compute the KV cache of one request from the models' config.json, as vLLM reserves it. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from dflash_tui.planning.recipes.recipe import ModelConfig, VisionConfig

STEP = 1024
# If the most frequent kind has fewer than this many times the layers of the rarest, it sets the size of a group.
_ALIKE = 1.5
_BYTES = {"auto": 2, "float16": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1}
# Bytes per number of a state; models with states use float32 for every other setting.
_STATE_BYTES = {"float16": 2, "bfloat16": 2}
# What a layer caches, by names in layer_types and layers_block_type, and letters in hybrid_override_pattern.
_KINDS = {
    "full_attention": "full", "attention": "full", "chunked_attention": "full", "sliding_attention": "sliding",
    "linear_attention": "linear", "mamba": "mamba", "mlp": "none", "moe": "none",
    "*": "full", "M": "mamba", "-": "none", "E": "none",
}  # fmt: skip
_UNKNOWN = "unknown"
# Keys of models whose layers cache in other ways than those of `_KINDS`.
_OTHER_LAYERS = ("compress_ratios", "hybrid_layer_pattern", "linear_attn_config")
# A sparse-attention index has one byte per number, and a four-byte scale per 128 numbers.
_INDEXED, _SCALE = 128, 4
# The only vision encoder whose weights are counted.
GEMMA_VISION = "gemma4_vision"
# Keys of the language model in a config.json: beside a vision tower, or in a drafter of the speculators format.
_INNER = ("text_config", "transformer_layer_config")


class _Layers(NamedTuple):
    """The layers of one kind in a model, and the cached bytes of each."""

    kind: str
    number: int
    size: int


class KvCache(NamedTuple):
    """The KV cache of a target and, with speculation, its drafter."""

    models: tuple[ModelConfig | None, ...]
    """Configs of the target and the drafter."""
    in_flight: int
    """The most tokens that may be in flight."""
    tokens: int = 0
    """Drafted tokens per step."""
    split: int = 1
    """GPUs that it is divided over."""
    dtype: str = "auto"
    """vLLM's --kv-cache-dtype."""
    state_dtype: str = "auto"
    """vLLM's --mamba-ssm-cache-dtype."""

    @property
    def unknown(self) -> tuple[str, ...]:
        """The parts that cannot be computed."""
        target, *drafter = (self._measure_layers(model, 1) for model in self.models)
        if target is None:
            return ("KV cache",)
        return ("KV cache of the drafter",) if None in drafter else ()

    def needed(self, length: int) -> int | None:
        """Return the bytes per GPU for a request of `length` tokens, without the drafter's part if that is unknown.

        On an H200, vLLM 0.26.0 reported 3.753 GiB for 16384 tokens of Gemma 4 26B-A4B with its drafter; this gives
        3.750.
        """
        found = [self._measure_layers(model, length) for model in self.models]
        if found[0] is None:
            return None
        layers = [layer for model in found for layer in model or ()]
        group = _find_group(layers)
        return sum(-(-layer.number // group) * group * layer.size for layer in layers)

    def count_read(self, length: int) -> int | None:
        """Return the bytes per GPU of a request of `length` tokens without padding; None if a part is unknown.

        With one token in flight and no drafts they are what a step reads, and of a linear or Mamba layer one state that
        it reads and one that it writes.
        """
        found = [self._measure_layers(model, length) for model in self.models]
        return None if None in found else sum(layer.number * layer.size for model in found for layer in model or ())

    def longest(self, room: int, most: int | None) -> int | None:
        """Return the longest request that fits into `room` bytes, in whole 1024 tokens; None if not even 1024 fit."""
        if self.needed(1) is None:
            return None
        lengths = range(STEP, max(most or 1 << 20, STEP) + 1, STEP)
        fitting = bisect.bisect_right(lengths, room, key=lambda length: self.needed(length) or 0)
        return lengths[fitting - 1] if fitting else None

    def _measure_layers(self, model: ModelConfig | None, length: int) -> list[_Layers] | None:
        """Return the layers of one model by kind; None if its config or data type is unknown.

        A full-attention layer caches keys and values of all tokens, or one latent vector per token (MLA); a sliding
        layer those of its window and of the tokens in flight (vLLM's SlidingWindowSpec); a linear or Mamba layer caches
        states of fixed size.
        """
        element = _BYTES.get(self.dtype)
        if model is None or element is None:
            return None
        heads, width = model.num_key_value_heads, model.head_dim
        if not width and model.hidden_size and model.num_attention_heads:
            width = model.hidden_size // model.num_attention_heads
        kinds = classify_layers(model)
        if not (kinds and heads and width) or _UNKNOWN in kinds:
            return None
        sliding = min(length, (model.sliding_window or length) - 1 + self.in_flight)
        full_heads, full_width = model.num_global_key_value_heads or heads, model.global_head_dim or width
        # Heads are not divided: with more GPUs than heads, several GPUs keep the same head.
        number = _STATE_BYTES.get(self.state_dtype, 4)
        full = 2 * max(1, full_heads // self.split) * full_width * element * length
        by_kind = {
            "full": _measure_latents(model, element) * length if model.kv_lora_rank else full,
            "sliding": 2 * max(1, heads // self.split) * width * element * sliding,
            "linear": _states(model, self.tokens, number) // self.split,
            "mamba": _mamba_states(model, self.tokens, number) // self.split,
        }
        return [_Layers(kind, kinds.count(kind), size) for kind, size in by_kind.items() if kind in kinds]


def _find_group(layers: list[_Layers]) -> int:
    """Return the layers per group of vLLM's KV cache; each kind is padded to whole groups (kv_cache_utils.py).

    On an H200, vLLM 0.26.0 padded 48 and 16 layers of Qwen3.5-27B by 2 and 4, beside a drafter's five.
    """
    if len({layer.kind for layer in layers}) < 2:
        return 1
    fewest, most = (choose(layer.number for layer in layers) for choose in (min, max))
    return most if most < _ALIKE * fewest else fewest


def add_head(target: ModelConfig) -> ModelConfig:
    """Return a target with its draft head's (MTP) full-attention layer added."""
    names = {kind: name for name, kind in reversed(_KINDS.items())}
    kinds = tuple(names.get(kind, kind) for kind in (*classify_layers(target), "full"))
    return msgspec.structs.replace(target, num_hidden_layers=len(kinds), layer_types=kinds)


def read_model_shape(config: Mapping[str, Any]) -> ModelConfig | None:
    """Return a config.json's language model; None if a value is impossible."""
    text = _find_language_model(config)
    fields = {name: text.get(name) for name in ModelConfig.__struct_fields__}
    vision = config.get("vision_config")
    if isinstance(vision, Mapping) and vision.get("model_type") == GEMMA_VISION:
        fields["vision_config"] = {name: vision.get(name) for name in VisionConfig.__struct_fields__}
    if not fields["layer_types"] and any(text.get(name) for name in _OTHER_LAYERS):
        fields["layer_types"] = [_UNKNOWN]
    try:
        return msgspec.convert(fields, ModelConfig)
    except msgspec.ValidationError:
        return None


def _find_language_model(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = [config.get(name) for name in _INNER]
    return next((part for part in inner if isinstance(part, Mapping)), config)


def find_whole_number(config: Mapping[str, Any], names: Iterable[str]) -> int | None:
    """Return the first positive whole number under one of these names of a config.json's language model."""
    values = map(_find_language_model(config).get, names)
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def classify_layers(model: ModelConfig) -> list[str]:
    """Return the kind of each layer: `full`, `sliding`, `linear`, `mamba`, `none` or `unknown`."""
    count = model.num_hidden_layers or 0
    if named := model.layer_types or model.layers_block_type or model.hybrid_override_pattern:
        return [_KINDS.get(kind, _UNKNOWN) for kind in named][: count or None]
    if every := model.full_attention_interval:
        return ["linear" if (i + 1) % every else "full" for i in range(count)]
    if every := model.sliding_window_pattern:
        kinds = ["sliding" if (i + 1) % every else "full" for i in range(count)]
        return [*kinds[:-1], "full"]
    return ["full"] * count


def _states(model: ModelConfig, tokens: int, number: int) -> int:
    """Return the bytes of one request in one layer of gated delta network (vLLM's MambaSpec, 0.32.0).

    A state has matrices, with `number` bytes per element, and the convolution's tail. There are 2 + `tokens` states:
    one for accepted tokens, one per drafted token, and one where a cached prefix begins.
    """
    keys, values = model.linear_num_key_heads or 0, model.linear_num_value_heads or 0
    key, value = model.linear_key_head_dim or 0, model.linear_value_head_dim or 0
    tail = (model.linear_conv_kernel_dim or 1) - 1 + tokens
    return (values * key * value * number + (2 * keys * key + values * value) * tail * 2) * (2 + tokens)


def _mamba_states(model: ModelConfig, tokens: int, number: int) -> int:
    """Return the bytes of one request in one Mamba 2 layer, with as many states as a delta network."""
    heads, width, size = model.mamba_num_heads or 0, model.mamba_head_dim or 0, model.ssm_state_size or 0
    tail = (model.conv_kernel or 1) - 1 + tokens
    columns = heads * width + 2 * (model.n_groups or 1) * size
    return (heads * width * size * number + columns * tail * 2) * (2 + tokens)


def _measure_latents(model: ModelConfig, element: int) -> int:
    """Return the bytes of one token in one layer of multi-head latent attention, which every GPU keeps whole.

    Sparse attention also keeps an index that chooses the tokens.
    """
    index = model.index_head_dim or 0
    return ((model.kv_lora_rank or 0) + (model.qk_rope_head_dim or 0)) * element + index + index // _INDEXED * _SCALE
