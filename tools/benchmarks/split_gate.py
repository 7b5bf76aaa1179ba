"""Times verification attention by streams, walked in one piece and split: where split verification should stop.

An engine's Python runs it on a GPU; the engine carries `triton-split-verify-0.24` (or that of its release):

    ENGINE/bin/python tools/benchmarks/split_gate.py

Shapes are those of Gemma 4's attention layers, keys and values random, each step a replayed CUDA graph, as in a server.
A line has what a layer takes either way, and what a step of the whole model gains; `blocks` are the programs that the
walk in one piece starts, over all KV heads of the layer. What it found: docs/faster.md, "Split verification".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton

BLOCK, SEGMENTS = 16, 16
TOKENS, CONTEXTS, STREAMS = (16, 9), (512, 2048, 8192, 32768), (1, 2, 3, 4, 6, 8, 16)
EVERY = 10**6  # a threshold that no step reaches


@dataclass(frozen=True)
class Layer:
    """A kind of attention layer: its heads, how far it looks (0: everywhere), and how many of it a model has."""

    name: str
    heads: int
    kv_heads: int
    width: int
    window: int
    number: int

    def count_blocks(self, tokens: int, streams: int) -> int:
        """Return the programs of the walk in one piece, each of which holds 16 rows of tokens and heads."""
        rows = tokens * (self.heads // self.kv_heads)
        return streams * -(-rows // BLOCK) * self.kv_heads


LAYERS = (
    Layer("26B-A4B global", 16, 2, 512, 0, 5),
    Layer("26B-A4B sliding", 16, 8, 256, 1024, 25),
    Layer("31B global", 32, 4, 512, 0, 10),
    Layer("31B sliding", 32, 16, 256, 1024, 50),
)


def prepare(layer: Layer, tokens: int, context: int, streams: int) -> dict[str, Any]:
    """Return the arguments of one step: so many streams that verify so many tokens after so long a context."""
    torch.manual_seed(0)
    blocks = triton.cdiv(context, BLOCK)
    rows = tokens * streams
    keys = torch.randn(blocks * streams + 2, BLOCK, layer.kv_heads, layer.width, dtype=torch.bfloat16, device="cuda")
    query = torch.randn(rows, layer.heads, layer.width, dtype=torch.bfloat16, device="cuda")
    table = torch.randperm(blocks * streams).reshape(streams, -1) + 1
    scratch = torch.empty(rows, layer.heads, SEGMENTS, device="cuda")
    return {
        "q": query, "k": keys, "v": torch.randn_like(keys), "out": torch.empty_like(query),
        "cu_seqlens_q": (torch.arange(streams + 1, dtype=torch.int32) * tokens).cuda(), "max_seqlen_q": tokens,
        "seqused_k": torch.full((streams,), context, dtype=torch.int32, device="cuda"), "max_seqlen_k": context,
        "softmax_scale": layer.width**-0.5, "causal": True,
        "window_size": (layer.window - 1, 0) if layer.window else (-1, -1),
        "block_table": table.to(torch.int32).cuda(), "softcap": 0.0,
        "q_descale": None, "k_descale": None, "v_descale": None, "num_par_softmax_segments": SEGMENTS,
        "softmax_segm_output": torch.empty(rows, layer.heads, SEGMENTS, layer.width, device="cuda"),
        "softmax_segm_max": scratch, "softmax_segm_expsum": torch.empty_like(scratch),
    }  # fmt: skip


def measure(attend: Callable[..., None], step: dict[str, Any], threshold: int | None) -> tuple[float, torch.Tensor]:
    """Return the median microseconds of a replayed step, and what it answered."""
    attend(**step, seq_threshold_3D=threshold)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        attend(**step, seq_threshold_3D=threshold)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            attend(**step, seq_threshold_3D=threshold)
    took = triton.testing.do_bench(graph.replay, warmup=10, rep=40, return_mode="median")
    return took * 1e3, step["out"].clone()


def main() -> None:
    """Print a line for each shape, number of tokens, context and number of streams."""
    from vllm.v1.attention.ops import triton_unified_attention

    print(torch.cuda.get_device_name(), flush=True)
    for layer in LAYERS:
        for tokens in TOKENS:
            for context in CONTEXTS if not layer.window else CONTEXTS[:-1]:
                for streams in STREAMS:
                    step = prepare(layer, tokens, context, streams)
                    whole, one = measure(triton_unified_attention.unified_attention, step, None)
                    split, other = measure(triton_unified_attention.unified_attention, step, EVERY)
                    saved = (whole - split) * layer.number / 1e3
                    print(
                        f"{layer.name:15} tokens {tokens:2} context {context:5} streams {streams:2} "
                        f"blocks {layer.count_blocks(tokens, streams):3} whole {whole:7.1f} µs split {split:7.1f} µs "
                        f"a step saves {saved:7.3f} ms, difference {(one - other).abs().max().item():.1e}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
