"""The state of one run, folded from its events. Pure: the same events always give the same state."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dflash_tui.events import (
    AnswerHeld,
    AnyEvent,
    Autopsy,
    EngineInitialized,
    Exited,
    GpusSampled,
    Health,
    HealthChanged,
    Histogram,
    LatenciesSampled,
    Launched,
    LoadLogged,
    LogLine,
    MemorySampled,
    Phase,
    PhaseStarted,
    Preparing,
    Problem,
    ProcessorsSampled,
    Progressed,
    RankSampled,
    RequestDone,
    Sampled,
    SpeculationLogged,
    Stated,
    Step,
    Stopping,
    Suspended,
)
from dflash_tui.run_state.finished_requests import FinishedLog
from dflash_tui.run_state.series import MAX_GAP, CounterSeries, ThinnedSeries, Timestamped, bucket_ends
from dflash_tui.run_state.speculation import SpeculationTotals
from dflash_tui.run_state.startup import PhaseSpan, Startup
from dflash_tui.vllm_output.known_failures import list_symptoms
from dflash_tui.vllm_output.metrics import subtract_histograms

MAX_REQUESTS = 500
MAX_LINES = 5000
_MAX_PROBLEMS = 100
# Messages of this many processes may be interleaved line by line.
_MIXED = 16
T = TypeVar("T", bound=Timestamped)


@dataclass
class RunState:
    """The state of one run; only `apply` changes it. Times are in seconds since the epoch."""

    launched: Launched | None = None
    """The launch; None before it, and for a server that dflash-tui did not launch."""
    preparing: dict[Step, Preparing] = field(default_factory=dict)
    """The latest event of each step before the launch."""
    step_began: dict[Step, float] = field(default_factory=dict)
    far_steps: dict[tuple[str, Step], Preparing] = field(default_factory=dict)
    """The latest event of each step on another host."""
    phases: dict[Phase, float] = field(default_factory=dict)
    """When each phase of the start was first entered."""
    startup: Startup = field(default_factory=Startup)
    progress: Progressed | None = None
    """The progress bar of the running phase, if there is one."""
    log_figures: dict[str, Stated] = field(default_factory=dict)
    """The first value of each figure in the log, such as the size of the KV cache, by name."""
    initialized: EngineInitialized | None = None
    logged_speculation: SpeculationLogged | None = None
    """The log's last speculation line: the only source if /metrics cannot be read."""
    speculation_totals: SpeculationTotals = field(default_factory=SpeculationTotals)
    """The sums over all speculation lines."""
    loads: ThinnedSeries[LoadLogged] = field(default_factory=ThinnedSeries)
    """The log's lines about running and waiting requests."""
    health: Health = Health.STARTING
    """The last result of /health and the first request."""
    health_detail: str = ""
    """Why the server is unhealthy or its counters cannot be read; else empty."""
    health_at: float = 0.0
    """When the health last changed."""
    warm_at: float | None = None
    """When the server first answered a request."""
    readings: CounterSeries = field(default_factory=CounterSeries)
    latencies: ThinnedSeries[LatenciesSampled] = field(default_factory=ThinnedSeries)
    memory: ThinnedSeries[MemorySampled] = field(default_factory=ThinnedSeries)
    gpus: ThinnedSeries[GpusSampled] = field(default_factory=ThinnedSeries)
    processors: ThinnedSeries[ProcessorsSampled] = field(default_factory=ThinnedSeries)
    """The server's CPU use, if it has no GPU."""
    suspended: Suspended | None = None
    """The suspended processes; without pids once all of them run again."""
    far_ranks: dict[int, RankSampled] = field(default_factory=dict)
    """The last sample of each rank on another host, by rank number."""
    rank_samples: dict[int, ThinnedSeries[RankSampled]] = field(default_factory=dict)
    first_answer: AnswerHeld | None = None
    """The check of the weights by the first greedy answer, for a server over several hosts."""
    finished: FinishedLog = field(default_factory=FinishedLog)
    """The finished requests, including those of other clients."""
    requests: deque[RequestDone] = field(default_factory=lambda: deque(maxlen=MAX_REQUESTS))
    """The last requests that dflash-tui sent."""
    lines: deque[LogLine] = field(default_factory=lambda: deque(maxlen=MAX_LINES))
    """The last lines of the log."""
    line_count: int = 0
    """The number of lines that the log has had."""
    problems: deque[Problem] = field(default_factory=lambda: deque(maxlen=_MAX_PROBLEMS))
    """The errors in the log that may explain a failure, without symptoms."""
    stopping: bool = False
    """Whether the server was asked to stop."""
    exit: Exited | None = None
    """How the server exited; None while it runs."""
    autopsy: Autopsy | None = None
    """What the kernel logged about an exit that was not requested."""

    def apply_all(self, events: Sequence[AnyEvent]) -> None:
        """Update the state by events; log lines are added first and in bulk, in a third of the time."""
        lines = [event for event in events if type(event) is LogLine]
        self._add_lines(lines)
        if len(lines) < len(events):
            for event in events:
                if type(event) is not LogLine:
                    self.apply(event)

    def _add_lines(self, lines: Sequence[LogLine]) -> None:
        self.lines.extend(lines)
        self.line_count += len(lines)

    def apply(self, event: AnyEvent) -> None:  # noqa: C901, PLR0912, PLR0915 - one case per event is the clearest form
        """Update the state by one event."""
        match event:
            case LogLine():
                self._add_lines((event,))
            case Launched():
                self.launched = event
            case Preparing(step=step, host=host) if host:
                self.far_steps[host, step] = event
            case Preparing(at=at, step=step):
                self.step_began.setdefault(step, at)
                self.preparing[step] = event
            case PhaseStarted(at=at, phase=phase):
                self.phases.setdefault(phase, at)
                self.progress = None
            case Progressed():
                self.progress = event
            case Stated(name=name):
                self.log_figures.setdefault(name, event)
            case Problem():
                self._apply_problem(event)
            case EngineInitialized():
                self.initialized = self.initialized or event
            case SpeculationLogged():
                self.logged_speculation = event
                self.speculation_totals = self.speculation_totals.add(event)
            case LoadLogged():
                self.loads.append(event)
            case HealthChanged(at=at, health=health, detail=detail):
                self.health_at, self.health, self.health_detail = at, health, detail
                if health is Health.WARM and self.warm_at is None:
                    self.warm_at = at
            case Sampled(at=at, counters=counters):
                self.finished.add_reading(self.readings.add(at, counters))
            case LatenciesSampled():
                self.latencies.append(event)
            case MemorySampled():
                self.memory.append(event)
            case GpusSampled():
                self.gpus.append(event)
            case ProcessorsSampled():
                self.processors.append(event)
            case Suspended():
                self.suspended = event
            case RankSampled(rank=rank):
                self.far_ranks[rank] = event
                self.rank_samples.setdefault(rank, ThinnedSeries()).append(event)
            case AnswerHeld():
                self.first_answer = event
            case RequestDone():
                self.requests.append(event)
                self.finished.add_request(event)
            case Stopping():
                self.stopping = self.stopping or self.exit is None  # leftovers of a failed server may be stopped later
            case Exited(code=code):
                if self.exit is None or (self.exit.code is None and code is not None):
                    self.exit = event
            case Autopsy():
                self.autopsy = event
            case _:
                pass
        self.startup.apply(event)

    def _apply_problem(self, event: Problem) -> None:
        """Keep a problem unless it is a symptom: the first ones explain a failed start, the last ones a later exit."""
        newest = range(len(self.problems) - 1, max(-1, len(self.problems) - 1 - _MIXED), -1)
        for place in newest:
            if (shorter := self.problems[place]).process == event.process:
                if event.text.startswith(f"{shorter.text}\n"):
                    self.problems[place] = event
                    return
                break
        if event.kind not in list_symptoms() and (self.up_at is not None or len(self.problems) < _MAX_PROBLEMS):
            self.problems.append(event)

    @property
    def up_at(self) -> float | None:
        """When the log said that the server is up, or None; it may still fail on its first request."""
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
        """Seconds from launch to up (by the log's stamps, to about 1 s) plus the first request's, or None."""
        return None if self.ready_at is None or self.launched is None else self.ready_at - self.launched.at

    @property
    def time_to_up(self) -> float | None:
        """Seconds from launch until the log said that the server is up, or None."""
        return None if self.up_at is None or self.launched is None else self.up_at - self.launched.at

    @property
    def status(self) -> str:
        """One word: preparing, starting, running, up, healthy, warm, unhealthy, stopping, stopped, lost or failed.

        `up` means that the log says so, but /health has not answered yet; only `warm` is ready. `failed` is an exit
        without a request to stop, `lost` one by a reboot of the machine. Ranks other than rank 0 are `running`.
        """
        if self.exit is not None:
            return "stopped" if self.stopping else "lost" if self.exit.lost else "failed"
        if self.stopping:
            return "stopping"
        if self.launched is None:
            return "preparing"
        if self.launched.rank:
            return "running"
        if self.health is Health.STARTING and self.up_at is not None:
            return "up"
        return self.health.value

    @property
    def drafts(self) -> SpeculationTotals:
        """Drafted and accepted tokens since the start, by the counters, else by the log."""
        last = self.readings[-1].counters if self.readings else None
        if last is None or not last.steps or last.proposed is None or last.accepted is None:
            return self.speculation_totals
        positions = tuple(count or 0.0 for count in last.per_position)
        return SpeculationTotals(last.proposed, last.accepted, last.steps, positions)

    def spans(self, now: float) -> list[PhaseSpan]:
        """Return the phases of the start in order of first occurrence; the last one runs until the start is over."""
        return self.startup.spans(now, self.exit.at if self.exit else None)

    def ttft(self, seconds: float, now: float) -> Histogram | None:
        """Return the TTFTs, in seconds, of the last `seconds`; None if there are none."""
        edges = self._window_edges(seconds, now)
        return subtract_histograms(edges[0].ttft, edges[1].ttft) if edges else None

    def tpot(self, seconds: float, now: float) -> Histogram | None:
        """Return the TPOTs, in seconds, of requests that finished in the last `seconds`; None if there are none."""
        edges = self._window_edges(seconds, now)
        return subtract_histograms(edges[0].tpot, edges[1].tpot) if edges else None

    def _window_edges(self, seconds: float, now: float) -> tuple[LatenciesSampled, LatenciesSampled] | None:
        """Return the histograms at both ends of a window, which begins at the first sample at the earliest."""
        if not self.latencies:
            return None
        return self.latencies[max(0, self.latencies.count_until(now - seconds) - 1)], self.latencies[-1]


def sample_series(
    samples: ThinnedSeries[T], now: float, span: float, columns: int, value: Callable[[T], float | None]
) -> list[float]:
    """Return the samples' values at the ends of equal parts of the last `span` seconds; NaN where unknown.

    A sample holds until the next one, which follows within `MAX_GAP` while the run is recorded.
    """
    numbers = []
    for at in bucket_ends(now, span, columns):
        sample = samples.latest(min(at, now), MAX_GAP)
        number = None if sample is None else value(sample)
        numbers.append(math.nan if number is None else number)
    return numbers
