"""Plays a recording by a clock of its own, which can be paused, hurried and set."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from dflash_tui.events import AnyEvent
from dflash_tui.monitoring.recording import Recording

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
# How fast a panel plays unless told: a start of two minutes in half a minute.
PANEL_SPEED = 4.0
_EVENTS_PER_CLOCK_CHECK = 32


class Player:
    """Gives the events of `recording` when they are due; `clock` is what it measures by, in seconds.

    The position is seconds since the launch, from 0 to `duration`; `now` is the same as time of day, for a `RunState`.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        at: float = 0.0,
        speed: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.recording, self._clock = recording, clock
        self.duration = recording.end() - recording.started_at
        self.speed, self.paused = speed, False
        self._since, self._from = clock(), 0.0
        self._events: Iterator[AnyEvent] = recording.events()
        self._next: AnyEvent | None = None
        self.behind = True
        self.seek(at)

    @property
    def position(self) -> float:
        """Seconds since the launch that are played, at most `duration`."""
        played = 0.0 if self.paused else (self._clock() - self._since) * self.speed
        return min(self.duration, self._from + played)

    @property
    def over(self) -> bool:
        """Whether the end is reached."""
        return self.position >= self.duration

    def now(self) -> float:
        """Return the time of day in the recording, in seconds since the epoch."""
        return self.recording.started_at + self.position

    def pause(self, paused: bool) -> None:
        """Hold the clock, or let it go on; at the end it begins anew."""
        if self.over and not paused:
            self.seek(0.0)
        self._set(self.position)
        self.paused = paused

    def hurry(self, steps: int) -> None:
        """Play faster or slower by so many of `SPEEDS`."""
        slower = sum(speed < self.speed for speed in SPEEDS)
        at = slower + steps - (steps > 0 and self.speed not in SPEEDS)
        self._set(self.position)
        self.speed = SPEEDS[max(0, min(len(SPEEDS) - 1, at))]

    def seek(self, position: float) -> bool:
        """Go to a position; return whether all events come again from the first, as after going back."""
        position = max(0.0, min(self.duration, position))
        if back := position < self.position:
            self._events, self._next = self.recording.events(), None
        self._set(position)
        self.behind = True
        return back

    def due(self, seconds: float) -> Iterator[AnyEvent]:
        """Yield what is due and was not given yet, for at most so many seconds; `behind` says whether more is due.

        Raises:
            DflashError: the recording cannot be read any further.
        """
        until, now, count = time.perf_counter() + seconds, self.now(), 0
        self.behind = False
        while (event := self._next or next(self._events, None)) and (event.at <= now or self.over):
            self._next = None
            yield event
            count += 1
            if count % _EVENTS_PER_CLOCK_CHECK == 0 and time.perf_counter() >= until:
                self.behind = True
                return
        self._next = event

    def _set(self, position: float) -> None:
        self._since, self._from = self._clock(), position
