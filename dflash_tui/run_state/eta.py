"""What earlier starts of a kind say about this one: expected seconds per phase, and when it will be ready. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from dflash_tui.events import Phase, Preparing, Step
from dflash_tui.run_state.startup import Startup

_MIN_STEP_SECONDS = 0.5  # seconds; a step that was over sooner had nothing to do
MAX_STARTS = 5  # only the last starts count: what was true a month ago may be no more
_PHASE_ORDER = list(Phase)


class RecordedStart(msgspec.Struct, frozen=True):
    """One start that came up; times in seconds.

    `at` is the launch (since the epoch), `kind` what makes two launches alike, `setup` what of that a reader should
    know besides recipe, mode and engine, `cache` what torch.compile found, `phases` the seconds of each phase, `up`
    until the log said that the server serves, `first_request` what the first real generation took, None when none is
    recorded. `synthetic` says why its figures are not those of a real model.
    """

    run: str
    at: float
    recipe: str
    mode: str
    engine: str
    setup: str
    kind: tuple[str, ...]
    cache: str
    phases: dict[Phase, float]
    up: float
    first_request: float | None = None
    synthetic: str = ""

    @property
    def ready(self) -> float | None:
        """Seconds from the launch to the end of the first real generation, or None when there was none."""
        return None if self.first_request is None else self.up + self.first_request


class MedianSeconds(NamedTuple):
    """A median in seconds and from how many starts it is."""

    seconds: float
    n: int


class ExpectedStart(NamedTuple):
    """What to expect of a start: each phase, the first request, all until ready, and the longest that it ever took."""

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
    """Return what the last starts say that found the `cache` as this one does; None without any.

    While nothing tells what this one finds (`cache` is empty) it is what the newest start found; after a cold one
    that is what a later start would find, if there was one.
    """
    wanted = cache or _likely_cache(starts)
    alike = [start for start in starts if start.cache == wanted][-MAX_STARTS:]
    if not alike:
        return None
    phases = {}
    for phase in _PHASE_ORDER:
        if guess := _median(start.phases[phase] for start in alike if phase in start.phases):
            phases[phase] = guess
    ready = [start.ready for start in alike if start.ready is not None]
    first = _median(start.first_request for start in alike if start.first_request is not None)
    return ExpectedStart(wanted, phases, first, _median(ready), max(ready, default=None))


def _likely_cache(starts: Sequence[RecordedStart]) -> str:
    """Return what a start will find whose log does not tell yet: after the first one the cache is filled."""
    found = [start.cache for start in starts]
    return next((cache for cache in reversed(found) if cache != "cold"), found[-1] if found else "")


def _median(values: Iterable[float]) -> MedianSeconds | None:
    known = list(values)
    return MedianSeconds(statistics.median(known), len(known)) if known else None


def estimate_time_to_ready(startup: Startup, expected: ExpectedStart, elapsed: float, now: float) -> Eta | None:
    """Return when this start will be ready, `elapsed` seconds after its launch; None when nothing is known.

    What is left of the running phase and all later ones count with their medians; a phase that is over counts no
    more, however long it was.
    """
    if expected.ready is None or expected.longest is None or startup.ready_at is not None:
        return None
    left = expected.first_request.seconds if expected.first_request else 0.0
    if startup.up_at is None:
        spent = {span.phase: span.seconds for span in startup.spans(now)}
        reached = _running_phase_index(startup)
        for phase, guess in expected.phases.items():
            if phase is not Phase.UNATTRIBUTED and _PHASE_ORDER.index(phase) >= reached:
                left += max(0.0, guess.seconds - spent.get(phase, 0.0))
    else:
        left = max(0.0, left - (now - startup.up_at))
    if elapsed > expected.longest:
        return Eta(None, expected.ready.n, expected.longest)
    return Eta(left, expected.ready.n, expected.longest)


def _running_phase_index(startup: Startup) -> int:
    """Return the place of the running phase; compiling and profiling take turns, so while one runs both may come."""
    attributed = [spell.phase for spell in startup.spells if spell.phase is not Phase.UNATTRIBUTED]
    phase = attributed[-1] if attributed else Phase.IMPORT
    return _PHASE_ORDER.index(Phase.COMPILE if phase is Phase.PROFILE else phase)


def summarize_steps(earlier: Iterable[Sequence[Preparing]]) -> dict[Step, MedianSeconds]:
    """Return what each step before a launch took in the `earlier` ones, oldest first, that had something to do in it.

    Of a step at least its first and its last event are given.
    """
    took: dict[Step, list[float]] = {}
    for events in earlier:
        began = {event.step: event.at for event in reversed(events)}
        ended = {event.step: event.at for event in events if event.done}  # each model ends the step once
        for step, end in ended.items():
            if end - began[step] >= _MIN_STEP_SECONDS:
                took.setdefault(step, []).append(end - began[step])
    return {step: guess for step, seconds in took.items() if (guess := _median(seconds[-MAX_STARTS:]))}


def list_coming_steps(
    preparing: Mapping[Step, Preparing], begun: Mapping[Step, float], usual: Mapping[Step, MedianSeconds]
) -> list[Step]:
    """Return the steps that are known to come: a new engine has none of its patches."""
    install = preparing.get(Step.INSTALL)
    fresh = install is not None and (not install.done or install.at > begun[Step.INSTALL])
    return [Step.PATCHES] if fresh and Step.PATCHES in usual and Step.PATCHES not in preparing else []


def estimate_time_to_launch(
    preparing: Mapping[Step, Preparing], begun: Mapping[Step, float], usual: Mapping[Step, MedianSeconds], now: float
) -> float | None:
    """Return in how many seconds the launch will come; None when nobody knows how long what runs takes."""
    running = [step for step, event in preparing.items() if not event.done]
    if not all(step in usual for step in running):
        return None
    left = sum(max(0.0, usual[step].seconds - (now - begun[step])) for step in running)
    return left + sum(usual[step].seconds for step in list_coming_steps(preparing, begun, usual))
