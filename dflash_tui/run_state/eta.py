"""Estimate when a start will be ready, by the medians of earlier starts of the same kind. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from dflash_tui.events import Phase, Preparing, Step
from dflash_tui.run_state.startup import Startup

_MIN_STEP_SECONDS = 0.5  # a shorter step had nothing to do
MAX_STARTS = 5  # only the last starts count: what was true a month ago may no longer be
_PHASE_ORDER = list(Phase)


class RecordedStart(msgspec.Struct, frozen=True):
    """One start of a server that came up; durations in seconds."""

    run: str
    """The id of the run."""
    at: float
    """The time of the launch, in seconds since the epoch."""
    recipe: str
    """The name of the recipe."""
    mode: str
    """`eager` or `compile`."""
    engine: str
    """The vLLM package and version."""
    setup: str
    """Profile, variant, number of drafted tokens and, of several, ranks and hosts; for display."""
    kind: tuple[str, ...]
    """All that two launches must share to be comparable."""
    cache: str
    """What torch.compile found in its cache, see `Startup.cache`."""
    phases: dict[Phase, float]
    """The duration of each phase."""
    up: float
    """From the launch until the log said that the server is up."""
    first_request: float | None = None
    """The duration of the first real generation, or None when none is recorded."""
    synthetic: str = ""
    """Why the figures are not those of a real model; empty for a real one."""
    measures: tuple[str, ...] = ()
    """The measures for a shorter start that it had, by name."""

    @property
    def ready(self) -> float | None:
        """Seconds from the launch to the end of the first real generation, or None when there was none."""
        return None if self.first_request is None else self.up + self.first_request


class MedianSeconds(NamedTuple):
    """A median duration in seconds, and the number of starts behind it."""

    seconds: float
    n: int


class ExpectedStart(NamedTuple):
    """The expected durations of a start: each phase, the first request, until ready, and the longest start seen."""

    cache: str
    phases: dict[Phase, MedianSeconds]
    first_request: MedianSeconds | None
    ready: MedianSeconds | None
    longest: float | None


class Eta(NamedTuple):
    """Seconds until ready, estimated from `n` starts; None when this start is longer than each of them was."""

    seconds: float | None
    n: int
    longest: float


def expect_startup(starts: Sequence[RecordedStart], cache: str = "") -> ExpectedStart | None:
    """Return the expected durations by the last starts that found the same `cache`; None without any.

    While `cache` is not known yet (empty), the newest start that did not find a cold one is the model.
    """
    expected_cache = cache or _likely_cache(starts)
    recent = [start for start in starts if start.cache == expected_cache][-MAX_STARTS:]
    if not recent:
        return None
    phases = {}
    for phase in _PHASE_ORDER:
        if guess := _median(start.phases[phase] for start in recent if phase in start.phases):
            phases[phase] = guess
    ready = [start.ready for start in recent if start.ready is not None]
    first = _median(start.first_request for start in recent if start.first_request is not None)
    return ExpectedStart(expected_cache, phases, first, _median(ready), max(ready, default=None))


def _likely_cache(starts: Sequence[RecordedStart]) -> str:
    """Return the cache state to expect of a new start: the first one fills the cache."""
    caches = [start.cache for start in starts]
    return next((cache for cache in reversed(caches) if cache != "cold"), caches[-1] if caches else "")


def _median(values: Iterable[float]) -> MedianSeconds | None:
    seconds = list(values)
    return MedianSeconds(statistics.median(seconds), len(seconds)) if seconds else None


def estimate_time_to_ready(startup: Startup, expected: ExpectedStart, elapsed: float, now: float) -> Eta | None:
    """Return the seconds until this start is ready; None when nothing is known.

    The running phase and all later ones count with their medians; a phase that is over no longer counts.

    Args:
        startup: the start.
        expected: the durations to expect of it.
        elapsed: the seconds since its launch.
        now: the time, in seconds since the epoch.
    """
    if expected.ready is None or expected.longest is None or startup.ready_at is not None:
        return None
    remaining = expected.first_request.seconds if expected.first_request else 0.0
    if startup.up_at is None:
        spent = {span.phase: span.seconds for span in startup.spans(now)}
        reached = _running_phase_index(startup)
        for phase, guess in expected.phases.items():
            if phase is not Phase.UNATTRIBUTED and _PHASE_ORDER.index(phase) >= reached:
                remaining += max(0.0, guess.seconds - spent.get(phase, 0.0))
    else:
        remaining = max(0.0, remaining - (now - startup.up_at))
    if elapsed > expected.longest:
        return Eta(None, expected.ready.n, expected.longest)
    return Eta(remaining, expected.ready.n, expected.longest)


def _running_phase_index(startup: Startup) -> int:
    """Return the index of the running phase; compiling and profiling alternate, so while one runs both may come."""
    attributed = [change.phase for change in startup.phase_changes if change.phase is not Phase.UNATTRIBUTED]
    phase = attributed[-1] if attributed else Phase.IMPORT
    return _PHASE_ORDER.index(Phase.COMPILE if phase is Phase.PROFILE else phase)


def summarize_steps(earlier: Iterable[Sequence[Preparing]]) -> dict[Step, MedianSeconds]:
    """Return the median duration of each step before a launch, over the `earlier` launches in which it had work to do.

    `earlier` is oldest first, and holds at least the first and the last event of each step.
    """
    durations: dict[Step, list[float]] = {}
    for events in earlier:
        starts = {event.step: event.at for event in reversed(events)}
        ends = {event.step: event.at for event in events if event.done}  # each model ends the step once
        for step, end in ends.items():
            if end - starts[step] >= _MIN_STEP_SECONDS:
                durations.setdefault(step, []).append(end - starts[step])
    return {step: guess for step, seconds in durations.items() if (guess := _median(seconds[-MAX_STARTS:]))}


def list_coming_steps(
    preparing: Mapping[Step, Preparing], began: Mapping[Step, float], usual: Mapping[Step, MedianSeconds]
) -> list[Step]:
    """Return the steps that are still to come: a new engine needs all its patches."""
    install = preparing.get(Step.INSTALL)
    fresh = install is not None and (not install.done or install.at > began[Step.INSTALL])
    return [Step.PATCHES] if fresh and Step.PATCHES in usual and Step.PATCHES not in preparing else []


def estimate_time_to_launch(
    preparing: Mapping[Step, Preparing], began: Mapping[Step, float], usual: Mapping[Step, MedianSeconds], now: float
) -> float | None:
    """Return the seconds until the launch; None when the usual duration of a running step is unknown.

    Args:
        preparing: the latest event of each step.
        began: when each step began.
        usual: the usual duration of each step.
        now: the time, in seconds since the epoch.
    """
    running = [step for step, event in preparing.items() if not event.done]
    if not all(step in usual for step in running):
        return None
    remaining = sum(max(0.0, usual[step].seconds - (now - began[step])) for step in running)
    return remaining + sum(usual[step].seconds for step in list_coming_steps(preparing, began, usual))
