"""Bounded time series of a run, the counters of /metrics among them, and the rates of any window. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple, Protocol, TypeVar, overload

from msgspec.structs import replace

from dflash_tui.events import Counters, LogLine
from dflash_tui.vllm_output.metrics import Rates, compute_rates

DENSE_SECONDS = 3700.0
THINNED_INTERVAL = 600.0
MAX_AGE = 86_400.0
THINNING_PERIOD = 60
MAX_LINES = 5000
# Of text; lines of the usual 200 characters take half of it.
MAX_BYTES = 2 << 20


class Timestamped(Protocol):
    """A value with a time stamp, in seconds since the epoch."""

    @property
    def at(self) -> float:
        """The time stamp."""
        ...


T = TypeVar("T", bound=Timestamped)


class ThinnedSeries(Sequence[T]):
    """A time series that is appended to, and whose old values are thinned out and finally dropped."""

    def __init__(self) -> None:
        self._values: list[T] = []
        self._times: list[float] = []
        self._added = 0

    def append(self, value: T) -> None:
        """Add the newest value; one that is older than the last one gets the last one's time."""
        self._values.append(value)
        self._times.append(max(value.at, self._times[-1]) if self._times else value.at)
        self._added += 1
        if self._added % THINNING_PERIOD == 0:
            self._thin()

    def count_until(self, at: float) -> int:
        """Return the number of values at or before `at`."""
        return bisect_right(self._times, at)

    def latest(self, at: float, max_age: float) -> T | None:
        """Return the newest value of `at` or earlier, unless it is more than `max_age` seconds older.

        In the thinned part each value holds until the next one.
        """
        index = self.count_until(at) - 1
        if self._times and at < self._times[-1] - DENSE_SECONDS:
            max_age = max(max_age, THINNED_INTERVAL)
        return self._values[index] if index >= 0 and at - self._times[index] <= max_age else None

    def _must_keep(self, value: T) -> bool:  # noqa: ARG002 - for those that know more
        return False

    def _thin(self) -> None:
        newest = self._times[-1]
        dense = self.count_until(newest - DENSE_SECONDS)
        places: list[int] = []
        last = -THINNED_INTERVAL
        for index in range(self.count_until(newest - MAX_AGE), dense):
            if self._times[index] - last >= THINNED_INTERVAL or self._must_keep(self._values[index]):
                places.append(index)
                last = self._times[index]
        self._values = [self._values[index] for index in places] + self._values[dense:]
        self._times = [self._times[index] for index in places] + self._times[dense:]

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self._values[index]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[T]:
        return iter(self._values)

    def __reversed__(self) -> Iterator[T]:
        return reversed(self._values)


class LogTail(Sequence[LogLine]):
    """The last lines of a log: at most `MAX_LINES`, with at most `MAX_BYTES` of text."""

    def __init__(self) -> None:
        self._lines: deque[LogLine] = deque()
        self.bytes = 0

    def extend(self, newer: Sequence[LogLine]) -> None:
        """Add the newest lines, and drop the oldest ones beyond the limits."""
        lines = self._lines
        if len(newer) >= MAX_LINES:
            lines.clear()
            self.bytes = 0
        for line in newer[-MAX_LINES:]:
            lines.append(line)
            self.bytes += _measure(line.text)
        while len(lines) > MAX_LINES or self.bytes > MAX_BYTES:
            self.bytes -= _measure(lines.popleft().text)

    @overload
    def __getitem__(self, index: int) -> LogLine: ...
    @overload
    def __getitem__(self, index: slice) -> list[LogLine]: ...
    def __getitem__(self, index: int | slice) -> LogLine | list[LogLine]:
        return list(self._lines)[index] if isinstance(index, slice) else self._lines[index]

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[LogLine]:
        return iter(self._lines)

    def __reversed__(self) -> Iterator[LogLine]:
        return reversed(self._lines)


def _measure(text: str) -> int:
    """Return how many bytes a text has at most."""
    return len(text) if text.isascii() else 4 * len(text)


def bucket_ends(now: float, span: float, count: int) -> list[float]:
    """Return the ends of `count` equal parts of the last `span` seconds; the last one holds `now`.

    They stand still until a whole part has passed, so that a chart moves by columns instead of shimmering.
    """
    step = span / count
    last = math.ceil(now / step - 1e-6) * step
    return [last - (count - 1 - part) * step for part in range(count)]


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
