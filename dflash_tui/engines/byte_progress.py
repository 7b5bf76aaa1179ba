"""How much of what is fetched or copied is there: the rate of the last ten seconds, and how long the rest takes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from dflash_tui.common.formatting import format_duration, format_gigabytes
from dflash_tui.events import Preparing, Step

_WINDOW = 10.0
_STALLED = 60.0


class ByteProgress:
    """Reports how much of something is there."""

    def __init__(self, name: str, total: int, before: int, report: Callable[[Preparing], None], way: str = "") -> None:
        """Begin where an earlier try ended.

        Args:
            name: what it is.
            total: all bytes of it.
            before: the bytes that are there at the start.
            report: called with each event.
            way: which way they come. With one the figures come first, since the end of a line may not be seen.
        """
        self._name, self._total, self._before, self._report, self._way = name, total, before, report, way
        self._moved = self._began = time.monotonic()
        self._readings = deque([(self._began, before)])

    def report(self, amount: int) -> None:
        """Report that `amount` bytes are there, with the rate and what is left."""
        now = time.monotonic()
        if amount > self._readings[-1][1]:
            self._moved = now
        self._readings.append((now, amount))
        while now - self._readings[1][0] >= _WINDOW:
            self._readings.popleft()
        began, before = self._readings[0]
        rate = (amount - before) / (now - began) if now > began else 0.0
        figures = f"{format_gigabytes(amount)} of {format_gigabytes(self._total)}"
        words = [figures if self._way else f"{self._name}: {figures}"]
        if now - self._moved >= _STALLED:
            words.append(f"stalled for {format_duration(now - self._moved)}")
        elif rate > 0:
            words += [f"{rate / 1e6:.1f} MB/s", f"{format_duration((self._total - amount) / rate)} left"]
        words += [f"{self._name} {self._way}"] if self._way else []
        fraction = min(0.99, amount / self._total) if self._total else None
        self._report(Preparing(time.time(), Step.MODELS, " · ".join(words), fraction))

    def finish(self, done: str) -> None:
        """Report the end, with the word for what was done."""
        new, took = format_gigabytes(self._total - self._before), format_duration(time.monotonic() - self._began)
        name = f"{self._name} {self._way}".rstrip()
        words = f"{name}: {format_gigabytes(self._total)}, {new} {done} in {took}"
        self._report(Preparing(time.time(), Step.MODELS, words, 1.0, done=True))
