"""Bounded time series and log tails, so that a server can be watched for weeks in constant memory.

A series keeps all samples of the last hour and one in ten minutes of the day before. Nothing is drawn of that day: it
only says where windows of the whole run begin, and since when something has lasted.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar, overload

from dflash_tui.events import LogLine

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
