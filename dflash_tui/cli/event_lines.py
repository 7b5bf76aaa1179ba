"""Print events, figures and alarms as lines of text or JSON, for commands without a screen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import ClassVar

from dflash_tui.cli.console import is_json, print_data, print_result, print_status, print_text
from dflash_tui.cli.json_lines import CheckLine
from dflash_tui.common.formatting import (
    UNKNOWN,
    format_duration,
    format_gib,
    format_number,
    format_percent,
    format_synthetic,
)
from dflash_tui.events import (
    GREEDY_WARM_UP,
    LONG_WARM_UP,
    OBSERVER_SOURCE,
    WARM_UP,
    AnswerHeld,
    AnyEvent,
    Event,
    Health,
    HealthChanged,
    Launched,
    LogLine,
    Phase,
    PhaseStarted,
    Preparing,
    RequestDone,
    encode,
)
from dflash_tui.planning.plan import Plan
from dflash_tui.presentation.benchmark_text import format_latency
from dflash_tui.run_state.alarms import Alarm, find_alarms
from dflash_tui.run_state.series import MAX_GAP
from dflash_tui.run_state.state import RunState

# Seconds below which a duration is printed in milliseconds.
_LEAST_TENTH = 0.1


def print_event(event: Event) -> None:
    """Write an event as a line of JSON to stdout."""
    print_data(encode(event).decode())


class PlanMade(Event, frozen=True, tag="plan"):
    """The plan of the launch that follows."""

    plan: Plan


class CheckDone(Event, frozen=True, tag="check"):
    """The result of a preflight check."""

    check: CheckLine


class Restarting(Event, frozen=True, tag="restarting"):
    """The server of `run` failed; restart number `restart` follows after `wait` seconds."""

    run: str
    restart: int
    wait: float


class WindowFigures(Event, frozen=True, tag="figures"):
    """The figures of the last `seconds`; null is unknown. Shares are 0 to 1, memory is in bytes."""

    HEADER: ClassVar[str] = "    time     tok/s   accept     AL   steps/s     memory  running  waiting"

    synthetic: str
    seconds: float | None
    tok_s: float | None
    steps_s: float | None
    acceptance: float | None
    acceptance_length: float | None
    per_position: tuple[float | None, ...]
    memory: int | None
    running: int | None
    waiting: int | None

    @classmethod
    def from_state(cls, state: RunState, now: float, seconds: float) -> WindowFigures:
        """Return the figures of the last `seconds` of `state`."""
        rates = state.readings.window(seconds, now)
        counters = state.readings[-1].counters if rates else None
        memory = state.memory.latest(now, MAX_GAP)
        return cls(
            at=now,
            synthetic=state.launched.synthetic if state.launched else "",
            seconds=rates.seconds if rates else None,
            tok_s=rates.tok_s if rates else None,
            steps_s=rates.steps_s if rates else None,
            acceptance=rates.acceptance if rates else None,
            acceptance_length=rates.acceptance_length if rates else None,
            per_position=rates.per_position if rates else (),
            memory=memory.used if memory else None,
            running=counters.running if counters else None,
            waiting=counters.waiting if counters else None,
        )

    def line(self, state: RunState) -> str:
        """Return the figures as a row under `HEADER`; its time is since the launch."""
        age = self.at - state.started_at if state.started_at else None
        queue = [UNKNOWN if n is None else str(n) for n in (self.running, self.waiting)]
        return (
            f"{format_duration(age):>8}  {format_number(self.tok_s):>8}  {format_percent(self.acceptance, 1):>7}  "
            f"{format_number(self.acceptance_length, 2):>5}  {format_number(self.steps_s):>8}  "
            f"{format_gib(self.memory):>9}  {queue[0]:>7}  {queue[1]:>7}"
        )


class FigureLines:
    """Prints the figures of the last `seconds` of a state, with a header every 20 rows."""

    def __init__(self, state: RunState, seconds: float) -> None:
        self._state, self._seconds = state, seconds
        self._rows = 0

    def show(self, now: float) -> None:
        """Print the figures at `now`, unless there is no reading of the server yet."""
        if not self._state.readings:
            return
        figures = WindowFigures.from_state(self._state, now, self._seconds)
        if self._rows % 20 == 0:
            print_text(WindowFigures.HEADER)
        print_result(figures, figures.line(self._state))
        self._rows += 1

    async def print_for_ever(self) -> None:
        """Print the figures at each interval while the server runs."""
        while True:
            await asyncio.sleep(self._seconds)
            if not self._state.exit:
                self.show(time.time())


class PreparingLines:
    """Prints the steps before a launch, as JSON or as text; text shows progress at most every 2 s."""

    def __init__(self) -> None:
        self._at = 0.0

    def __call__(self, event: Preparing) -> None:
        """Take one event."""
        if is_json():
            if not event.done:  # finished steps are printed later, with the run's events
                print_event(event)
        elif event.done or event.fraction is None or event.at - self._at >= 2:
            self._at = event.at
            print_status(format_preparing(event))


def format_preparing(event: Preparing) -> str:
    """Return a step before the launch as a line."""
    share = f" ({event.fraction:.0%})" if event.fraction is not None and not event.done else ""
    host = f"{event.host}: " if event.host else ""
    return f"{'✓' if event.done else '·'} {event.step.value:<8} {host}{event.text}{share}"


class EventLines:
    """Prints the events of a run: all of them as JSON, or the important ones as text."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._phase: PhaseStarted | None = None

    def show(self, event: AnyEvent) -> None:
        """Print an event that was applied to the state already."""
        if is_json():
            if not isinstance(event, Preparing) or event.done:  # the start of a step was printed when it began
                print_event(event)
            return
        match event:
            case Launched(synthetic=synthetic) if synthetic:
                print_status(f"({format_synthetic(synthetic)})")
            case PhaseStarted():
                self._print_phase(event)
            case HealthChanged(health=health, detail=detail):
                ready = (
                    f", ready after {format_duration(self._state.time_to_ready)}"
                    if health is Health.WARM and not detail
                    else ""
                )
                print_status(f"● {health.value}{': ' + detail if detail else ''}{ready}")
            case RequestDone(kind=kind, error=error) if kind in {WARM_UP, GREEDY_WARM_UP}:
                which = "first greedy" if kind == GREEDY_WARM_UP else "first"
                print_status(
                    f"  {which} request {f'failed: {error}' if error else f'took {_format_took(event.total)}'}"
                )
            case RequestDone(kind=kind, error="") if kind == LONG_WARM_UP:
                tokens = f"prompt of {event.prompt_tokens} tokens" if event.prompt_tokens else "longer prompt"
                print_status(f"  first {tokens} took {_format_took(event.total)}")
            case AnswerHeld(is_like_before=True, run=run):
                print_status(f"  its first answer starts like that of {run}")
            case LogLine(text=text, source=source) if source == OBSERVER_SOURCE:
                print_status(f"! {text}")
            case _:
                pass

    def show_all(self, events: Iterable[AnyEvent]) -> None:
        """Print events that were all applied to the state already."""
        for event in events:
            self.show(event)

    def _print_phase(self, event: PhaseStarted) -> None:
        """Print how long the previous phase took, unless it is unattributed and shorter than 1 s."""
        before, self._phase = self._phase, event
        if before is not None and (before.phase is not Phase.UNATTRIBUTED or event.at - before.at >= 1):
            print_status(f"  {before.phase.value:<12} {format_duration(event.at - before.at):>8}")
        if event.phase is Phase.UP and self._state.started_at is not None:
            print_status(
                f"  up after {format_duration(self._state.time_to_up)}; it is ready when it has answered a request"
            )


ALARM_INTERVAL = 1.0


class Alarmed(Event, frozen=True, tag="alarm"):
    """An alarm of the server that began at `since`, and has ended if `over`."""

    kind: str
    since: float
    what: str
    evidence: str
    do: str
    over: bool = False


class AlarmLines:
    """Prints which alarms of `state` began or ended since the last refresh."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._active: dict[str, Alarm] = {}

    async def print_for_ever(self) -> None:
        """Print the alarms as they begin and end."""
        while True:
            self.refresh(time.time())
            await asyncio.sleep(ALARM_INTERVAL)

    def refresh(self, now: float) -> None:
        """Print the alarms that began or ended by `now`, each once."""
        there = {alarm.kind: alarm for alarm in find_alarms(self._state, now)}
        for kind, alarm in {**self._active, **there}.items():
            if (kind in self._active) is not (kind in there):
                _print_alarm(alarm, now, over=kind in self._active)
        self._active = there


def _print_alarm(alarm: Alarm, now: float, *, over: bool) -> None:
    if is_json():
        print_event(Alarmed(now, *alarm, over=over))
    elif over:
        print_status(f"✓ {alarm.kind}: over after {format_duration(now - alarm.since)}")
    else:
        print_status(f"! {alarm.kind}: {alarm}")


def _format_took(seconds: float) -> str:
    return format_latency(seconds) if seconds < _LEAST_TENTH else format_number(seconds, 1, "s")
