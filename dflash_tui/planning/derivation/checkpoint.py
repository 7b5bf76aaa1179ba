"""Read a checkpoint's architecture, shape, precision and drafting from its config.json and name. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from dflash_tui.planning import kv_cache
from dflash_tui.planning.recipes.recipe import ModelConfig

# No count of a real model is larger.
_MOST = 1 << 24
_LONGEST_WORD = 128
# Keys of the target layers whose states a drafter reads, and the offset that vLLM adds to them.
_LAYER_IDS = {"target_layer_ids": 1, "aux_hidden_state_layer_ids": 0, "eagle_aux_hidden_state_layer_ids": 0}
_HEAD_LAYERS = ("mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_modules")
# Names by which vLLM looks up the mask token.
_MASK_TOKENS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_REMOTE_CODE = "auto_map"
_MTP_NAME = re.compile(r"(?:^|[._])(?:mtp|nextn|eh_proj)")
_LAYER = re.compile(r"\blayers\.(\d{1,6})\.")


class Precision(StrEnum):
    """How weights are stored, where a class of machine treats it specially."""

    NVFP4 = "nvfp4"
    FP8_BLOCKS = "fp8 in blocks"
    OTHER = ""


class Checkpoint(msgspec.Struct, frozen=True):
    """A model by its config.json. Unknown fields are None or empty."""

    name: str
    architecture: str = ""
    """The first architecture of config.json."""
    model_type: str = ""
    """The `model_type` of transformers."""
    shape: ModelConfig | None = None
    """The fields that the memory arithmetic reads."""
    quantization: str = ""
    """The `quant_method` of its quantization_config."""
    precision: Precision = Precision.OTHER
    """How its weights are stored, by its quantization_config."""
    experts: bool = False
    head_layers: int = 0
    """Layers of its own draft head (MTP); 0 without one."""
    remote_code: bool = False
    """Whether the repository brings its own code."""
    speculators: str = ""
    speculative_tokens: int | None = None
    """Tokens per step that its config asks for, in the speculators format."""
    verifier: str = ""
    """The target that it was made for, in the speculators format: a repository or someone's folder."""
    verifier_architecture: str = ""
    has_mtp_weights: bool | None = None
    """Whether its weight index lists an MTP head; None if there is no index."""
    block_size: int | None = None
    """Tokens in its block, the anchor included."""
    mask_token: int | None = None
    """The token that fills the block's positions to be drafted."""
    anchored: bool = False
    """Whether it also drafts from the anchor, so that a block gives one token more."""
    last_layer_id: int | None = None
    """The highest target layer whose states it reads, counted from 1."""
    draft_vocab: int | None = None
    """The size of its draft vocabulary, if it maps that onto the target's."""
    target_hidden: int | None = None
    """The hidden size of the target that it was made for, if it differs from its own."""
    chat_template: str | None = None
    """Its chat template, or several joined; None if unknown."""
    tokens: frozenset[str] | None = None
    """Its tokenizer's vocabulary, at least the special tokens; None if unknown."""
    gated: bool | None = None
    """Whether its terms must be accepted on the hub."""
    size_gb: float | None = None
    """The size of its files in 10^9 bytes."""

    dspark_block: int | None = None
    """Tokens per step of the DSpark drafter inside a target."""
    forced_window: bool = False
    """Whether its config forces a sliding window on all layers, whatever their types."""

    @property
    def slides(self) -> bool:
        """Whether some layers have a sliding window."""
        return self.forced_window or "sliding" in self._layer_kinds

    @property
    def is_mixed(self) -> bool:
        """Whether some layers have a sliding window and others do not."""
        return {"sliding", "full"} <= self._layer_kinds

    @property
    def _layer_kinds(self) -> set[str]:
        return set(kv_cache.classify_layers(self.shape)) if self.shape else set()


def read_checkpoint(
    name: str,
    config: Mapping[str, Any],
    *,
    gated: bool | None = None,
    size_gb: float | None = None,
    chat_template: str | None = None,
    tokens: frozenset[str] | None = None,
    weight_names: Collection[str] = (),
) -> Checkpoint:
    """Return the checkpoint of a config.json; fields of an unexpected type count as missing.

    `weight_names` are the tensors of its weight index; empty if unknown.
    """
    text = _mapping(config.get("text_config")) or config
    draft = _mapping(config.get("dflash_config")) | _mapping(config.get("transformer_layer_config"))
    places = [config, draft, text]
    layer_ids = (n + more for place in places for key, more in _LAYER_IDS.items() for n in _numbers(place, key))
    verifier = _mapping(_mapping(config.get("speculators_config")).get("verifier"))
    return Checkpoint(
        name=name,
        architecture=_read_architecture(config),
        model_type=_text(config, "model_type"),
        shape=kv_cache.read_model_shape(config),
        quantization=_text(_mapping(config.get("quantization_config")), "quant_method"),
        precision=_read_precision(_mapping(config.get("quantization_config"))),
        experts=any((_number(place, key) or 0) > 1 for place in (config, text) for key in _EXPERTS),
        head_layers=max((_number(place, key) or 0 for place in (config, text) for key in _HEAD_LAYERS), default=0),
        remote_code=bool(_mapping(config.get(_REMOTE_CODE))),
        speculators=_text(config, "speculators_model_type"),
        speculative_tokens=_read_speculative_tokens(config),
        verifier=_text(verifier, "name_or_path"),
        verifier_architecture=_read_architecture(verifier),
        block_size=_first(places, "block_size") or _first(places, "dspark_block_size"),
        mask_token=next((number for key in _MASK_TOKENS if (number := _first(places, key)) is not None), None),
        anchored=any(place.get("sample_from_anchor") is True for place in places),
        last_layer_id=max(layer_ids, default=None),
        draft_vocab=_first(places, "draft_vocab_size"),
        target_hidden=_first(places, "target_hidden_size"),
        has_mtp_weights=_has_mtp_weights(weight_names, _number(text, "num_hidden_layers")) if weight_names else None,
        chat_template=chat_template,
        tokens=tokens,
        gated=gated,
        size_gb=size_gb,
        dspark_block=_first([config, text], "dspark_block_size"),
        forced_window=draft.get("use_swa") is True,
    )


def _has_mtp_weights(names: Collection[str], layers: int | None) -> bool:
    """Whether the names include an MTP head: by name, or as a layer behind the last (DeepSeek, GLM)."""
    return any(_MTP_NAME.search(name) or ((match := _LAYER.search(name)) and int(match[1]) >= (layers or _MOST))
               for name in names)  # fmt: skip


def _read_architecture(config: Mapping[str, Any]) -> str:
    architectures = config.get("architectures")
    return _plain(architectures[0]) if isinstance(architectures, list) and architectures else ""


def _read_precision(config: Mapping[str, Any]) -> Precision:
    inner = _mapping(config.get("quantization"))
    names = {_text(place, key).lower() for place in (config, inner) for key in ("quant_method", "quant_algo", "format")}
    if any("nvfp4" in name or name == "modelopt_fp4" for name in names):
        return Precision.NVFP4
    return Precision.FP8_BLOCKS if "fp8" in names and config.get("weight_block_size") else Precision.OTHER


def _read_speculative_tokens(config: Mapping[str, Any]) -> int | None:
    proposals = _mapping(config.get("speculators_config")).get("proposal_methods")
    first = proposals[0] if isinstance(proposals, list) and proposals else None
    return _number(_mapping(first), "speculative_tokens")


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(place: Mapping[str, Any], key: str) -> str:
    return _plain(place.get(key))


def _plain(value: object) -> str:
    return value if isinstance(value, str) and value.isprintable() and len(value) <= _LONGEST_WORD else ""


def _number(place: Mapping[str, Any], key: str) -> int | None:
    value = place.get(key)
    return value if type(value) is int and 0 <= value <= _MOST else None


def _numbers(place: Mapping[str, Any], key: str) -> list[int]:
    values = place.get(key)
    return [value for value in values if type(value) is int and 0 <= value <= _MOST] if isinstance(values, list) else []


def _first(places: list[Mapping[str, Any]], key: str) -> int | None:
    return next((number for place in places if (number := _number(place, key)) is not None), None)
