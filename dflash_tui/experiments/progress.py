"""How far an experiment is, folded from its events. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import msgspec

from dflash_tui.experiments.design import (
    Boot,
    BootBegan,
    BootEnded,
    Design,
    ExperimentFinished,
    ExperimentHalted,
    Happened,
    RequestMeasured,
)

# A boot that fails is tried once more, and then the others go on without it.
ATTEMPTS = 2


class CurrentBoot(msgspec.Struct, frozen=True):
    """The boot that runs now, or was interrupted: its number and arm, which attempt it is, and its run.

    `began` is its launch. `stage` is what came back last, `starting` before the first answer, else `cold`, `warm-up`
    or `round`; `requests` counts the measured ones that came back, `last` is the latest request of any stage.
    """

    number: int
    arm: int
    attempt: int
    run: str
    began: float
    stage: str = "starting"
    requests: int = 0
    last: RequestMeasured | None = None


class Progress(msgspec.Struct, frozen=True):
    """How far an experiment is.

    `boots` are those that are over, in order: each with the attempt that counts, which has an `error` when all failed.
    `tries` are the failed attempts that were followed by another one. `current` is None between two boots: the last
    server is stopped then, or the next one prepared. `due` is how many measured requests each boot sends (0 when
    unknown), `halted` why the driver ended early, `driven` whether one lives. `left` are the seconds until the end,
    None while no boot has told how long one takes.
    """

    design: Design
    boots: tuple[Boot, ...] = ()
    tries: tuple[Boot, ...] = ()
    current: CurrentBoot | None = None
    due: int = 0
    halted: str = ""
    finished: bool = False
    driven: bool = False
    left: float | None = None

    @property
    def status(self) -> str:
        """One word: `running`, `finished`, `halted`, or `interrupted` when its driver ended without a word."""
        if self.finished:
            return "finished"
        if self.driven:
            return "running"
        return "halted" if self.halted else "interrupted"

    @property
    def next(self) -> tuple[int, int] | None:
        """The number of the boot that is due and which attempt it will be; None when all are over."""
        over = {boot.number for boot in self.boots}
        number = next((number for number in range(len(self.design.order)) if number not in over), None)
        return None if number is None else (number, 1 + sum(boot.number == number for boot in self.tries))

    @property
    def without(self) -> tuple[str, ...]:
        """The arms of which no boot came up, once the experiment is over."""
        good = {boot.arm for boot in self.boots if not boot.error}
        return tuple(arm.name for place, arm in enumerate(self.design.arms) if self.finished and place not in good)


def fold_progress(
    design: Design, events: Iterable[Happened], *, due: int = 0, driven: bool = False, now: float = 0
) -> Progress:
    """Return what the events say; of a boot that is over, what else is said of it does not count."""
    over: dict[int, Boot] = {}
    tries: list[Boot] = []
    current: CurrentBoot | None = None
    halted, finished = "", False
    for event in events:
        match event:
            case BootBegan():
                current = CurrentBoot(event.number, event.arm, event.attempt, event.run, event.at)
                halted = ""
            case RequestMeasured() if current and event.number == current.number:
                measured = current.requests + (event.stage == "round")
                current = msgspec.structs.replace(current, stage=event.stage, requests=measured, last=event)
            case BootEnded(boot=boot):
                current = None
                if boot.error and boot.attempt < ATTEMPTS:
                    tries.append(boot)
                elif boot.number < len(design.order):
                    over[boot.number] = boot
            case ExperimentHalted(why=why):
                halted = why
            case ExperimentFinished():
                finished, halted = True, ""
            case _:
                pass
    found = Progress(
        design,
        boots=tuple(over[number] for number in sorted(over)),
        tries=tuple(tries),
        current=None if finished else current,
        due=due,
        halted=halted,
        finished=finished,
        driven=driven,
    )
    return msgspec.structs.replace(found, left=_left(found, now))


def _left(progress: Progress, now: float) -> float | None:
    """Return the seconds of the boots that are not over, by the median of those of the same arm, else of any."""
    took = [(boot.arm, boot.took) for boot in progress.boots if boot.took is not None and not boot.error]
    if progress.finished:
        return 0.0
    if not took:
        return None
    over = {boot.number for boot in progress.boots}
    left = 0.0
    for number, arm in enumerate(progress.design.order):
        if number not in over:
            known = [seconds for other, seconds in took if other == arm] or [seconds for _, seconds in took]
            spent = now - progress.current.began if progress.current and progress.current.number == number else 0.0
            left += max(0.0, statistics.median(known) - (spent if progress.driven else 0.0))
    return left
