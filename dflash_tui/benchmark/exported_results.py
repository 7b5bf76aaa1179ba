"""Results as `vllm bench serve` writes them, for its readers; pure.

A figure that was not measured is left out: no reader takes a missing one for zero. What the same word
means elsewhere is said in docs/numbers.md.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dflash_tui import __version__
from dflash_tui.benchmark.summary import busy_seconds
from dflash_tui.events import RequestDone

_MILLISECONDS = 1000.0
_VLLM_PERCENTILES = (50, 90, 95, 99)


class LoadLevel(NamedTuple):
    """How requests came to a server: so many at a time, or (0) by a rate per second, 0 where that is not known."""

    streams: int
    rate: float


class Measured(NamedTuple):
    """What was measured of a server: by which name it serves the model, when it began, and each request.

    `output_tok_s` is the output of the only level where requests that do not count are in it, too. `metadata` is what
    is said beside the figures, as `vllm bench serve --metadata` does.
    """

    identity: str
    model: str
    began: float
    requests: tuple[RequestDone, ...]
    output_tok_s: float | None = None
    metadata: Mapping[str, str] = {}

    @property
    def last_level(self) -> tuple[LoadLevel, tuple[RequestDone, ...]]:
        """How requests came when the last one ended, and all of that level."""
        last = max(self.requests, key=lambda request: request.at)
        level = LoadLevel(last.streams, last.rate)
        return level, tuple(request for request in self.requests if (request.streams, request.rate) == level)


def build_vllm_bench(measured: Measured) -> dict[str, Any]:
    """Return the last level as `vllm bench serve --save-result` writes it; times are milliseconds."""
    (streams, rate), done = measured.last_level
    good, seconds = _select_good(done), busy_seconds(done)
    read, generated = sum(r.prompt_tokens for r in good), sum(r.tokens for r in good)
    result = {
        "date": time.strftime("%Y%m%d-%H%M%S", time.gmtime(measured.began)),
        "endpoint_type": "openai-chat",
        "backend": "openai-chat",
        "label": f"dflash-tui {__version__}",
        "model_id": measured.model,
        "tokenizer_id": measured.model,
        "num_prompts": len(done),
        "request_rate": "inf" if streams else rate or None,
        "burstiness": 1.0,
        "max_concurrency": streams or None,
        "duration": seconds,
        "completed": len(good),
        "failed": len(done) - len(good),
        "total_input_tokens": read,
        "total_output_tokens": generated,
        "request_throughput": _rate(len(good), seconds),
        "output_throughput": _rate(generated, seconds) if measured.output_tok_s is None else measured.output_tok_s,
        "total_token_throughput": _rate(read + generated, seconds),
    }
    for name, values in (("ttft", _ttft(good)), ("tpot", _tpot(good)), ("e2el", _total(good))):
        if values:
            cuts = _percentiles(values)
            figures = {"mean": statistics.fmean(values), "median": cuts[50], "std": statistics.pstdev(values)}
            figures |= {f"p{percent}": cuts[percent] for percent in _VLLM_PERCENTILES}
            result |= {f"{figure}_{name}_ms": value for figure, value in figures.items()}
    return (
        result | _count_drafts(good) | {name: value for name, value in measured.metadata.items() if name not in result}
    )


def _percentiles(values: Sequence[float]) -> Mapping[int, float]:
    """Return the percentiles 1 to 99, interpolated as numpy does by default."""
    cuts = statistics.quantiles(values, n=100, method="inclusive") if len(values) > 1 else list(values) * 99
    return dict(enumerate(cuts, 1))


def _count_drafts(good: Iterable[RequestDone]) -> dict[str, Any]:
    """Return what is known of speculation: where each request's steps are, and the length as vLLM defines it."""
    drafts = [(r.steps, r.accepted) for r in good]
    steps, accepted = sum(s or 0.0 for s, _ in drafts), sum(a or 0.0 for _, a in drafts)
    if not steps or any(s is None or a is None for s, a in drafts):
        return {}
    return {
        "spec_decode_num_drafts": round(steps),
        "spec_decode_accepted_tokens": round(accepted),
        "spec_decode_acceptance_length": 1 + accepted / steps,
    }


def _select_good(done: Iterable[RequestDone]) -> list[RequestDone]:
    return [request for request in done if not request.error]


def _ttft(good: Iterable[RequestDone]) -> list[float]:
    return [r.ttft * _MILLISECONDS for r in good if r.ttft is not None]


def _tpot(good: Iterable[RequestDone]) -> list[float]:
    return [_MILLISECONDS / r.decode_tok_s for r in good if r.decode_tok_s]


def _total(good: Iterable[RequestDone]) -> list[float]:
    return [r.total * _MILLISECONDS for r in good]


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds else 0.0
