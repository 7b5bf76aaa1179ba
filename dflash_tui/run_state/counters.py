"""Time series of /metrics counters, and the rates of any window as differences of two readings. Pure.

Between two readings a counter is taken to grow evenly, so that a window may begin and end anywhere. That is safe
since the recorder writes the last equal reading before a change: a rest is never smeared into the burst after it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import zip_longest
from typing import NamedTuple

from msgspec.structs import replace

from dflash_tui.events import Counters
from dflash_tui.run_state.retention import ThinnedSeries, bucket_ends
from dflash_tui.vllm_output.metrics import Rates, compute_rates

# A recorder writes at least every 10 s; a longer silence is a gap, not a zero.
MAX_GAP = 15.0
# ... and each change within a second: no line for this long means that nothing changed.
REST_SECONDS = 2.5


class CounterReading(NamedTuple):
    """One /metrics reading; `joined` to the one before, unless there is none, a gap, or other engines answered."""

    at: float
    counters: Counters
    joined: bool


class CounterSeries(ThinnedSeries[CounterReading]):
    """The counter readings of a run, from which the rates of any window are computed."""

    def __init__(self) -> None:
        super().__init__()
        self._starts: list[float] = []
        # Those of them at which another server or another engine answers, so that nothing grew until then.
        self._restarts: list[float] = []

    def _must_keep(self, value: CounterReading) -> bool:
        return not value.joined

    def add(self, at: float, counters: Counters) -> CounterReading:
        """Add a reading and return it."""
        previous = self[-1] if self else None
        is_same = (
            previous is not None
            and previous.counters.is_of_same_series(counters)
            and not _counters_fell(previous.counters, counters)
        )
        joined = is_same and previous is not None and at - previous.at <= MAX_GAP
        if not joined:
            self._starts.append(at)
        if not is_same:
            self._restarts.append(at)
        reading = CounterReading(at, counters, joined)
        self.append(reading)
        return reading

    def known_until(self, now: float) -> float | None:
        """Return the time up to which the counters are known, `now` at rest; None when recording has stopped."""
        if not self or now - self[-1].at > MAX_GAP:
            return None
        return now if now - self[-1].at > REST_SECONDS else self[-1].at

    def window(self, seconds: float, now: float) -> Rates | None:
        """Return the rates over the last `seconds` before `now`, or None when nothing is known of them.

        The last reading holds until now, but no longer than `MAX_GAP`: recording has stopped by then. A gap in the
        readings shortens the window.
        """
        end = self.known_until(now)
        return None if end is None else self.between(end - seconds, end)

    def mean(self, seconds: float, now: float) -> Rates | None:
        """Return the rates over the last `seconds` as far as readings reach, across times of which there are none.

        What one server counted meanwhile is known, though not when. `window` speaks of the present, and so of none of
        what came before such a time.
        """
        end = self.known_until(now)
        begin = max((end or now) - seconds, self._restarts[-1] if self._restarts else now)
        index, end = self.count_until(begin), end or (self[-1].at if self else now)
        if index < len(self) and not self[index].joined and not (index and self[index - 1].at == begin):
            begin = self[index].at  # it would begin where nobody knows how much was counted already
        before, after = self.at(begin), self.at(end)
        return compute_rates(before, after, end - begin) if before and after and begin < end else None

    def between(self, begin: float, end: float) -> Rates | None:
        """Return the rates between two times, or after the last gap between them; None where nothing is known."""
        start, index = bisect_right(self._starts, end) - 1, self.count_until(end)
        if start < 0:
            return None
        if 0 < index < len(self) and not self[index].joined:
            end = self[index - 1].at  # nothing was recorded from there on
        begin = max(begin, self._starts[start])
        before, after = self.at(begin), self.at(end)
        return compute_rates(before, after, end - begin) if before and after and begin < end else None

    def at(self, time: float) -> Counters | None:
        """Return the counters at a time, between two readings by interpolation; None inside a gap."""
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


def _counters_fell(before: Counters, after: Counters) -> bool:
    return after.generated < before.generated or (after.steps or 0.0) < (before.steps or 0.0)


def _interpolate(before: Counters, after: Counters, share: float) -> Counters:
    """Return the counters a share of the way from `before` to `after`; what moves in jumps is as before."""
    if share <= 0 or before is after:
        return before

    def part(a: float, b: float) -> float:
        return a + (b - a) * share

    def part_or_none(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else part(a, b)

    return replace(
        before,
        generated=part(before.generated, after.generated),
        prompt=part_or_none(before.prompt, after.prompt),
        steps=part_or_none(before.steps, after.steps),
        proposed=part_or_none(before.proposed, after.proposed),
        accepted=part_or_none(before.accepted, after.accepted),
        per_position=tuple(part_or_none(a, b) for a, b in zip_longest(before.per_position, after.per_position)),
        preemptions=part_or_none(before.preemptions, after.preemptions),
        prefix_queries=part(before.prefix_queries, after.prefix_queries),
        prefix_hits=part(before.prefix_hits, after.prefix_hits),
    )
