"""Runs a release's own Triton attention in Triton's interpreter, against softmax in float64; started as a script.

usage: TRITON_INTERPRET=1 python split_verify.py FOLDER < cases.json

FOLDER holds `triton_attention_helpers.py` and `triton_unified_attention.py` of a release, patched or not. A case is an
object with the fields of `Case`; for each there is a line with `split` (whether the context was split), `busy` (the
number of segments in which the last token found a key), `error` (largest difference / largest value) and `spilled`
(whether a row outside of the scratch was written).
"""

from __future__ import annotations

import enum
import importlib.util
import inspect
import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

BLOCK, GUARD, MARK = 16, 8, 1234.5


class KVQuantMode(enum.IntEnum):
    """As vLLM numbers them."""

    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4


@dataclass
class Case:
    """One step: how many tokens each request verifies, how long its context is, and what its layer is like."""

    tokens: list[int]
    contexts: list[int]
    heads: int = 8
    kv_heads: int = 2
    head_size: int = 32
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False
    causal: bool = True
    fp8: bool = False
    shift: float = 0.0
    padding: int = 0
    threshold: int = 16
    segments: int = 16
    scratch: int | None = None  # rows; one for each token when None


class Tensors(NamedTuple):
    """What a step computes on: the tokens, the caches of keys and values, their blocks by request, and sinks."""

    query: torch.Tensor
    cache: list[torch.Tensor]
    table: torch.Tensor
    sinks: torch.Tensor | None


def load(folder: Path) -> ModuleType:
    """Return the attention module of a release; what it imports of vLLM is stubbed."""

    def stub(name: str, **names: Any) -> None:
        module = ModuleType(name)
        vars(module).update(names, __path__=[])
        sys.modules[name] = module

    answers = {"fp8_dtype": torch.float8_e4m3fn, "is_cuda": False, "is_cuda_alike": True, "num_compute_units": 132}
    platform = SimpleNamespace(**{name: lambda value=value: value for name, value in answers.items()})
    for name in ("is_rocm", "is_xpu", "is_device_capability_family", "has_device_capability"):
        setattr(platform, name, lambda *_: False)
    platform.is_device_capability = lambda wanted: wanted == (9, 0)
    log = logging.getLogger("vllm")
    for name in ("debug_once", "info_once", "warning_once"):
        setattr(log, name, lambda *_, **__: None)
    for name in ("vllm", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.ops"):
        stub(name)
    stub("vllm.envs", VLLM_BATCH_INVARIANT=False, VLLM_TRITON_USE_TD=False)
    sys.modules["vllm"].envs = sys.modules["vllm.envs"]  # type: ignore[attr-defined]
    stub("vllm.logger", init_logger=lambda _: log)
    stub("vllm.platforms", current_platform=platform)
    stub("vllm.triton_utils", tl=tl, triton=triton)
    stub("vllm.v1.kv_cache_interface", KVQuantMode=KVQuantMode)
    for name in ("triton_attention_helpers", "triton_unified_attention"):
        full = f"vllm.v1.attention.ops.{name}"
        spec = importlib.util.spec_from_file_location(full, folder / f"{name}.py")
        assert spec
        assert spec.loader
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    return sys.modules["vllm.v1.attention.ops.triton_unified_attention"]


def attend(
    case: Case, query: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor], sinks: torch.Tensor | None
) -> torch.Tensor:
    """Return the attention of each token in float64."""
    parts, begin, group = [], 0, case.heads // case.kv_heads
    for tokens, context, key, value in zip(case.tokens, case.contexts, keys, values, strict=True):
        part = query[begin : begin + tokens].double()
        begin += tokens
        wide_key, wide_value = (each.double().repeat_interleave(group, 1) for each in (key, value))
        scores = torch.einsum("qhd,khd->hqk", part, wide_key) * case.head_size**-0.5
        if case.softcap:
            scores = case.softcap * torch.tanh(scores / case.softcap)
        at, places = (context - tokens + torch.arange(tokens))[:, None], torch.arange(context)[None]
        allowed = places <= at if case.causal else torch.ones(tokens, context, dtype=torch.bool)
        if case.window:
            allowed &= at - places < case.window
            allowed &= case.causal or places - at < case.window
        scores = scores.masked_fill(~allowed, float("-inf"))
        if sinks is not None:
            scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, tokens, 1)], -1)
        weights = scores.softmax(-1)[..., :context]
        parts.append(torch.einsum("hqk,khd->qhd", weights, wide_value))
    return torch.cat(parts)


def run(module: Any, case: Case) -> dict[str, Any]:
    """Return what came of a case."""
    torch.manual_seed(len(case.tokens) + sum(case.contexts))
    dtype = torch.float8_e4m3fn if case.fp8 else torch.float32
    blocks = [(context + BLOCK - 1) // BLOCK for context in case.contexts]
    cache_shape = (sum(blocks) + 2, BLOCK, case.kv_heads, case.head_size)
    cache = [torch.full(cache_shape, float("nan")).to(dtype) for _ in "kv"]
    query = torch.randn(sum(case.tokens) + case.padding, case.heads, case.head_size)
    table = torch.zeros(len(blocks), max(blocks), dtype=torch.int32)
    texts: list[list[torch.Tensor]] = [[], []]
    free = 1
    for row, (count, context) in enumerate(zip(blocks, case.contexts, strict=True)):
        table[row, :count] = torch.arange(free, free + count)
        for which in (0, 1):
            data = torch.randn(context, case.kv_heads, case.head_size)
            if case.shift and which == 0:
                data[..., 0] = case.shift * case.head_size**0.5
            data = data.to(dtype)
            flat = cache[which][free : free + count].reshape(-1, case.kv_heads, case.head_size)
            flat[:context] = data
            cache[which][free : free + count] = flat.reshape(count, BLOCK, case.kv_heads, case.head_size)
            texts[which].append(data.float())
        free += count
    if case.shift:
        query[..., 0] = 1.0
    sinks = torch.randn(case.heads) if case.sinks else None
    result = call(module, case, Tensors(query, cache, table, sinks))
    wanted = attend(case, query, texts[0], texts[1], sinks)
    part = result.pop("out")[: sum(case.tokens)]
    return {**result, "error": ((part - wanted).abs().max() / wanted.abs().max()).item()}


def call(module: Any, case: Case, tensors: Tensors) -> dict[str, Any]:
    """Run the release's kernel; return its output, whether it split, and whether it wrote where it must not."""
    query, cache, table, sinks = tensors
    rows, padded = query.shape[0] if case.scratch is None else case.scratch, 1 << (case.head_size - 1).bit_length()
    whole = [torch.full((rows + GUARD, case.heads, case.segments, *tail), MARK) for tail in ((padded,), (), ())]
    out = torch.zeros_like(query)
    starts = torch.tensor([0, *torch.tensor(case.tokens).cumsum(0).tolist()], dtype=torch.int32)
    split = []
    reduce_segments = module.reduce_segments

    class Watched:
        def __getitem__(self, grid: Any) -> Any:
            split.append(True)
            return reduce_segments[grid]

    module.reduce_segments = Watched()
    known = inspect.signature(module.unified_attention).parameters
    scale = torch.ones(len(case.tokens), case.kv_heads) if case.fp8 else None
    around = (case.window - 1, 0 if case.causal else case.window - 1) if case.window else (-1, -1)
    mode = KVQuantMode.FP8_PER_TENSOR if case.fp8 else KVQuantMode.NONE
    words = {
        "q": query, "k": cache[0], "v": cache[1], "out": out, "cu_seqlens_q": starts, "max_seqlen_q": max(case.tokens),
        "seqused_k": torch.tensor(case.contexts, dtype=torch.int32), "max_seqlen_k": max(case.contexts),
        "softmax_scale": case.head_size**-0.5, "causal": case.causal, "window_size": around, "block_table": table,
        "softcap": case.softcap, "q_descale": None, "k_descale": scale, "v_descale": scale, "sinks": sinks,
        "seq_threshold_3D": case.threshold, "num_par_softmax_segments": case.segments, "kv_quant_mode": mode,
        "softmax_segm_output": whole[0][:rows], "softmax_segm_max": whole[1][:rows],
        "softmax_segm_expsum": whole[2][:rows],
    }  # fmt: skip
    try:
        module.unified_attention(**{name: value for name, value in words.items() if name in known})
    finally:
        module.reduce_segments = reduce_segments
    spilled = any((part[rows:] != MARK).any().item() for part in whole)
    last = whole[1][sum(case.tokens) - 1, 0] if rows >= sum(case.tokens) else torch.tensor([MARK])
    busy = int(((last != MARK) & last.isfinite()).sum()) if split else 0
    return {"out": out, "split": bool(split), "busy": busy, "spilled": spilled}


if __name__ == "__main__":
    attention = load(Path(sys.argv[1]))
    for given in json.load(sys.stdin):
        print(json.dumps(run(attention, Case(**given))), flush=True)
