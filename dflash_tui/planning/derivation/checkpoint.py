"""What a checkpoint's config.json and name say of its architecture, shape and precision, and how it drafts. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

import msgspec

from dflash_tui.planning import kv_cache
from dflash_tui.planning.recipes.recipe import ModelConfig

# None of a real model counts further.
_MOST = 1 << 24
_LONGEST_WORD = 128
# The layers whose states a drafter reads, and by how much vLLM counts them higher.
_LAYER_IDS = {"target_layer_ids": 1, "aux_hidden_state_layer_ids": 0, "eagle_aux_hidden_state_layer_ids": 0}
_HEAD_LAYERS = ("mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_modules")
# The token of what is to be drafted, by the names that vLLM looks it up by.
_MASK_TOKENS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_REMOTE_CODE = "auto_map"
_MTP_NAME = re.compile(r"(?:^|[._])(?:mtp|nextn|eh_proj)")
_LAYER = re.compile(r"\blayers\.(\d{1,6})\.")


class Precision(StrEnum):
    """How weights are stored, where a class of machine treats that in its own way."""

    NVFP4 = "nvfp4"
    FP8_BLOCKS = "fp8 in blocks"
    OTHER = ""


class Checkpoint(msgspec.Struct, frozen=True):
    """A model by its config.json. What it does not say is None or empty."""

    name: str
    architecture: str = ""
    """The first of its architectures."""
    model_type: str = ""
    """Its kind, by transformers."""
    shape: ModelConfig | None = None
    """What the memory arithmetic reads."""
    quantization: str = ""
    """How its weights are quantized, by its quantization_config."""
    precision: Precision = Precision.OTHER
    """How its weights are stored, by its quantization_config."""
    experts: bool = False
    head_layers: int = 0
    """The layers of a head of its own that drafts (MTP); 0 without one."""
    remote_code: bool = False
    """Whether it brings code of its own."""
    speculators: str = ""
    speculative_tokens: int | None = None
    """How many tokens per step it asks for, in the speculators format."""
    verifier: str = ""
    """The target that it was made for, in the speculators format: a repository or somebody's folder."""
    verifier_architecture: str = ""
    has_mtp_weights: bool | None = None
    """Whether its files hold a head that drafts (MTP), by the index of its weights; None where that is not known."""
    block_size: int | None = None
    """How many tokens its block holds, the anchor included."""
    mask_token: int | None = None
    """The token that stands in its block for each that is to be drafted."""
    anchored: bool = False
    """Whether it drafts from the anchor, too, so that a block gives one token more."""
    last_layer_id: int | None = None
    """The highest of the target's layers whose states it reads, counted from 1."""
    draft_vocab: int | None = None
    """The size of its own vocabulary, where it maps it onto the target's."""
    target_hidden: int | None = None
    """The width of the target that it was made for, where that is not its own."""
    chat_template: str | None = None
    """Its chat template, or several as one text; None where none is known."""
    tokens: frozenset[str] | None = None
    """The vocabulary of its tokenizer, special tokens at least; None where it is not known."""
    gated: bool | None = None
    """Whether its terms have to be accepted on the hub."""
    size_gb: float | None = None
    """The size of its files in 10^9 bytes."""

    dspark_block: int | None = None
    """How many tokens the DSpark drafter within a target drafts per step."""
    forced_window: bool = False
    """Whether it says that all its layers slide, whatever their types."""

    @property
    def slides(self) -> bool:
        """Whether some of its layers have a sliding window."""
        return self.forced_window or "sliding" in self._layer_kinds

    @property
    def is_mixed(self) -> bool:
        """Whether some of its layers slide and others do not."""
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
    """Return what a config.json says; fields of another type than a model's count as not said.

    `weight_names` are those of its tensors, by the index of its weights; empty where that is not known.
    """
    text = _mapping(config.get("text_config")) or config
    draft = _mapping(config.get("dflash_config")) | _mapping(config.get("transformer_layer_config"))
    places = [config, draft, text]
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
        last_layer_id=_find_last_layer(places),
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
    """Whether tensors are of an MTP head: named so, or of a layer behind the last (DeepSeek, GLM)."""
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


def _find_last_layer(places: list[Mapping[str, Any]]) -> int | None:
    ids = (number + more for place in places for key, more in _LAYER_IDS.items() for number in _numbers(place, key))
    return max(ids, default=None)


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


T = TypeVar("T")

_SUFFIX = re.compile(
    r"[-_.](?:quantized[-_.])?(fp8|nvfp4|mxfp4|int4|int8|awq|gptq|w4a16|w8a8|bf16|fp16)"
    r"(?:[-_.](?:dynamic|block|static|autoround|int4|4bit|8bit|w4a4|ct))?$",
    re.IGNORECASE,
)
# Names of one and the same; what has no suffix is in 16 bits.
_SAME = {"awq": "int4", "gptq": "int4", "w4a16": "int4", "w8a8": "int8", "bf16": "", "fp16": ""}
OWN_PRECISION = "the target's own precision"
"""What is said of a drafter that is chosen by its precision."""


class NamedPrecision(NamedTuple):
    """A repository's name without its precision, and that precision in small letters; empty without one."""

    base: str
    precision: str


def split_precision(name: str) -> NamedPrecision:
    """Return the name of a repository or folder in its two parts."""
    name = name.rstrip("/").lower()
    suffix = _SUFFIX.search(name)
    if suffix is None:
        return NamedPrecision(name, "")
    word = suffix[1]
    return NamedPrecision(name[: suffix.start()], _SAME.get(word, word))


def arrange_by_precision(drafters: Iterable[T], target: str, read_name: Callable[[T], str]) -> list[tuple[T, bool]]:
    """Return drafters in their order, and whether each was put before others for its precision.

    Those whose names differ in the precision alone stand together, where the first of them stood: first that of the
    target, by its name.
    """
    wanted, groups = split_precision(target).precision, dict[str, list[tuple[str, T]]]()
    for drafter in drafters:
        base, precision = split_precision(read_name(drafter))
        groups.setdefault(base, []).append((precision, drafter))
    return [
        (drafter, precision == wanted and len(group) > 1)
        for group in groups.values()
        for precision, drafter in sorted(group, key=lambda member: member[0] != wanted)
    ]
