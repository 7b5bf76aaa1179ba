"""An alarm, and what the rules of several alarms ask of a run's samples. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple, TypeVar

from dflash_tui.common.formatting import GIB, format_duration, pluralize
from dflash_tui.run_state.counters import MAX_GAP
from dflash_tui.run_state.retention import ThinnedSeries, Timestamped
from dflash_tui.run_state.state import RunState

T = TypeVar("T", bound=Timestamped)

_LOW_MEMORY, _LOW_MEMORY_SHARE = GIB, 0.04
_MAX_SAMPLES_BACK = 1000


class Alarm(NamedTuple):
    """A problem of a running server: its kind, when it began, what it is, the figures that show it and what to do."""

    kind: str
    since: float
    what: str
    evidence: str
    hint: str

    def __str__(self) -> str:
        """Return what it is, what shows it and what to do."""
        return f"{self.what}: {self.evidence}\n  → {self.hint}"


def condition_start(samples: ThinnedSeries[T], condition: Callable[[T], bool]) -> float:
    """Return since when a condition has held without interruption, looking back a thousand samples at most."""
    return min(_times_while(samples, condition), default=samples[-1].at)


def _times_while(samples: ThinnedSeries[T], condition: Callable[[T], bool]) -> Iterator[float]:
    for sample in islice(reversed(samples), _MAX_SAMPLES_BACK):
        if not condition(sample):
            return
        yield sample.at


def is_memory_low(left: int | None, total: int) -> bool:
    """Whether so few of a machine's bytes are left that its kernel may soon kill what uses most of them."""
    return left is not None and left < max(_LOW_MEMORY, total * _LOW_MEMORY_SHARE)


class TokenPause(NamedTuple):
    """Requests that run and get no token: how many they are, and since when."""

    running: int
    since: float

    def describe(self, now: float) -> str:
        """Return the requests, and for how long they have had no token."""
        return f"{pluralize(self.running, 'request')} running, no token for {format_duration(now - self.since)}"


def find_token_pause(state: RunState, now: float) -> TokenPause | None:
    """Return how long running requests have had no token; None when none runs, or when that is not known."""
    last = state.readings.latest(now, MAX_GAP)
    if last is None or not last.counters.running:
        return None
    generated = last.counters.generated
    since = condition_start(state.readings, lambda r: bool(r.counters.running) and r.counters.generated == generated)
    return TokenPause(last.counters.running, since)
