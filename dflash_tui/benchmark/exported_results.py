"""Results as other benchmarks write them, for their readers: `vllm bench serve`, AIPerf and llama-benchy; pure.

A figure that was not measured is left out: none of these readers takes a missing one for zero. What the same word
means elsewhere is said in docs/numbers.md.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dflash_tui import __version__
from dflash_tui.benchmark.summary import busy_seconds
from dflash_tui.events import RequestDone

_MILLISECONDS = 1000.0
_AIPERF_SCHEMA = "1.1"
_AIPERF_PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
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


def build_aiperf(measured: Measured) -> dict[str, Any]:
    """Return the last level as AIPerf's `profile_export_aiperf.json` has it."""
    _, done = measured.last_level
    good, seconds = _select_good(done), busy_seconds(done)
    generated = sum(r.tokens for r in good)
    records: dict[str, tuple[str, Sequence[float]]] = {
        "request_latency": ("ms", _total(good)),
        "time_to_first_token": ("ms", _ttft(good)),
        "inter_token_latency": ("ms", _tpot(good)),
        "output_token_throughput_per_user": ("tokens/sec/user", [r.decode_tok_s for r in good if r.decode_tok_s]),
        "output_sequence_length": ("tokens", [float(r.tokens) for r in good]),
        "input_sequence_length": ("tokens", [float(r.prompt_tokens) for r in good if r.prompt_tokens]),
    }
    totals: dict[str, tuple[str, float]] = {
        "request_count": ("requests", float(len(good))),
        "error_request_count": ("requests", float(len(done) - len(good))),
        "request_throughput": ("requests/sec", _rate(len(good), seconds)),
        "output_token_throughput": ("tokens/sec", _rate(generated, seconds)),
        "benchmark_duration": ("sec", seconds),
    }
    return {
        "schema_version": _AIPERF_SCHEMA,
        "benchmark_id": measured.identity,
        "start_time": _format_time(measured.began),
        "was_cancelled": False,
        "input_config": {"tool": f"dflash-tui {__version__}", "model": measured.model},
        **{name: _describe_record(unit, values) for name, (unit, values) in records.items() if values},
        **{name: {"unit": unit, "avg": value} for name, (unit, value) in totals.items()},
    }


def build_llama_benchy(measured: Measured) -> dict[str, Any]:
    """Return every level and kind of prompt as llama-benchy writes it; times are milliseconds."""
    groups: dict[tuple[int, str], list[RequestDone]] = {}
    for request in _select_good(measured.requests):
        groups.setdefault((request.streams, request.kind), []).append(request)
    return {
        "version": f"dflash-tui {__version__}",
        "timestamp": _format_time(measured.began),
        "latency_mode": "none",
        "latency_ms": 0.0,
        "model": measured.model,
        "prefix_caching_enabled": False,
        "max_concurrency": max((streams for streams, _ in groups), default=1) or None,
        "benchmarks": [_describe_run(streams, kind, done) for (streams, kind), done in sorted(groups.items())],
    }


def _describe_run(streams: int, kind: str, done: Sequence[RequestDone]) -> dict[str, Any]:
    speeds = [r.decode_tok_s for r in done if r.decode_tok_s]
    together = [speed * streams for speed in speeds if streams]  # by a rate nobody knows how many were under way
    metrics = {"tg_throughput": together, "tg_req_throughput": speeds, "ttfr": _ttft(done), "e2e_ttft": _ttft(done)}
    return {
        "concurrency": streams or None,
        "context_size": 0,
        "prompt_size": round(statistics.fmean(r.prompt_tokens for r in done)),
        "response_size": round(statistics.fmean(r.tokens for r in done)),
        "is_context_prefill_phase": False,
        "prompt_id": kind,
        **{name: _describe_metric(values) for name, values in metrics.items() if values},
    }


def _describe_metric(values: Sequence[float]) -> dict[str, Any]:
    return {"mean": statistics.fmean(values), "std": statistics.pstdev(values), "values": list(values)}


def _describe_record(unit: str, values: Sequence[float]) -> dict[str, Any]:
    cuts = _percentiles(values)
    return {
        "unit": unit, "avg": statistics.fmean(values), "min": min(values), "max": max(values),
        **{f"p{percent}": cuts[percent] for percent in _AIPERF_PERCENTILES},
        "std": statistics.stdev(values) if len(values) > 1 else 0.0, "count": len(values), "sum": sum(values),
    }  # fmt: skip


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


def _format_time(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


FORMATS: dict[str, Callable[[Measured], dict[str, Any]]] = {
    "vllm-bench": build_vllm_bench,
    "aiperf": build_aiperf,
    "llama-benchy": build_llama_benchy,
}
