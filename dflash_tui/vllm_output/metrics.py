"""Parse the /metrics of a vLLM server into counters and histograms, and compute the rates of a window. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import msgspec

from dflash_tui.events import MOST, MOST_POSITIONS, Counters, Histogram

_SPEC_DECODE = "vllm:spec_decode_num_"
_COUNTERS = {
    "vllm:generation_tokens_total": "generated",
    "vllm:prompt_tokens_total": "prompt",
    f"{_SPEC_DECODE}drafts_total": "steps",
    f"{_SPEC_DECODE}draft_tokens_total": "proposed",
    f"{_SPEC_DECODE}accepted_tokens_total": "accepted",
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:prefix_cache_queries_total": "prefix_queries",
    "vllm:prefix_cache_hits_total": "prefix_hits",
    "vllm:request_success_total": "finished",
    "vllm:request_generation_tokens_sum": "finished_tokens",
    "vllm:request_decode_time_seconds_sum": "decode_seconds",
}
_PER_POSITION = f"{_SPEC_DECODE}accepted_tokens_per_pos_total"
_KV_USAGE = "vllm:kv_cache_usage_perc"
_TTFT = "vllm:time_to_first_token_seconds_"
_TPOT = "vllm:request_time_per_output_token_seconds_"
# Steps come in ones; a smaller part than this of one is no window, and nothing is divided by it.
_EPSILON = 1e-9
_BUCKETS = {f"{family}bucket": family for family in (_TTFT, _TPOT)}
# What a relevant line begins with; names of other families may begin like this, too.
_LINE_PREFIXES = (*_COUNTERS, _PER_POSITION, _KV_USAGE, *_BUCKETS, f"{_TTFT}sum", f"{_TPOT}sum")


class Scrape(NamedTuple):
    """The values of one /metrics body; the histograms are None where it has none."""

    counters: Counters
    ttft: Histogram | None = None
    tpot: Histogram | None = None


class Rates(msgspec.Struct, frozen=True):
    """The rates of a time window, from the difference of two readings of the counters."""

    seconds: float
    """The length of the window."""
    tok_s: float
    """Generated tokens per second."""
    steps: float = 0.0
    """The number of speculative decoding steps."""
    steps_s: float | None = None
    """Steps per second."""
    acceptance: float | None = None
    """Accepted / proposed draft tokens, 0 to 1; None without a step."""
    acceptance_length: float | None = None
    """1 + accepted / steps (the bonus token counts); None without a step."""
    per_position: tuple[float, ...] = ()
    """The share of steps whose draft token at each position was accepted."""
    prefill_s: float = 0.0
    """Prompt tokens per second, cached ones included."""
    preemptions: float = 0.0
    """The number of preempted requests."""
    prefix_hit: float | None = None
    """The share of prompt tokens that the prefix cache had; None when it was not queried."""


class _Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


def parse_counters(text: str) -> Counters | None:
    """Return the counters in a /metrics body; see `parse_metrics`."""
    scrape = parse_metrics(text)
    return scrape.counters if scrape else None


def parse_metrics(text: str) -> Scrape | None:
    """Return the values of a /metrics body, summed over engines (`kv_usage`: the fullest engine's).

    Only the lines of the families used here reach the parser: the whole text costs six times as much.
    Returns None when the text is not from a vLLM server (no generation counter in it).
    """
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    buckets: dict[str, dict[float, float]] = {_TTFT: {}, _TPOT: {}}
    kv_usage: float | None = None
    for name, labels, value in _parse_samples(text):
        if name in _COUNTERS:
            sums[_COUNTERS[name]] = sums.get(_COUNTERS[name], 0.0) + value
        elif name == _PER_POSITION and (position := _parse_position(labels)) is not None:
            positions[position] = positions.get(position, 0.0) + value
        elif name == _KV_USAGE:
            kv_usage = max(value, kv_usage or 0.0)
        elif name.endswith("_sum"):
            sums[name] = sums.get(name, 0.0) + value
        elif name in _BUCKETS and (bound := _parse_bound(labels)) is not None:
            family = buckets[_BUCKETS[name]]
            family[bound] = family.get(bound, 0.0) + value
    sums = {name: value for name, value in sums.items() if value <= MOST}
    if "generated" not in sums:
        return None
    counters = Counters(
        per_position=tuple(positions[p] for p in sorted(positions)),
        running=int(sums.pop("running", 0)),
        waiting=int(sums.pop("waiting", 0)),
        kv_usage=kv_usage,
        **{name: value for name, value in sums.items() if not name.endswith("_sum")},
    )
    ttft, tpot = (_build_histogram(buckets[family], sums.get(f"{family}sum", 0.0)) for family in (_TTFT, _TPOT))
    return Scrape(counters, ttft, tpot)


def _parse_position(labels: dict[str, str]) -> int | None:
    label = labels.get("position", "")
    position = int(label) if label.isdecimal() and len(label) <= 3 else MOST_POSITIONS
    return position if position < MOST_POSITIONS else None


def _parse_bound(labels: dict[str, str]) -> float | None:
    try:
        bound = float(labels.get("le", ""))
    except ValueError:
        return None
    return bound if 0 <= bound <= MOST or bound == math.inf else None


def _build_histogram(cumulative: dict[float, float], total: float) -> Histogram | None:
    """Return the histogram of cumulative counts by upper bound; None without any, or when they fall."""
    if math.inf not in cumulative:
        return None
    bounds = sorted(cumulative)
    counts = [cumulative[bounds[0]], *(cumulative[b] - cumulative[a] for a, b in pairwise(bounds))]
    return Histogram(tuple(bounds[:-1]), tuple(counts), total) if min(counts) >= 0 else None


def _parse_samples(text: str) -> Iterator[_Sample]:
    """Yield the samples of the relevant lines, without malformed lines and impossible values."""
    for line in text.splitlines():
        if line.startswith(_LINE_PREFIXES):
            yield from _parse_line(line)


@lru_cache(maxsize=512)
def _parse_line(line: str) -> tuple[_Sample, ...]:
    """Return the sample of a line, none when it does not parse; most lines are the same a second later."""
    # 60 ms that the panel's first paint, which folds states but parses nothing, is spared.
    from prometheus_client.parser import text_string_to_metric_families

    try:
        samples = [sample for family in text_string_to_metric_families(line + "\n") for sample in family.samples]
        return tuple(_Sample(s.name, dict(s.labels), float(s.value)) for s in samples if 0 <= s.value <= MOST)
    except ValueError:
        return ()


def compute_rates(before: Counters, after: Counters, seconds: float) -> Rates | None:
    """Return the rates between two readings `seconds` apart.

    Returns None when no time passed or a counter fell (another server answered on the port).
    """
    generated = after.generated - before.generated
    if seconds <= 0 or generated < 0:
        return None
    queries = after.prefix_queries - before.prefix_queries
    rates = Rates(
        seconds=seconds,
        tok_s=generated / seconds,
        prefill_s=max(0.0, after.prompt - before.prompt) / seconds,
        preemptions=max(0.0, after.preemptions - before.preemptions),
        prefix_hit=(after.prefix_hits - before.prefix_hits) / queries if queries > _EPSILON else None,
    )
    if after.steps is None or before.steps is None:
        return rates
    steps = after.steps - before.steps
    proposed = (after.proposed or 0.0) - (before.proposed or 0.0)
    accepted = (after.accepted or 0.0) - (before.accepted or 0.0)
    if min(steps, proposed, accepted) < 0:
        return None
    shares: tuple[float, ...] = ()
    if steps > _EPSILON and len(after.per_position) == len(before.per_position):
        shares = tuple(max(0.0, b - a) / steps for a, b in zip(before.per_position, after.per_position, strict=True))
    return msgspec.structs.replace(
        rates,
        steps=steps,
        steps_s=steps / seconds,
        acceptance=accepted / proposed if proposed > _EPSILON else None,
        acceptance_length=1 + accepted / steps if steps > _EPSILON else None,
        per_position=shares,
    )
