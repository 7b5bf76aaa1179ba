"""Everything known about one run, folded from its events. Pure: applying the same events gives the same state."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from dflash_tui.core.events import (
    Activity,
    AnyEvent,
    Compiled,
    Counters,
    Exited,
    Health,
    HealthChanged,
    Launched,
    LogLine,
    MemorySampled,
    Noted,
    Phase,
    PhaseStarted,
    Preparing,
    Problem,
    Progressed,
    RequestDone,
    Sampled,
    Stated,
    Step,
    Stopping,
)
from dflash_tui.core.failures import advice, root_cause
from dflash_tui.core.startup import PhaseSpan, Startup
from dflash_tui.core.vllm_metrics import Rates, rates

KEPT_SAMPLES = 3600
KEPT_LINES = 5000
KEPT_REQUESTS = 500
# A recorder writes at least every 10 s; a longer silence is a hole, not a zero.
LONGEST_GAP = 15.0
# ... and each change within a second: no line for this long means that nothing changed.
AT_REST = 2.5
_PROBLEMS_KEPT = 100


class Reading(NamedTuple):
    """One /metrics reading and the rates since the reading before it (None for the first, or after a hole)."""

    at: float
    counters: Counters
    rates: Rates | None


class Failure(NamedTuple):
    """What happened, the evidence and what to do about it; the last may be empty."""

    what: str
    evidence: str
    do: str


@dataclass
class RunState:
    """The state of one run; `apply` is the only thing that changes it."""

    launched: Launched | None = None
    preparing: dict[Step, Preparing] = field(default_factory=dict)
    phases: dict[Phase, float] = field(default_factory=dict)
    startup: Startup = field(default_factory=Startup)
    progress: Progressed | None = None
    stated: dict[str, Stated] = field(default_factory=dict)
    health: Health = Health.STARTING
    health_detail: str = ""
    warm_at: float | None = None
    readings: deque[Reading] = field(default_factory=lambda: deque(maxlen=KEPT_SAMPLES))
    memory: deque[MemorySampled] = field(default_factory=lambda: deque(maxlen=KEPT_SAMPLES))
    requests: deque[RequestDone] = field(default_factory=lambda: deque(maxlen=KEPT_REQUESTS))
    lines: deque[LogLine] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    line_count: int = 0
    problems: list[Problem] = field(default_factory=list)
    stopping: bool = False
    exit: Exited | None = None

    def apply(self, event: AnyEvent) -> None:  # noqa: C901, PLR0912 - one case per event is the clearest form
        """Take one event into the state."""
        match event:
            case Launched():
                self.launched = event
            case Preparing(step=step):
                self.preparing[step] = event
            case LogLine():
                self.lines.append(event)
                self.line_count += 1
            case PhaseStarted(at=at, phase=phase):
                self.phases.setdefault(phase, at)
                self.startup.take(event)
                self.progress = None
            case Progressed():
                self.progress = event
                self.startup.take(event)
            case Noted() | Compiled() | Activity():
                self.startup.take(event)
            case Stated(name=name):
                self.stated.setdefault(name, event)
            case Problem():
                if len(self.problems) < _PROBLEMS_KEPT:
                    self.problems.append(event)
            case HealthChanged():
                self.startup.take(event)
                self._take_health(event)
            case Sampled(at=at, counters=counters):
                self._take_reading(at, counters)
            case MemorySampled():
                self.memory.append(event)
            case RequestDone():
                self.startup.take(event)
                self.requests.append(event)
            case Stopping():
                self.stopping = True
            case Exited(code=code):
                if self.exit is None or (self.exit.code is None and code is not None):
                    self.exit = event

    def _take_health(self, event: HealthChanged) -> None:
        self.health, self.health_detail = event.health, event.detail
        if event.health is Health.WARM and self.warm_at is None:
            self.warm_at = event.at

    def _take_reading(self, at: float, counters: Counters) -> None:
        last = self.readings[-1] if self.readings else None
        recent = last is not None and at - last.at <= LONGEST_GAP
        since = rates(last.counters, counters, at - last.at) if last and recent else None
        self.readings.append(Reading(at, counters, since))

    @property
    def up_at(self) -> float | None:
        """When the log said that the server serves, or None; it may still die on its first request."""
        return self.phases.get(Phase.UP)

    @property
    def ready_at(self) -> float | None:
        """When the server was up and had generated once, or None."""
        return self.startup.ready_at

    @property
    def started_at(self) -> float | None:
        """When the server was launched, or None before that."""
        return self.launched.at if self.launched else None

    @property
    def time_to_ready(self) -> float | None:
        """Seconds from launch to up by the log's stamps (so to about one second) and of the first request, or None."""
        started = self.started_at
        return self.ready_at - started if self.ready_at is not None and started is not None else None

    @property
    def status(self) -> str:
        """One word: preparing, starting, up, healthy, warm, unhealthy, stopping, stopped or failed.

        `up` is what the log says while nobody has asked the server yet; only `warm` is ready.
        """
        if self.exit is not None:
            return "stopped" if self.stopping else "failed"
        if self.stopping:
            return "stopping"
        if self.launched is None:
            return "preparing"
        if self.health is Health.STARTING and self.up_at is not None:
            return "up"
        return self.health.value

    @property
    def failure(self) -> Failure | None:
        """What went wrong, the line of the log that shows it best and what to do; None while nothing did."""
        cause = root_cause(self.problems)
        evidence, do = (cause.text, advice(cause.kind)) if cause else ("", "")
        if self.status == "unhealthy":
            return Failure("the server runs but does not answer as it should", self.health_detail or evidence, do)
        if self.exit is None or self.stopping:
            return None
        first = self.startup.first
        when = "ended before it was ready" if self.up_at is None else "died while serving"
        if self.up_at is not None and first is not None and first.error:
            when = "answered /health and died on its first request"
        code = "unknown" if self.exit.code is None else str(self.exit.code)
        if cause is None:
            evidence = "the log ends without an error"
            do = "It was probably killed, often by the system for want of memory: see dmesg."
        return Failure(f"the server {when} (exit code {code})", evidence, do)

    def spans(self, now: float) -> list[PhaseSpan]:
        """Return the start-up phases in the order they first occurred, the last one still running unless over."""
        return self.startup.spans(now, self.exit.at if self.exit else None)

    def window(self, seconds: float, now: float) -> Rates | None:
        """Return the rates over the last `seconds` before `now`, or None when nothing is known of them.

        A recorder writes each change within a second, so a reading that nothing followed for longer still holds
        now; after `LONGEST_GAP` nobody records any more. A hole in the readings shortens the window.
        """
        if not self.readings or now - self.readings[-1].at > LONGEST_GAP:
            return None
        last = self.readings[-1]
        end = now if now - last.at > AT_REST else last.at
        begin, first_at, first = end - seconds, last.at, last.counters
        later = end
        for reading in reversed(self.readings):
            if later - reading.at > LONGEST_GAP:
                break
            resting = later - reading.at > AT_REST
            first_at, first = (max(reading.at, begin) if resting else reading.at), reading.counters
            if reading.at <= begin:
                break
            later = reading.at
        return rates(first, last.counters, end - first_at)

    def series(self, value: str, now: float, span: float, columns: int) -> list[float]:
        """Return `columns` means of `value` over the last `span` seconds, oldest first; NaN where nothing is known.

        `value` is `tok_s` (tokens per second), `acceptance` (0 to 1), `acceptance_length` (tokens per step),
        `steps_s` (steps per second) or `memory` (bytes).
        """
        step = span / columns
        sums, counts = [0.0] * columns, [0] * columns
        for since, until, number in self._points(value, now - span):
            first = max(0, math.ceil((since - now + span) / step))
            last = min(columns - 1, math.floor((until - now + span) / step))
            for column in range(min(first, last), last + 1):
                if column >= 0:
                    sums[column] += number
                    counts[column] += 1
        return [total / n if n else math.nan for total, n in zip(sums, counts, strict=True)]

    def _points(self, value: str, since: float) -> list[tuple[float, float, float]]:
        """Return (from, until, number) of each sample whose time is `since` or later."""
        points: list[tuple[float, float, float]] = []
        if value == "memory":
            at = None
            for sample in reversed(self.memory):
                if sample.at < since:
                    break
                points.append((sample.at, at if at and at - sample.at <= LONGEST_GAP else sample.at, sample.used))
                at = sample.at
            return points
        for reading in reversed(self.readings):
            if reading.at < since:
                break
            number = getattr(reading.rates, value) if reading.rates else None
            if reading.rates and number is not None:
                points.append((reading.at - reading.rates.seconds, reading.at, number))
        return points
