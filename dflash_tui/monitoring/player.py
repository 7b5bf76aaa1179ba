"""Play a recording by a clock of its own that can be paused, sped up and set to any position."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from dflash_tui.events import AnyEvent
from dflash_tui.monitoring.recording import Recording

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
# The default speed of the panel: a start of two minutes takes half a minute.
PANEL_SPEED = 4.0
_EVENTS_PER_CLOCK_CHECK = 32


class PlaybackClock:
    """A position that moves with the clock, faster or slower; it can be paused and set.

    Args:
        duration: where it ends, in seconds.
        speed: how much faster than the clock it moves.
        clock: returns the real time, in seconds.
    """

    duration: float
    """Where it ends, in seconds."""
    speed: float
    """How much faster than recorded it plays."""
    paused: bool
    """Whether the clock stands still."""

    def __init__(self, duration: float, speed: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.duration, self.speed, self.paused, self._clock = duration, speed, False, clock
        self._since, self._from = clock(), 0.0

    @property
    def position(self) -> float:
        """The position in seconds, at most `duration`."""
        played = 0.0 if self.paused else (self._clock() - self._since) * self.speed
        return min(self.duration, self._from + played)

    @property
    def finished(self) -> bool:
        """Whether the end is reached."""
        return self.position >= self.duration

    def pause(self, paused: bool) -> None:
        """Pause or resume; resuming at the end starts from the beginning."""
        if self.finished and not paused:
            self.seek(0.0)
        self._set_position(self.position)
        self.paused = paused

    def change_speed(self, steps: int) -> None:
        """Play faster or slower by a number of steps of `SPEEDS`."""
        slower = sum(speed < self.speed for speed in SPEEDS)
        at = slower + steps - (steps > 0 and self.speed not in SPEEDS)
        self._set_position(self.position)
        self.speed = SPEEDS[max(0, min(len(SPEEDS) - 1, at))]

    def seek(self, position: float) -> bool:
        """Go to a position; return whether that is back."""
        position = max(0.0, min(self.duration, position))
        back = position < self.position
        self._set_position(position)
        return back

    def _set_position(self, position: float) -> None:
        self._since, self._from = self._clock(), position


class Player(PlaybackClock):
    """Yields the events of a recording when they are due.

    Args:
        recording: the recording to play.
        at: where to start, in seconds since the launch.
        speed: how much faster than recorded to play.
        clock: returns the real time, in seconds.
    """

    recording: Recording
    """The recording that is played."""
    behind: bool
    """Whether more events are due than were yielded."""

    def __init__(
        self,
        recording: Recording,
        *,
        at: float = 0.0,
        speed: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(recording.last_event_time() - recording.started_at, speed, clock)
        self.recording = recording
        self._events: Iterator[AnyEvent] = recording.events()
        self._next: AnyEvent | None = None
        self.behind = True
        self.seek(at)

    def now(self) -> float:
        """Return the position as seconds since the epoch, which is the time for a `RunState`."""
        return self.recording.started_at + self.position

    def seek(self, position: float) -> bool:
        """Go to a position; return whether events are yielded from the first again, as after going back."""
        if back := super().seek(position):
            self._events, self._next = self.recording.events(), None
        self.behind = True
        return back

    def due_events(self, seconds: float) -> Iterator[AnyEvent]:
        """Yield the events that are due, for at most so many seconds; `behind` says whether there are more.

        Raises:
            DflashError: the recording cannot be read any further.
        """
        until, now, count = time.perf_counter() + seconds, self.now(), 0
        self.behind = False
        while (event := self._next or next(self._events, None)) and (event.at <= now or self.finished):
            self._next = None
            yield event
            count += 1
            if count % _EVENTS_PER_CLOCK_CHECK == 0 and time.perf_counter() >= until:
                self.behind = True
                return
        self._next = event
