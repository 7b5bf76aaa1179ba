"""Parse the /metrics of a vLLM server into counters and histograms, and compute the rates of a window. Pure."""

from __future__ import annotations

import math
import re
import zlib
from itertools import accumulate, pairwise, zip_longest
from typing import NamedTuple

import msgspec

from dflash_tui.common.untrusted_json import LineBuffer
from dflash_tui.events import LEAST_STEPS, MOST, MOST_BUCKETS, MOST_POSITIONS, Counters, Histogram

_NAME = re.compile(r"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)(?:[ \t]*(\{)|[ \t])")
# Unambiguous, so a malformed label is rejected after one look at each character.
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"([^"\\]*(?:\\.[^"\\]*)*)"[ \t]*(,?)')
_LABELS_END = re.compile(r"[ \t]*\}")


class Sample(NamedTuple):
    """A Prometheus sample: the name of its series, its labels and its value."""

    name: str
    labels: dict[str, str]
    """The labels as written: a backslash in a value still escapes the next character."""
    value: float


def parse_sample(line: str) -> Sample | None:
    """Return the sample in `line`; None for a comment or a malformed line. Timestamps are dropped.

    This is stricter than prometheus_client, which the tests compare it with: that also accepts a name among the labels,
    and commas before them.
    """
    if (start := _NAME.match(line)) is None:
        return None
    at, labels = start.end(), dict[str, str]()
    if start[2]:
        separator = ","
        while separator and (label := _LABEL.match(line, at)):
            name, value, separator = label.groups()
            if name in labels:
                return None
            labels[name], at = value, label.end()
        if (end := _LABELS_END.match(line, at)) is None:
            return None
        at = end.end()
    figures = line[at:].split()
    if len(figures) not in {1, 2} or "_" in figures[0]:
        return None
    try:
        return Sample(start[1], labels, float(figures[0]))
    except ValueError:
        return None


class Quantile(NamedTuple):
    """An estimated quantile in the unit of the histogram, and the bounds of its bucket.

    Above the last bound `high` is None, and the estimate is `low`.
    """

    value: float
    low: float
    high: float | None


def subtract_histograms(before: Histogram | None, after: Histogram | None) -> Histogram | None:
    """Return the values added between two readings; None if there are none or the servers differ."""
    if before is None or after is None or before.bounds != after.bounds:
        return None
    counts = tuple(b - a for a, b in zip(before.counts, after.counts, strict=True))
    if min(counts) < 0 or sum(counts) <= 0:
        return None
    return Histogram(after.bounds, counts, after.total - before.total)


def estimate_quantile(histogram: Histogram, share: float) -> Quantile | None:
    """Return the value that `share` (0 to 1) of all values do not exceed; None for an empty histogram.

    It interpolates linearly inside a bucket, as Prometheus' histogram_quantile does.
    """
    count = sum(histogram.counts)
    if count <= 0:
        return None
    wanted = share * count
    index, below = 0, 0.0
    for index, up_to in enumerate(accumulate(histogram.counts)):
        if up_to >= wanted and histogram.counts[index] > 0:
            break
        below = up_to
    low = histogram.bounds[index - 1] if index else 0.0
    if index == len(histogram.bounds):
        return Quantile(low, low, None)
    high = histogram.bounds[index]
    inside = (wanted - below) / histogram.counts[index]
    return Quantile(low + (high - low) * min(1.0, max(0.0, inside)), low, high)


_SPEC_DECODE = "vllm:spec_decode_num_"
_GENERATED = "vllm:generation_tokens_total"
_COUNTERS = {
    _GENERATED: "generated",
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
    "vllm:request_prompt_tokens_sum": "finished_prompt_tokens",
    "vllm:request_decode_time_seconds_sum": "decode_seconds",
}
_PER_POSITION = f"{_SPEC_DECODE}accepted_tokens_per_pos_total"
_KV_USAGE = "vllm:kv_cache_usage_perc"
_TTFT = "vllm:time_to_first_token_seconds_"
_TPOT = "vllm:request_time_per_output_token_seconds_"
_CACHE_CONFIG = "vllm:cache_config_info"
_BUCKETS = {f"{family}bucket": family for family in (_TTFT, _TPOT)}
_SUMS = (f"{_TTFT}sum", f"{_TPOT}sum")
# Prefixes of the relevant lines; the names of other families may share them.
LINE_PREFIXES = tuple(
    name.encode() for name in (*_COUNTERS, _PER_POSITION, _KV_USAGE, _CACHE_CONFIG, *_BUCKETS, *_SUMS)
)
# The longest line of a real server has 831 bytes; its labels hold a model's name, which may be a path.
_LONGEST_LINE = 8 << 10
# The modulus of the sum that identifies the series: their order may change, and there may be hundreds of thousands.
_SERIES_NUMBERS = 1 << 32


class Scrape(NamedTuple):
    """The values of one /metrics body; a histogram is None if the body lacks it."""

    counters: Counters
    ttft: Histogram | None = None
    tpot: Histogram | None = None
    prefix_cache: str = ""
    """Whether the prefix cache is on: `True` or `False`, empty if not reported."""


class Rates(msgspec.Struct, frozen=True):
    """The rates of a time window, from two readings of the counters."""

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
    per_position: tuple[float | None, ...] = ()
    """The share of steps in which each draft position was accepted; None if not reported."""
    prefill_s: float | None = None
    """Prompt tokens per second, cached ones included."""
    preemptions: float | None = 0.0
    """The number of preemptions; None if not reported."""
    prefix_hit: float | None = None
    """The share of prompt tokens found in the prefix cache; None if it was not queried."""


class MetricsReader:
    """Sums a /metrics body, fed in pieces, over all engines; `kv_usage` is the fullest engine's.

    Only the families used here are parsed. Memory, and time per byte, are bounded whatever the server sends.
    """

    def __init__(self) -> None:
        self._lines = LineBuffer(_LONGEST_LINE)
        self._sums: dict[str, float] = {}
        self._positions: dict[int, float] = {}
        self._buckets: dict[str, dict[float, float]] = {_TTFT: {}, _TPOT: {}}
        self._kv_usage: float | None = None
        self._series = 0
        self._prefix_cache = ""

    def feed(self, data: bytes) -> None:
        """Add the next piece of the body."""
        for line in self._lines.feed(data):
            self._take(line)

    def result(self) -> Scrape | None:
        """Return the values of the whole body; None if it lacks vLLM's counter of generated tokens."""
        self._take(self._lines.unfinished_line)
        sums = {name: value for name, value in self._sums.items() if value <= MOST}
        if "generated" not in sums:
            return None
        running, waiting = sums.pop("running", None), sums.pop("waiting", None)
        counters = Counters(
            per_position=tuple(self._positions.get(p) for p in range(max(self._positions, default=-1) + 1)),
            running=None if running is None else int(running),
            waiting=None if waiting is None else int(waiting),
            preemptions=sums.pop("preemptions", None),
            prompt=sums.pop("prompt", None),
            kv_usage=self._kv_usage,
            series=self._series,
            **{name: value for name, value in sums.items() if not name.endswith("_sum")},
        )
        ttft, tpot = (
            _build_histogram(self._buckets[family], sums.get(f"{family}sum", 0.0)) for family in (_TTFT, _TPOT)
        )
        return Scrape(counters, ttft, tpot, self._prefix_cache)

    def _take(self, line: bytes) -> None:
        if not line.startswith(LINE_PREFIXES):
            return
        sample = parse_sample(line.decode(errors="replace"))
        if sample is not None and 0 <= sample.value <= MOST:
            self._add(sample)

    def _add(self, sample: Sample) -> None:
        name, labels, value = sample
        if name in _COUNTERS:
            self._sums[_COUNTERS[name]] = self._sums.get(_COUNTERS[name], 0.0) + value
            if name == _GENERATED:
                self._series = (self._series + _number_labels(labels)) % _SERIES_NUMBERS
        elif name == _PER_POSITION and (position := _parse_position(labels)) is not None:
            self._positions[position] = self._positions.get(position, 0.0) + value
        elif name == _CACHE_CONFIG:
            self._prefix_cache = labels.get("enable_prefix_caching", "")[:5]
        elif name == _KV_USAGE and value <= 1:
            self._kv_usage = max(value, self._kv_usage or 0.0)
        elif name in _BUCKETS and (bound := _parse_bound(labels)) is not None:
            family = self._buckets[_BUCKETS[name]]
            if bound in family or len(family) <= MOST_BUCKETS:
                family[bound] = family.get(bound, 0.0) + value
        elif name in _SUMS:
            self._sums[name] = self._sums.get(name, 0.0) + value


def _number_labels(labels: dict[str, str]) -> int:
    """Return a hash of labels that depends neither on their order nor on the process."""
    return zlib.crc32(repr(sorted(labels.items())).encode())


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
    """Return the histogram of cumulative counts by upper bound; None if they lack +Inf, are too many, or fall."""
    if math.inf not in cumulative or len(cumulative) > MOST_BUCKETS:
        return None
    bounds = sorted(cumulative)
    counts = [cumulative[bounds[0]], *(cumulative[b] - cumulative[a] for a, b in pairwise(bounds))]
    return Histogram(tuple(bounds[:-1]), tuple(counts), total) if min(counts) >= 0 else None


def compute_rates(before: Counters, after: Counters, seconds: float) -> Rates | None:
    """Return the rates between two readings `seconds` apart.

    Return None if no time passed, a counter fell (another server answered on the port), or an engine came or went: its
    whole count would look like growth. An impossible figure, such as more accepted than proposed tokens, is None.
    """
    generated = after.generated - before.generated
    if seconds <= 0 or generated < 0 or not before.is_of_same_series(after):
        return None
    read, preempted = subtract(after.prompt, before.prompt), subtract(after.preemptions, before.preemptions)
    queries = after.prefix_queries - before.prefix_queries
    rates = Rates(
        seconds=seconds,
        tok_s=generated / seconds,
        prefill_s=None if read is None else max(0.0, read) / seconds,
        preemptions=None if preempted is None else max(0.0, preempted),
        prefix_hit=_compute_share(after.prefix_hits - before.prefix_hits, queries),
    )
    if after.steps is None or before.steps is None:
        return rates
    steps = after.steps - before.steps
    proposed, accepted = subtract(after.proposed, before.proposed), subtract(after.accepted, before.accepted)
    if min(steps, proposed or 0.0, accepted or 0.0) < 0:
        return None
    rates = msgspec.structs.replace(rates, steps=steps, steps_s=steps / seconds)
    if accepted is not None and proposed is not None and _exceeds(accepted, proposed):
        return rates
    grown = [subtract(b, a) for a, b in zip_longest(before.per_position, after.per_position)]
    return msgspec.structs.replace(
        rates,
        acceptance=_compute_share(accepted, proposed),
        acceptance_length=1 + accepted / steps if accepted is not None and steps >= LEAST_STEPS else None,
        per_position=tuple(_compute_share(more, steps) for more in grown) if steps >= LEAST_STEPS else (),
    )


def _compute_share(part: float | None, whole: float | None) -> float | None:
    """Return part / whole; None if either is unknown, the part exceeds the whole, or the whole is zero.

    A share within rounding of 1 is 1, since the edges of a window are interpolated.
    """
    if part is None or whole is None or whole < LEAST_STEPS or _exceeds(part, whole):
        return None
    return 1.0 if math.isclose(part, whole) else min(1.0, max(0.0, part) / whole)


def _exceeds(part: float, whole: float) -> bool:
    """Whether a part exceeds its whole by more than interpolation at a window's edges explains."""
    return part > whole and not math.isclose(part, whole, abs_tol=LEAST_STEPS)


def subtract(after: float | None, before: float | None) -> float | None:
    """Return the growth of a counter; None if either value is unknown, since a total is not growth."""
    return None if after is None or before is None else after - before
