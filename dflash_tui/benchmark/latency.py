"""Percentiles of latencies, and how many requests met what was asked of them; pure.

TTFT is from sending a request to the first token, TPOT the mean seconds of a token after those that came first, ITL the
gaps between two arrivals, which may bring several tokens each, E2E all of a request.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dflash_tui.common.errors import UsageError
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.events import RequestDone
from dflash_tui.readings import Amount, Whole


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles of `n` values, interpolated between the two nearest ones as numpy does by default."""

    p50: float
    p90: float
    p95: float
    p99: float
    n: int

    @classmethod
    def from_values(cls, values: Iterable[float | None]) -> Percentiles | None:
        """Return the percentiles of the values that are known; None without any."""
        numbers = [value for value in values if value is not None]
        if not numbers:
            return None
        cuts = statistics.quantiles(numbers, n=100, method="inclusive") if len(numbers) > 1 else numbers * 99
        return cls(cuts[49], cuts[89], cuts[94], cuts[98], len(numbers))

    @property
    def values(self) -> tuple[float, ...]:
        """The percentiles in their order."""
        return self.p50, self.p90, self.p95, self.p99


class Latency(msgspec.Struct, frozen=True):
    """The latencies of good requests in seconds; None is unknown."""

    ttft: Percentiles | None = None
    tpot: Percentiles | None = None
    itl: Percentiles | None = None
    e2e: Percentiles | None = None

    @classmethod
    def from_requests(cls, good: Sequence[RequestDone], gaps: Iterable[float] = ()) -> Latency:
        """Return the latencies of requests, and of the gaps between their arrivals."""
        return cls(
            ttft=Percentiles.from_values(request.ttft for request in good),
            tpot=Percentiles.from_values(1 / r.decode_tok_s if r.decode_tok_s else None for r in good),
            itl=Percentiles.from_values(gaps),
            e2e=Percentiles.from_values(request.total for request in good),
        )


def group_latencies(done: Sequence[RequestDone], gaps: Mapping[str, Sequence[float]]) -> dict[str, Latency]:
    """Return the latencies of each kind of prompt and, under an empty name, of all together."""
    good = [request for request in done if not request.error]
    kinds = dict.fromkeys(request.kind for request in good)
    by_kind = {k: Latency.from_requests([r for r in good if r.kind == k], gaps.get(k, ())) for k in kinds}
    return by_kind | {"": Latency.from_requests(good, [gap for own in gaps.values() for gap in own])}


class Slo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A service-level objective: the most seconds that a request may take; None asks for nothing."""

    ttft: Amount | None = None
    tpot: Amount | None = None
    e2e: Amount | None = None

    def is_met(self, request: RequestDone) -> bool:
        """Whether a request met all that is asked; one that failed or whose figure is unknown did not."""
        tpot = 1 / request.decode_tok_s if request.decode_tok_s else None
        pairs = ((self.ttft, request.ttft), (self.tpot, tpot), (self.e2e, request.total))
        return not request.error and all(most is None or (taken is not None and taken <= most) for most, taken in pairs)


def parse_slo(text: str) -> Slo:
    """Return the objective of a text such as `ttft=0.5,tpot=0.05,e2e=10`, in seconds.

    Raises:
        UsageError: it is not of that form.
    """
    limits: dict[str, float] = {}
    for word in text.split(","):
        name, _, seconds = word.partition("=")
        try:
            limits[name] = float(seconds)
        except ValueError:
            limits[name] = math.nan
        if name not in Slo.__struct_fields__ or not 0 < limits[name] < math.inf:
            keys = ", ".join(Slo.__struct_fields__)
            raise UsageError(f"--slo: expected KEY=SECONDS, not '{clean_line(word)}'", hint=f"KEY is one of {keys}")
    return Slo(**limits)


class Goodput(msgspec.Struct, frozen=True):
    """How many of `n` requests met an objective, and how many per second do, of all that end in the measured window."""

    slo: Slo
    met: Whole
    n: Whole
    per_second: Amount | None = None

    @classmethod
    def from_requests(cls, slo: Slo, done: Sequence[RequestDone], completed: float | None) -> Goodput:
        """Return the goodput of requests, where so many, those that do not count included, ended per second."""
        met = sum(map(slo.is_met, done))
        return cls(slo, met, len(done), completed * met / len(done) if done and completed is not None else None)
