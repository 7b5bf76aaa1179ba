"""Compute the KV cache that one request needs, from the models' config.json and as vLLM reserves it. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from dflash_tui.planning.recipes.recipe import ModelConfig, VisionConfig

STEP = 1024
# Below that many times the fewest layers of a kind the most make a group.
_ALIKE = 1.5
_BYTES = {"auto": 2, "float16": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1}
# Of a state; what else vLLM may be told, or take by itself, is float32 in the models that have such.
_STATE_BYTES = {"float16": 2, "bfloat16": 2}
# What layers keep, by the names of layer_types and layers_block_type, and by the letters of a hybrid_override_pattern.
_KINDS = {
    "full_attention": "full", "attention": "full", "chunked_attention": "full", "sliding_attention": "sliding",
    "linear_attention": "linear", "mamba": "mamba", "mlp": "none", "moe": "none",
    "*": "full", "M": "mamba", "-": "none", "E": "none",
}  # fmt: skip
_UNKNOWN = "unknown"
# Layers that keep neither all keys and values nor those of a window: which, nothing here knows.
_OTHER_LAYERS = ("compress_ratios", "hybrid_layer_pattern", "linear_attn_config")
# An index of 128 numbers has one byte for each, and a scale of four.
_INDEXED, _SCALE = 128, 4
# The encoder whose weights are counted.
GEMMA_VISION = "gemma4_vision"
# Where the language model stands in a config.json: beside a vision tower, or in a drafter of the speculators format.
_INNER = ("text_config", "transformer_layer_config")


class _Layers(NamedTuple):
    """The layers of one kind in a model, and the bytes of each."""

    kind: str
    number: int
    size: int


class KvCache(NamedTuple):
    """The KV cache of a target and, with speculation, its drafter."""

    models: tuple[ModelConfig | None, ...]
    """The target's config, and the drafter's."""
    in_flight: int
    """How many tokens may be under way."""
    tokens: int = 0
    """How many tokens are drafted per step."""
    split: int = 1
    """Over how many GPUs it is divided."""
    dtype: str = "auto"
    """vLLM's --kv-cache-dtype."""
    state_dtype: str = "auto"
    """vLLM's --mamba-ssm-cache-dtype."""

    @property
    def unknown(self) -> tuple[str, ...]:
        """What of it cannot be computed."""
        target, *drafter = (self._measure_layers(model, 1) for model in self.models)
        if target is None:
            return ("KV cache",)
        return ("KV cache of the drafter",) if None in drafter else ()

    def needed(self, length: int) -> int | None:
        """Return the bytes on each GPU for a request of `length` tokens, without the drafter's where it is unknown.

        On an H200 vLLM 0.26.0 said 3.753 GiB for 16384 tokens of Gemma 4 26B-A4B with its drafter; this gives 3.750.
        """
        found = [self._measure_layers(model, length) for model in self.models]
        if found[0] is None:
            return None
        layers = [layer for model in found for layer in model or ()]
        group = _find_group(layers)
        return sum(-(-layer.number // group) * group * layer.size for layer in layers)

    def longest(self, room: int, most: int | None) -> int | None:
        """Return the longest request that fits into `room` bytes, in whole 1024 tokens; None when not even 1024 do."""
        if self.needed(1) is None:
            return None
        lengths = range(STEP, max(most or 1 << 20, STEP) + 1, STEP)
        fitting = bisect.bisect_right(lengths, room, key=lambda length: self.needed(length) or 0)
        return lengths[fitting - 1] if fitting else None

    def _measure_layers(self, model: ModelConfig | None, length: int) -> list[_Layers] | None:
        """Return the layers of one model by kind, None when its config or the data type does not tell.

        Each full-attention layer keeps keys and values of all tokens, or a latent vector of each (MLA); a sliding layer
        those of its window and of the tokens that are under way (vLLM's SlidingWindowSpec); a linear layer, and one of
        Mamba, has states of fixed size.
        """
        element = _BYTES.get(self.dtype)
        if model is None or element is None:
            return None
        heads, width = model.num_key_value_heads, model.head_dim or _ratio(model)
        kinds = classify_layers(model)
        if not (kinds and heads and width) or _UNKNOWN in kinds:
            return None
        sliding = min(length, (model.sliding_window or length) - 1 + self.in_flight)
        full_heads, full_width = model.num_global_key_value_heads or heads, model.global_head_dim or width
        # A head is never divided: where there are more GPUs than heads, several keep the same one.
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
    """Return how many layers a group of vLLM's KV cache has; a kind is padded to whole groups (kv_cache_utils.py).

    On an H200 vLLM 0.26.0 added 2 and 4 layers to 48 and 16 of Qwen3.5-27B beside a drafter's five.
    """
    if len({layer.kind for layer in layers}) < 2:
        return 1
    fewest, most = (choose(layer.number for layer in layers) for choose in (min, max))
    return most if most < _ALIKE * fewest else fewest


def add_head(target: ModelConfig) -> ModelConfig:
    """Return a target with the layer of full attention by which it drafts for itself (MTP)."""
    names = {kind: name for name, kind in reversed(_KINDS.items())}
    kinds = tuple(names.get(kind, kind) for kind in (*classify_layers(target), "full"))
    return msgspec.structs.replace(target, num_hidden_layers=len(kinds), layer_types=kinds)


def read_model_shape(config: Mapping[str, Any]) -> ModelConfig | None:
    """Return what a config.json says of its language model; None when it says what no model can have."""
    inner = [config.get(name) for name in _INNER]
    text = next((part for part in inner if isinstance(part, Mapping)), config)
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


def classify_layers(model: ModelConfig) -> list[str]:
    """Return `full`, `sliding`, `linear`, `mamba`, `none` or `unknown` for each layer."""
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
    """Return the bytes that one request keeps in one layer of gated delta network (vLLM's MambaSpec, 0.32.0).

    A state is matrices, with `number` bytes for each of their numbers, and the convolution's tail. There is one for
    what was accepted, one per drafted token, and one where a prefix begins that is cached.
    """
    keys, values = model.linear_num_key_heads or 0, model.linear_num_value_heads or 0
    key, value = model.linear_key_head_dim or 0, model.linear_value_head_dim or 0
    tail = (model.linear_conv_kernel_dim or 1) - 1 + tokens
    return (values * key * value * number + (2 * keys * key + values * value) * tail * 2) * (2 + tokens)


def _mamba_states(model: ModelConfig, tokens: int, number: int) -> int:
    """Return the bytes that one request keeps in one layer of Mamba 2, in as many states as of a delta network."""
    heads, width, size = model.mamba_num_heads or 0, model.mamba_head_dim or 0, model.ssm_state_size or 0
    tail = (model.conv_kernel or 1) - 1 + tokens
    columns = heads * width + 2 * (model.n_groups or 1) * size
    return (heads * width * size * number + columns * tail * 2) * (2 + tokens)


def _measure_latents(model: ModelConfig, element: int) -> int:
    """Return the bytes of a token in one layer of multi-head latent attention, which every GPU keeps whole.

    Where attention is sparse, an index that chooses the tokens is kept as well.
    """
    index = model.index_head_dim or 0
    return ((model.kv_lora_rank or 0) + (model.qk_rope_head_dim or 0)) * element + index + index // _INDEXED * _SCALE


def _ratio(model: ModelConfig) -> int | None:
    return model.hidden_size // model.num_attention_heads if model.hidden_size and model.num_attention_heads else None
