"""Bounded time series of a run, including the counters of /metrics, and the rates of any window. Pure.

A series keeps all samples of the last hour, and one per ten minutes of the day before, for windows over the whole run
and conditions that last long.

Counters are interpolated linearly between readings, so that a window may begin and end anywhere. The recorder writes
the last equal reading before a change, so idle time is never smeared into the burst after it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import zip_longest
from operator import attrgetter
from typing import NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from dflash_tui.events import Counters
from dflash_tui.vllm_output.metrics import Rates, compute_rates

DENSE_SECONDS = 3700.0
THINNED_INTERVAL = 600.0
MAX_AGE = 86_400.0
THINNING_PERIOD = 60
# A recorder writes at least every 10 s; a longer silence is a gap, not a zero.
MAX_GAP = 15.0
# ... and each change within a second: no line for this long means that nothing changed.
REST_SECONDS = 2.5
_GROWING = ("generated", "prompt", "steps", "proposed", "accepted", "preemptions", "prefix_queries", "prefix_hits")
_AT = attrgetter("at")


class Timestamped(Protocol):
    """A value with a time stamp `at`, in seconds since the epoch."""

    @property
    def at(self) -> float: ...  # noqa: D102


T = TypeVar("T", bound=Timestamped)


class ThinnedSeries(list[T]):
    """A time series to append to; old values are thinned out and finally dropped."""

    def __init__(self) -> None:
        super().__init__()
        self._added = 0

    def append(self, value: T) -> None:
        """Add the newest value."""
        super().append(value)
        self._added += 1
        if self._added % THINNING_PERIOD == 0:
            self._thin()

    def count_until(self, at: float) -> int:
        """Return the number of values at or before `at`."""
        return bisect_right(self, at, key=_AT)

    def latest(self, at: float, max_age: float) -> T | None:
        """Return the newest value at or before `at`, unless it is more than `max_age` seconds older.

        In the thinned part each value holds until the next one.
        """
        index = self.count_until(at) - 1
        if self and at < self[-1].at - DENSE_SECONDS:
            max_age = max(max_age, THINNED_INTERVAL)
        return self[index] if index >= 0 and at - self[index].at <= max_age else None

    def _must_keep(self, value: T) -> bool:  # noqa: ARG002 - for subclasses
        return False

    def _thin(self) -> None:
        newest = self[-1].at
        dense, last = self.count_until(newest - DENSE_SECONDS), -math.inf
        kept: list[T] = []
        for value in self[self.count_until(newest - MAX_AGE) : dense]:
            if value.at - last >= THINNED_INTERVAL or self._must_keep(value):
                kept.append(value)
                last = value.at
        self[:dense] = kept


class CounterReading(NamedTuple):
    """A /metrics reading; not `joined` if it is the first, follows a gap, or is of another server or engine."""

    at: float
    counters: Counters
    joined: bool


class CounterSeries(ThinnedSeries[CounterReading]):
    """The counter readings of a run, from which the rates of any window are computed."""

    def __init__(self) -> None:
        super().__init__()
        self._starts: list[float] = []
        # The starts at which another server or engine answered: growth is not computed across them.
        self._restarts: list[float] = []

    def _must_keep(self, value: CounterReading) -> bool:
        return not value.joined

    def add(self, at: float, counters: Counters) -> CounterReading:
        """Add a reading and return it."""
        before = self[-1] if self else None
        is_same = before is not None and before.counters.is_of_same_series(counters) and not (
            counters.generated < before.counters.generated or (counters.steps or 0.0) < (before.counters.steps or 0.0)
        )  # fmt: skip
        joined = is_same and before is not None and at - before.at <= MAX_GAP
        if not joined:
            self._starts.append(at)
        if not is_same:
            self._restarts.append(at)
        reading = CounterReading(at, counters, joined)
        self.append(reading)
        return reading

    def known_until(self, now: float) -> float | None:
        """Return the time up to which the counters are known, `now` if they rest; None if recording has stopped."""
        if not self or now - self[-1].at > MAX_GAP:
            return None
        return now if now - self[-1].at > REST_SECONDS else self[-1].at

    def window(self, seconds: float, now: float) -> Rates | None:
        """Return the rates over the `seconds` before `now`; None if recording has stopped or never began.

        A gap in the readings shortens the window.
        """
        end = self.known_until(now)
        return None if end is None else self.between(end - seconds, end)

    def mean(self, seconds: float, now: float) -> Rates | None:
        """Return the rates over the last `seconds`, across gaps, as far as readings of this server reach.

        The growth during a gap is known, only not when. `window` describes the present, so it ends at a gap.
        """
        end = self.known_until(now)
        begin = max((end or now) - seconds, self._restarts[-1] if self._restarts else now)
        index, end = self.count_until(begin), end or (self[-1].at if self else now)
        if index < len(self) and not self[index].joined and not (index and self[index - 1].at == begin):
            begin = self[index].at  # the counters at `begin`, inside a gap, are unknown
        return self._compute_rates(begin, end)

    def between(self, begin: float, end: float) -> Rates | None:
        """Return the rates between two times, or after the last gap between them; None if they are unknown."""
        start, index = bisect_right(self._starts, end) - 1, self.count_until(end)
        if start < 0:
            return None
        if 0 < index < len(self) and not self[index].joined:
            end = self[index - 1].at  # nothing was recorded from there on
        return self._compute_rates(max(begin, self._starts[start]), end)

    def _compute_rates(self, begin: float, end: float) -> Rates | None:
        before, after = self.at(begin), self.at(end)
        return compute_rates(before, after, end - begin) if before and after and begin < end else None

    def at(self, time: float) -> Counters | None:
        """Return the counters at a time, interpolated between two readings; None inside a gap."""
        index = self.count_until(time) - 1
        if index < 0:
            return None
        reading, after = self[index], self[index + 1] if index + 1 < len(self) else None
        if after is None or not after.joined:
            return reading.counters if time - reading.at <= MAX_GAP else None
        if after.at <= reading.at:
            return reading.counters
        return _interpolate(reading.counters, after.counters, (time - reading.at) / (after.at - reading.at))

    def columns(self, now: float, span: float, count: int) -> list[Rates | None]:
        """Return the rates of `count` equal parts of the last `span` seconds, oldest first; None where unknown."""
        end = self.known_until(now)
        last_known = (self[-1].at if self else -math.inf) if end is None else end
        step = span / count
        bounds = [(part - step, min(part, last_known)) for part in bucket_ends(now, span, count)]
        return [self.between(begin, end) if begin < end else None for begin, end in bounds]


def _interpolate(before: Counters, after: Counters, share: float) -> Counters:
    """Return the counters a share of the way from `before` to `after`; those not in `_GROWING` stay as before."""
    if share <= 0 or before is after:
        return before

    def part(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else a + (b - a) * share

    grown = {name: part(getattr(before, name), getattr(after, name)) for name in _GROWING}
    positions = tuple(part(a, b) for a, b in zip_longest(before.per_position, after.per_position))
    return replace(before, per_position=positions, **grown)


def bucket_ends(now: float, span: float, count: int) -> list[float]:
    """Return the ends of `count` equal parts of the last `span` seconds; the last part contains `now`.

    They stay until a whole part has passed, so that a chart moves by columns instead of shimmering.
    """
    step = span / count
    last = math.ceil(now / step - 1e-6) * step
    return [last - (count - 1 - part) * step for part in range(count)]
