"""The progress of an experiment, folded from its events. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from dflash_tui.events import RequestDone
from dflash_tui.experiments.design import (
    Boot,
    BootBegan,
    BootEnded,
    Design,
    ExperimentExtended,
    ExperimentFinished,
    ExperimentHalted,
    Happened,
    RequestMeasured,
    RoundBegan,
)


class CurrentBoot(msgspec.Struct, frozen=True):
    """The boot that runs now, or was interrupted."""

    number: int
    arm: int
    attempt: int
    run: str
    began: float
    stage: str = "starting"
    """The stage of the latest answer: `starting` before the first, then `cold`, `warm-up` or `round`."""
    requests: int = 0
    """The number of measured requests answered so far."""
    last: RequestMeasured | None = None


class Progress(msgspec.Struct, frozen=True):
    """The progress of an experiment."""

    design: Design
    boots: tuple[Boot, ...] = ()
    """The last attempts of the boots that have ended, in order; `error` is set if all failed."""
    tries: tuple[Boot, ...] = ()
    """The failed attempts that were repeated."""
    current: CurrentBoot | None = None
    """The running boot; None between two boots."""
    due: int = 0
    """The number of measured requests per boot; 0 if unknown."""
    halted: str = ""
    step: str = ""
    """What the user has to do before it can be resumed; empty if nothing."""
    finished: bool = False
    driven: bool = False
    left: float | None = None
    """Seconds until the end, or until the end of a tune's budget; None if unknown."""
    rounds: tuple[RoundBegan, ...] = ()

    @property
    def status(self) -> str:
        """Return `running`, `finished`, `halted`, or `interrupted` (the driver recorded no reason)."""
        if self.finished:
            return "finished"
        if self.driven:
            return "running"
        return "halted" if self.halted else "interrupted"

    @property
    def next(self) -> tuple[int, int] | None:
        """The number and attempt of the next boot; None if all have ended."""
        over = {boot.number for boot in self.boots}
        number = next((number for number in range(len(self.design.order)) if number not in over), None)
        return None if number is None else (number, 1 + sum(boot.number == number for boot in self.tries))

    @property
    def spent(self) -> float:
        """Seconds that its boots have taken, failed ones included."""
        return sum((boot.prepared or 0.0) + (boot.took or 0.0) for boot in (*self.boots, *self.tries))

    @property
    def without(self) -> tuple[str, ...]:
        """The arms of a finished experiment of which every boot failed."""
        good = {boot.arm for boot in self.boots if not boot.error}
        return tuple(arm.name for place, arm in enumerate(self.design.arms) if self.finished and place not in good)


def fold_progress(
    design: Design, events: Iterable[Happened], *, due: int = 0, driven: bool = False, now: float = 0
) -> Progress:
    """Return the progress after `events`; `due` is the measured requests per boot, 0 if unknown."""
    over: dict[int, Boot] = {}
    tries: list[Boot] = []
    current: CurrentBoot | None = None
    rounds: list[RoundBegan] = []
    halted, step, finished = "", "", False
    for event in events:
        design = extend_design(design, event)
        match event:
            case RoundBegan():
                rounds.append(event)
            case ExperimentExtended():
                finished, halted = False, ""
            case BootBegan():
                current = CurrentBoot(event.number, event.arm, event.attempt, event.run, event.at)
                halted = step = ""
            case RequestMeasured() if current and event.number == current.number:
                measured = current.requests + (event.stage == "round")
                current = replace(current, stage=event.stage, requests=measured, last=event)
            case BootEnded(boot=boot):
                current = None
                if boot.error and boot.attempt < design.attempts:
                    tries.append(boot)
                else:
                    over[boot.number] = boot
            case ExperimentHalted():
                halted, step = event.why, event.step
            case ExperimentFinished():
                finished, halted = True, ""
    progress = Progress(
        design,
        boots=tuple(over[number] for number in sorted(over)),
        tries=tuple(tries),
        current=None if finished else current,
        due=due,
        halted=halted,
        step=step,
        finished=finished,
        driven=driven,
        rounds=tuple(rounds),
    )
    return replace(progress, left=estimate_left(progress, now))


def join_requests(events: Iterable[Happened]) -> Iterator[Happened]:
    """Yield the events, with each boot's separately stored requests put into its end event."""
    requests: list[RequestDone] = []
    cold: RequestDone | None = None
    for event in events:
        match event:
            case BootBegan():
                requests, cold = [], None
            case RequestMeasured(stage="cold", request=request):
                cold = request
            case RequestMeasured(stage="round", request=request):
                requests.append(request)
            case BootEnded(boot=boot) if not boot.error and not boot.requests:  # earlier releases stored them twice
                yield replace(event, boot=replace(boot, cold_request=boot.cold_request or cold, requests=(*requests,)))
                continue
        yield event


def extend_design(design: Design, event: Happened) -> Design:
    """Return the design with the arms and boots that an event adds: a round of a tune, or an extension."""
    if isinstance(event, ExperimentExtended):
        return replace(design, order=(*design.order, *event.order), looks=design.looks + 1)
    if isinstance(event, RoundBegan):
        return replace(design, arms=(*design.arms, *event.arms), order=(*design.order, *event.order))
    return design


def estimate_left(
    progress: Progress, now: float, before: Sequence[float | None] = (), *, whole: bool = True
) -> float | None:
    """Return the seconds of the remaining boots, or None if unknown.

    `before` is what a boot of each arm took in earlier experiments; only part of one unless `whole`.
    """
    took = [(boot.arm, boot.took) for boot in progress.boots if boot.took is not None and not boot.error]
    if progress.finished:
        return 0.0
    if progress.design.tuning:
        under_way = now - progress.current.began if progress.current and progress.driven else 0.0
        return max(0.0, progress.design.tuning.budget - progress.spent - max(0.0, under_way))
    over = {boot.number for boot in progress.boots}
    left, prepared = 0.0, statistics.median([boot.prepared or 0.0 for boot in progress.boots] or [0.0])
    for number, arm in enumerate(progress.design.order):
        if number not in over:
            earlier = [seconds for seconds in before[arm : arm + 1] if seconds is not None]
            own = [seconds for other, seconds in took if other == arm]
            durations = own or earlier or [seconds for _, seconds in took]
            if not durations:
                return None
            current = progress.current if progress.current and progress.current.number == number else None
            spent = max(0.0, now - current.began) if current else 0.0  # the clock may have been set back
            remaining = statistics.median(durations) - (spent if progress.driven else 0.0)
            if remaining < 0 and not own and whole:
                return None
            left += max(0.0, remaining) + (0.0 if current else prepared)
    return left
