"""Everything known about one run, folded from its events. Pure: applying the same events gives the same state."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from dflash_tui.events import (
    Activity,
    AnyEvent,
    Autopsy,
    Compiled,
    Exited,
    GpusSampled,
    Health,
    HealthChanged,
    Histogram,
    LatenciesSampled,
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
    Suspended,
)
from dflash_tui.run_state.counters import MAX_GAP, CounterSeries
from dflash_tui.run_state.finished_requests import FinishedLog
from dflash_tui.run_state.retention import LogTail, ThinnedSeries, Timestamped, bucket_ends
from dflash_tui.run_state.startup import PhaseSpan, Startup
from dflash_tui.vllm_output.histogram import subtract_histograms
from dflash_tui.vllm_output.known_failures import SYMPTOMS
from dflash_tui.vllm_output.metrics import Rates

MAX_REQUESTS = 500
_MAX_PROBLEMS = 100
T = TypeVar("T", bound=Timestamped)


@dataclass
class RunState:
    """The state of one run; `apply` is the only thing that changes it."""

    launched: Launched | None = None
    preparing: dict[Step, Preparing] = field(default_factory=dict)
    begun: dict[Step, float] = field(default_factory=dict)
    phases: dict[Phase, float] = field(default_factory=dict)
    startup: Startup = field(default_factory=Startup)
    progress: Progressed | None = None
    stated: dict[str, Stated] = field(default_factory=dict)
    health: Health = Health.STARTING
    health_detail: str = ""
    health_at: float = 0.0
    warm_at: float | None = None
    readings: CounterSeries = field(default_factory=CounterSeries)
    latencies: ThinnedSeries[LatenciesSampled] = field(default_factory=ThinnedSeries)
    memory: ThinnedSeries[MemorySampled] = field(default_factory=ThinnedSeries)
    gpus: ThinnedSeries[GpusSampled] = field(default_factory=ThinnedSeries)
    suspended: Suspended | None = None
    finished: FinishedLog = field(default_factory=FinishedLog)
    requests: deque[RequestDone] = field(default_factory=lambda: deque(maxlen=MAX_REQUESTS))
    lines: LogTail = field(default_factory=LogTail)
    line_count: int = 0
    problems: deque[Problem] = field(default_factory=lambda: deque(maxlen=_MAX_PROBLEMS))
    stopping: bool = False
    exit: Exited | None = None
    autopsy: Autopsy | None = None

    def apply(self, event: AnyEvent) -> None:  # noqa: C901, PLR0912 - one case per event is the clearest form
        """Take one event into the state."""
        match event:
            case LogLine():  # first, since there are hundreds of thousands
                self.lines.append(event)
                self.line_count += 1
            case Launched():
                self.launched = event
            case Preparing(at=at, step=step):
                self.begun.setdefault(step, at)
                self.preparing[step] = event
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
            case Problem(kind=kind):
                # A start fails of its first problem, a server of its last ones; a dying one repeats its symptoms.
                if kind not in SYMPTOMS and (self.up_at is not None or len(self.problems) < _MAX_PROBLEMS):
                    self.problems.append(event)
            case HealthChanged():
                self.startup.take(event)
                self._take_health(event)
            case Sampled(at=at, counters=counters):
                self.finished.take_reading(self.readings.take(at, counters))
            case LatenciesSampled():
                self.latencies.append(event)
            case MemorySampled():
                self.memory.append(event)
            case GpusSampled():
                self.gpus.append(event)
            case Suspended():
                self.suspended = event
            case RequestDone():
                self.startup.take(event)
                self.requests.append(event)
                self.finished.take_request(event)
            case Stopping():
                self.stopping = self.stopping or self.exit is None  # what a dead server left may be ended later
            case Exited(code=code):
                if self.exit is None or (self.exit.code is None and code is not None):
                    self.exit = event
            case Autopsy():
                self.autopsy = event

    def _take_health(self, event: HealthChanged) -> None:
        self.health, self.health_detail, self.health_at = event.health, event.detail, event.at
        if event.health is Health.WARM and self.warm_at is None:
            self.warm_at = event.at

    @property
    def up_at(self) -> float | None:
        """When the log said that the server serves, or None; it may still die on its first request."""
        return self.startup.up_at

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
        """One word: preparing, starting, up, healthy, warm, unhealthy, stopping, stopped, lost or failed.

        `up` is what the log says while nobody has asked the server yet; only `warm` is ready.
        """
        if self.exit is not None:
            return "stopped" if self.stopping else "lost" if self.exit.lost else "failed"
        if self.stopping:
            return "stopping"
        if self.launched is None:
            return "preparing"
        if self.health is Health.STARTING and self.up_at is not None:
            return "up"
        return self.health.value

    def spans(self, now: float) -> list[PhaseSpan]:
        """Return the start-up phases in the order they first occurred, the last one still running unless over."""
        return self.startup.spans(now, self.exit.at if self.exit else None)

    def window(self, seconds: float, now: float) -> Rates | None:
        """Return the rates over the last `seconds` before `now`, or None when nothing is known of them."""
        return self.readings.window(seconds, now)

    def ttft(self, seconds: float, now: float) -> Histogram | None:
        """Return the times to the first token, in seconds, of the last `seconds`; None without any."""
        found = self._latencies(seconds, now)
        return subtract_histograms(found[0].ttft, found[1].ttft) if found else None

    def tpot(self, seconds: float, now: float) -> Histogram | None:
        """Return the seconds per token after the first of requests that finished in the last `seconds`."""
        found = self._latencies(seconds, now)
        return subtract_histograms(found[0].tpot, found[1].tpot) if found else None

    def _latencies(self, seconds: float, now: float) -> tuple[LatenciesSampled, LatenciesSampled] | None:
        """Return the histograms at the start and at the end of a window; what began before us is not counted."""
        if not self.latencies:
            return None
        return self.latencies[max(0, self.latencies.until(now - seconds) - 1)], self.latencies[-1]

    def series(self, value: str, now: float, span: float, columns: int) -> list[float]:
        """Return `columns` values over the last `span` seconds, oldest first; NaN where nothing is known.

        `value` is a figure of `Rates`, or `memory` (bytes that the server uses).
        """
        if value == "memory":
            return sample_series(self.memory, now, span, columns, lambda sample: sample.used)
        found = self.readings.columns(now, span, columns)
        numbers = [None if rates is None else getattr(rates, value) for rates in found]
        return [math.nan if number is None else number for number in numbers]


def sample_series(
    samples: ThinnedSeries[T], now: float, span: float, columns: int, value: Callable[[T], float | None]
) -> list[float]:
    """Return what samples said at the ends of `columns` equal parts of the last `span` seconds; NaN where unknown.

    A sample holds until the next one, which comes within `LONGEST_GAP` as long as somebody records.
    """
    numbers = []
    for at in bucket_ends(now, span, columns):
        sample = samples.held(min(at, now), MAX_GAP)
        number = None if sample is None else value(sample)
        numbers.append(math.nan if number is None else number)
    return numbers
