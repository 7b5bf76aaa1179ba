"""Compute what a decoding step must read from a GPU's memory, and the least time that takes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from dflash_tui.events import Amount
from dflash_tui.machine.hardware import TYPICAL
from dflash_tui.planning import kv_cache
from dflash_tui.planning.kv_cache import KvCache
from dflash_tui.planning.memory import read_bits
from dflash_tui.planning.methods import Method
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.recipe import ModelConfig
from dflash_tui.planning.serve_flags import parse_whole_number

_EXPERTS = re.compile(r"(?:^|\.)experts\.")
# An encoder reads its weights once per prompt, and a draft head's layers are not the target's.
_NOT_READ = re.compile(r"vision|visual|audio|multi_?modal|mm_projector|(?:^|\.)mtp\.")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
# The keys of the routed experts of a layer, and of how many a token takes.
_NUMBER = ("num_experts", "num_local_experts", "n_routed_experts")
_CHOSEN = ("num_experts_per_tok", "top_k_experts", "moe_top_k", "moe_topk")
_UNQUANTIZED = frozenset({"BF16", "F16"})
# Their drafter, if any, runs once per step; other drafters run once per drafted token, or by rules of their own.
_ONE_PASS = frozenset({Method.DFLASH, Method.NGRAM, Method.SUFFIX, Method.NONE})


class Tensor(NamedTuple):
    """A tensor of a weight file."""

    name: str
    dtype: str
    size: int


class ModelWeights(NamedTuple):
    """The bytes of a model's weights on the disk, by how a step reads them; what a step reads no more is left out."""

    dense: int
    """Whole, in every step."""
    head: int
    """Whole, for the logits; 0 for a drafter that uses the target's."""
    experts: int = 0
    """Those of the experts that the tokens of the step choose."""
    number: int | None = None
    """The experts of a layer, and then those per token; None if unknown."""
    chosen: int | None = None
    is_quantized: bool = False

    def count_read(self, tokens: float, factor: float = 1.0) -> float | None:
        """Return the bytes of a pass over `tokens`, without the head, where loading shrinks weights by `factor`."""
        if not self.experts and not self.number:
            return self.dense * factor
        if not (self.experts and self.number and self.chosen and self.chosen <= self.number):
            return None
        share = expect_experts(self.number, self.chosen, tokens) / self.number
        return (self.dense + self.experts * share) * factor


class StepModel(NamedTuple):
    """A model of a server as its files on this machine have it; None is unknown."""

    name: str
    config: ModelConfig | None = None
    weights: ModelWeights | None = None


class StepLimit(msgspec.Struct, frozen=True):
    """What a step must read for one kind of prompt, and how long it took; None is unknown."""

    step_bytes: Amount | None
    least_seconds: Amount | None
    seconds: Amount | None

    @property
    def share(self) -> float | None:
        """How much of the speed that the memory allows was reached."""
        return self.least_seconds / self.seconds if self.least_seconds and self.seconds else None


class MemoryLimit(msgspec.Struct, frozen=True):
    """The steps of a bench against the memory's bandwidth in bytes per second; `unknown` says what is missing."""

    kinds: dict[str, StepLimit]
    """By kind of prompt; with several streams, of all under an empty name."""
    bandwidth: Amount | None = None
    is_measured: bool = False
    """Whether the bandwidth was measured by copying; else it is the published one."""
    unknown: tuple[str, ...] = ()


def expect_experts(number: int, chosen: int, tokens: float) -> float:
    """Return how many of a layer's experts some token is expected to choose, if each chooses evenly and by itself."""
    missed: float = (1 - chosen / number) ** tokens
    return number * (1 - missed)


def sort_weights(tensors: Iterable[Tensor], config: Mapping[str, Any]) -> ModelWeights:
    """Return a model's weights from the tensors of its files and its config.json."""
    shape = kv_cache.read_model_shape(config)
    layers = (shape and shape.num_hidden_layers) or 1 << 30
    sizes, quantized = dict.fromkeys(("dense", "head", "table", "experts"), 0), False
    for tensor in tensors:
        layer = _LAYER.search(tensor.name)
        if _NOT_READ.search(tensor.name) or (layer and int(layer[1]) >= layers):
            continue
        part = "experts" if _EXPERTS.search(tensor.name) else "dense"
        if "embed_tokens" in tensor.name:
            part = "table" if "per_layer" not in tensor.name else "looked up"
        elif "lm_head" in tensor.name:
            part = "head"
        sizes[part] = sizes.get(part, 0) + tensor.size
        quantized = quantized or (part in {"dense", "experts"} and tensor.dtype not in {*_UNQUANTIZED, "F32"})
    number, chosen = (kv_cache.find_whole_number(config, names) for names in (_NUMBER, _CHOSEN))
    # With tied embeddings the table gives the logits.
    return ModelWeights(sizes["dense"], sizes["head"] or sizes["table"], sizes["experts"], number, chosen, quantized)


class StepReader:
    """Knows what the steps of one launch read, by its plan and its models' files."""

    def __init__(self, plan: Plan, target: StepModel, drafter: StepModel | None) -> None:
        """Read a plan; what it leaves open is `unknown`."""
        self._plan, self._target, self._drafter = plan, target, drafter if plan.num_speculative_tokens else None
        self._split = parse_whole_number(plan.find_flag("tensor-parallel-size") or "") or 1
        models = [model for model in (target, self._drafter) if model]
        self._cache = KvCache(
            tuple(model.config for model in models),
            in_flight=1,
            split=self._split,
            dtype=plan.find_flag("kv-cache-dtype") or "auto",
            state_dtype=plan.find_flag("mamba-ssm-cache-dtype") or "auto",
        )
        typical = TYPICAL.get(plan.hardware)
        self.bandwidth = typical.bandwidth if typical else None
        self.is_measured = bool(typical and typical.bandwidth_measured)
        self.unknown = tuple(self._list_unknown(models))

    def _list_unknown(self, models: list[StepModel]) -> Iterable[str]:
        plan = self._plan
        if self.bandwidth is None:
            yield f"the memory bandwidth of the class {plan.hardware}"
        for model in models:
            if model.weights is None:
                yield f"the weights of {model.name}, which has no safetensors files here"
            elif model.weights.count_read(1) is None:
                yield f"which experts of {model.name} a step reads"
        yield from self._cache.unknown
        if plan.num_speculative_tokens and plan.method not in _ONE_PASS:
            yield f"what the drafts of {plan.method} read"
        if plan.cluster or any(_splits(plan, flag) for flag in ("pipeline-parallel-size", "data-parallel-size")):
            yield "how the weights are split"
        if (flag := plan.find_flag("quantization")) and not self._target_is_quantized and not read_bits(flag):
            yield f"the bits of a weight in {flag}"

    @property
    def _target_is_quantized(self) -> bool:
        return bool(self._target.weights and self._target.weights.is_quantized)

    def count_bytes(self, context: float, streams: float = 1.0) -> float | None:
        """Return the bytes that a step of `streams` requests with `context` tokens each reads on one GPU.

        They are the weights once (of experts those that the step's tokens choose), the logits' weights once for the
        target and once for the drafts, and each request's keys and values, of a sliding layer those in its window.
        """
        target, drafter = self._target.weights, self._drafter.weights if self._drafter else None
        cached = self._cache.count_read(round(context))
        if self.unknown or target is None or cached is None:
            return None
        tokens = (self._plan.num_speculative_tokens + 1) * streams
        bits = read_bits(self._plan.find_flag("quantization") or "")
        factor = bits / 16 if bits and not target.is_quantized else 1.0
        weights = (target.count_read(tokens, factor) or 0.0) + target.head
        if drafter:
            weights += (drafter.count_read(tokens) or 0.0) + (drafter.head or target.head)
        return weights / self._split + cached * streams

    def compare(self, context: float, streams: float, seconds: float | None) -> StepLimit:
        """Return a measured step of that load beside what it must read."""
        step_bytes = self.count_bytes(context, streams)
        least = step_bytes / self.bandwidth if step_bytes is not None and self.bandwidth else None
        return StepLimit(step_bytes, least, seconds)


def _splits(plan: Plan, flag: str) -> bool:
    return (parse_whole_number(plan.find_flag(flag) or "") or 1) > 1
