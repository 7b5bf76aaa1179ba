"""Summarize the requests of a benchmark, by prompt kind and by level of concurrency. Pure."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dflash_tui.benchmark.load import LoadRecord, MeasuredWindow
from dflash_tui.benchmark.prompts import Suite, TokenVariety
from dflash_tui.benchmark.server import Server, TokenCount
from dflash_tui.common.errors import UsageError
from dflash_tui.events import Amount, Counters, Event, RequestDone, Whole, measure_acceptance_length
from dflash_tui.planning.step_limit import MemoryLimit
from dflash_tui.run_state.speculation import DraftForecast
from dflash_tui.vllm_output import metrics

# Of fewer values the 5th and 95th percentiles would be the least and the greatest.
_PERCENTILES_FROM = 20


class Spread(msgspec.Struct, frozen=True):
    """The median of `n` values with their 5th and 95th percentiles; below 20 values their least and greatest."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def from_values(cls, values: Iterable[float | None]) -> Spread | None:
        """Return the spread of the known values; None if there are none."""
        numbers = sorted(value for value in values if value is not None)
        if not numbers:
            return None
        if len(numbers) < _PERCENTILES_FROM:
            return cls(statistics.median(numbers), numbers[0], numbers[-1], len(numbers))
        parts = statistics.quantiles(numbers, n=20, method="inclusive")
        return cls(statistics.median(numbers), parts[0], parts[-1], len(numbers))

    @property
    def percentiles(self) -> bool:
        """Whether the bounds are percentiles."""
        return self.n >= _PERCENTILES_FROM


class RequestFigures(msgspec.Struct, frozen=True):
    """Spreads over the successful requests, in seconds or per second; None is unknown."""

    n: int
    failed: int
    tok_s: Spread | None
    ttft: Spread | None
    tpot: Spread | None
    chunk_p95: Spread | None
    acceptance_length: Spread | None
    steps_s: Spread | None

    @classmethod
    def from_requests(cls, done: Sequence[RequestDone]) -> RequestFigures:
        """Return the figures of these requests."""
        good = [request for request in done if not request.error]
        return cls(
            n=len(good),
            failed=len(done) - len(good),
            tok_s=Spread.from_values(request.decode_tok_s for request in good),
            ttft=Spread.from_values(request.ttft for request in good),
            tpot=Spread.from_values(1 / request.decode_tok_s for request in good if request.decode_tok_s),
            chunk_p95=Spread.from_values(request.chunk_p95 for request in good),
            acceptance_length=Spread.from_values(request.acceptance_length for request in good),
            steps_s=Spread.from_values(request.steps_s for request in good),
        )


class LevelSummary(Event, frozen=True, tag="measured"):
    """The summary of one level of a bench, with `streams` concurrent requests; null is unknown.

    `seconds` is the time in which a request was running, `tok_s` the output of all requests in it; with several streams
    both are those of the `window`. `latency` is by prompt kind, with all prompts under an empty name. Steps and
    acceptance come from the server's counters, or from the answers if only those report steps.
    """

    run: str
    synthetic: str
    requests: int
    failed: int
    tokens: int
    seconds: float
    tok_s: float
    decode_tok_s: tuple[float, ...]
    steps: float | None
    acceptance: float | None
    acceptance_length: float | None
    per_position: tuple[float | None, ...] = ()
    streams: int = 1
    suite: str = ""
    digest: str = ""
    figures: RequestFigures | None = None
    kinds: dict[str, RequestFigures] = msgspec.field(default_factory=dict)
    fixed: bool = False
    sampling: str = ""
    sampler: str = ""
    window: MeasuredWindow | None = None
    latency: dict[str, Latency] = msgspec.field(default_factory=dict)
    goodput: Goodput | None = None
    counted_length: float | None = None
    """The acceptance length as vLLM counts it, with tokens that an answer's last step accepts beyond its end."""
    token_count: TokenCount = TokenCount.USAGE
    """How the tokens of its answers were counted."""
    token_variety: TokenVariety = TokenVariety.UNCHECKED
    memory_limit: MemoryLimit | None = None
    """Its steps beside what the memory's bandwidth allows; None unless asked for."""
    fewer_drafts: DraftForecast | None = None
    """What fewer drafts per step would gain, or the number to try; None if nothing shows a gain."""

    @property
    def completed_per_second(self) -> float | None:
        """Requests that ended per second, uncounted ones included; None if nothing was measured."""
        completed = self.window.completed if self.window else self.requests
        return completed / self.seconds if self.seconds else None

    @classmethod
    def from_requests(
        cls,
        server: Server,
        done: Sequence[RequestDone],
        before: Counters | None,
        after: Counters | None,
        suite: Suite,
        *,
        record: LoadRecord | None = None,
    ) -> LevelSummary:
        """Return the summary of a level between two readings of the counters; `record` is its load."""
        good, seconds = [request for request in done if not request.error], busy_seconds(done)
        tokens = sum(request.tokens for request in good)
        window = record.measure_window() if record else None
        busy = window is not None and window.streams != 1
        seconds, output = (window.seconds, window.tokens) if window and busy else (seconds, tokens)
        rates = metrics.compute_rates(before, after, max(seconds, 1e-3)) if before and after else None
        by_kind = {kind: [r for r in done if r.kind == kind] for kind in dict.fromkeys(r.kind for r in done)}
        steps, length = (rates.steps if rates else None), None
        if rates:
            length = _measure_acceptance_length(before, after, window.answers if window else len(good))
        elif good and all(request.steps is not None for request in good):  # the server reports steps per request only
            steps, accepted = sum(r.steps or 0.0 for r in good), sum(r.accepted or 0.0 for r in good)
            length = measure_acceptance_length(steps, accepted, tokens, len(good))
        return cls(
            at=time.time(),
            run=server.name,
            synthetic=server.synthetic,
            requests=len(done),
            failed=len(done) - len(good),
            tokens=tokens,
            seconds=seconds,
            tok_s=output / seconds if seconds else 0.0,
            decode_tok_s=tuple(request.decode_tok_s for request in good if request.decode_tok_s is not None),
            steps=steps,
            acceptance=rates.acceptance if rates else None,
            acceptance_length=length,
            per_position=rates.per_position if rates else (),
            streams=window.streams if window else max((request.streams for request in done), default=1),
            suite=suite.name,
            digest=suite.digest,
            figures=RequestFigures.from_requests(done),
            kinds={kind: RequestFigures.from_requests(requests) for kind, requests in by_kind.items()},
            window=window,
            counted_length=rates.acceptance_length if rates else None,
            latency=group_latencies(done, record.gaps if record else {}),
            token_count=server.facts.tokens,
        )


def _measure_acceptance_length(before: Counters | None, after: Counters | None, answers: int) -> float | None:
    if before is None or after is None or after.steps is None or after.accepted is None:
        return None
    steps, accepted = after.steps - (before.steps or 0.0), after.accepted - (before.accepted or 0.0)
    return measure_acceptance_length(steps, accepted, after.generated - before.generated, answers)


def busy_seconds(done: Iterable[RequestDone]) -> float:
    """Return the seconds in which at least one request was running."""
    seconds, until = 0.0, float("-inf")
    for begin, end in sorted((request.at - request.total, request.at) for request in done):
        seconds += max(0.0, end - max(begin, until))
        until = max(until, end)
    return seconds


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles of `n` values, linearly interpolated like numpy's default."""

    p50: float
    p90: float
    p95: float
    p99: float
    n: int

    @classmethod
    def from_values(cls, values: Iterable[float | None]) -> Percentiles | None:
        """Return the percentiles of the known values; None if there are none."""
        numbers = [value for value in values if value is not None]
        if not numbers:
            return None
        cuts = statistics.quantiles(numbers, n=100, method="inclusive") if len(numbers) > 1 else numbers * 99
        return cls(cuts[49], cuts[89], cuts[94], cuts[98], len(numbers))

    @property
    def values(self) -> tuple[float, ...]:
        """The percentiles in ascending order."""
        return self.p50, self.p90, self.p95, self.p99


class Latency(msgspec.Struct, frozen=True):
    """Latencies of successful requests in seconds; None is unknown."""

    ttft: Percentiles | None = None
    tpot: Percentiles | None = None
    itl: Percentiles | None = None
    e2e: Percentiles | None = None

    @classmethod
    def from_requests(cls, good: Sequence[RequestDone], gaps: Iterable[float] = ()) -> Latency:
        """Return the latencies of requests; the `gaps` between arrivals are the ITL."""
        return cls(
            ttft=Percentiles.from_values(request.ttft for request in good),
            tpot=Percentiles.from_values(1 / r.decode_tok_s if r.decode_tok_s else None for r in good),
            itl=Percentiles.from_values(gaps),
            e2e=Percentiles.from_values(request.total for request in good),
        )


def group_latencies(done: Sequence[RequestDone], gaps: Mapping[str, Sequence[float]]) -> dict[str, Latency]:
    """Return the latencies by prompt kind, with all prompts under an empty name."""
    good = [request for request in done if not request.error]
    kinds = dict.fromkeys(request.kind for request in good)
    by_kind = {k: Latency.from_requests([r for r in good if r.kind == k], gaps.get(k, ())) for k in kinds}
    return by_kind | {"": Latency.from_requests(good, [gap for own in gaps.values() for gap in own])}


class Slo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A service-level objective: the most seconds that a request may take; None is no limit."""

    ttft: Amount | None = None
    tpot: Amount | None = None
    e2e: Amount | None = None

    def is_met(self, request: RequestDone) -> bool:
        """Whether a request is within every limit; a failed request or an unknown figure is not."""
        tpot = 1 / request.decode_tok_s if request.decode_tok_s else None
        pairs = ((self.ttft, request.ttft), (self.tpot, tpot), (self.e2e, request.total))
        return not request.error and all(most is None or (taken is not None and taken <= most) for most, taken in pairs)


def parse_slo(text: str) -> Slo:
    """Parse an objective such as `ttft=0.5,tpot=0.05,e2e=10`, in seconds; raise UsageError if it is invalid."""
    limits: dict[str, float] = {}
    for word in text.split(","):
        name, _, seconds = word.partition("=")
        try:
            limits[name] = float(seconds)
        except ValueError:
            limits[name] = math.nan
        if name not in Slo.__struct_fields__ or not 0 < limits[name] < math.inf:
            keys = ", ".join(Slo.__struct_fields__)
            raise UsageError(f"--slo: expected KEY=SECONDS, not '{word}'", hint=f"KEY is one of {keys}")
    return Slo(**limits)


class Goodput(msgspec.Struct, frozen=True):
    """How many of `n` requests met an objective, and how many per second in the measured window."""

    slo: Slo
    met: Whole
    n: Whole
    per_second: Amount | None = None

    @classmethod
    def from_requests(cls, slo: Slo, done: Sequence[RequestDone], completed: float | None) -> Goodput:
        """Return the goodput of requests; `completed` is the rate of all requests, uncounted ones included."""
        met = sum(map(slo.is_met, done))
        return cls(slo, met, len(done), completed * met / len(done) if done and completed is not None else None)
