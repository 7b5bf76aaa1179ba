"""What is found of an experiment, as values: verdicts with intervals and confounds, starts, sweeps, the report."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from dflash_tui.benchmark.stats import Ratio
from dflash_tui.experiments.design import Boot, Design


class Verdict(StrEnum):
    """What may be said of an arm against the one it is compared with."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference shown"
    REFUSED = "refused"


class PromptRatio(msgspec.Struct, frozen=True):
    """One prompt: the medians of both arms in the judged measure, their ratio, and how many requests there were.

    `streams` requests were under way at a time.
    """

    kind: str
    a: float
    b: float
    ratio: Ratio
    n: int
    streams: int = 1


class Confound(msgspec.Struct, frozen=True):
    """Something besides the arms that may have made the difference; with `refuses` there is no verdict."""

    what: str
    evidence: str
    refuses: bool


class StartComparison(msgspec.Struct, frozen=True):
    """Seconds from launch to first answer of both arms, apart for cold and cached starts; None where none was seen.

    `first_request` is what the first real request took.
    """

    cold: tuple[float | None, float | None] = (None, None)
    cached: tuple[float | None, float | None] = (None, None)
    first_request: tuple[float | None, float | None] = (None, None)


class BreakEven(msgspec.Struct, frozen=True):
    """When the arm that starts later has made up for it: after so many tokens or requests of the suite's mean length.

    `tokens` None: never, as it is not shown to be faster. `low` and `high` bound the tokens by the interval of the
    speed; `high` None is without end, and `low` None says that no speed within the interval makes up for it. `by` is
    the arm that has to make up; `seconds` is what it is behind when both have answered their first request, in cold
    starts where `cold`, as the mean of so many `starts` of both arms says.
    """

    by: int
    seconds: float
    cold: bool
    tokens: float | None = None
    requests: float | None = None
    low: float | None = None
    high: float | None = None
    starts: tuple[int, int] = (0, 0)


class Comparison(msgspec.Struct, frozen=True):
    """Arm `b` against arm `a`, judged on `measure` (`steps/s` or `tok/s`).

    `suggestive` marks a verdict from one boot per arm. `steps_s`, `tok_s` and `al` are the three ratios, None where
    there is no speculation. `cause` says which of `steps/s` and `AL` makes a difference in tok/s, or `both`, or is
    empty. `cv` is the larger coefficient of variation between an arm's boots (within the boot if there is one each,
    None when nothing was repeated), `detectable` the smallest relative difference that four of five such experiments
    show, `agreement` the share of answers at temperature 0 that begin alike, None when that was not asked.
    """

    a: int
    b: int
    measure: str
    word: Verdict
    suggestive: bool
    ratio: Ratio | None = None
    steps_s: Ratio | None = None
    tok_s: Ratio | None = None
    al: Ratio | None = None
    cause: str = ""
    cv: float | None = None
    detectable: float | None = None
    prompts: tuple[PromptRatio, ...] = ()
    confounds: tuple[Confound, ...] = ()
    start: StartComparison = StartComparison()
    break_even: tuple[BreakEven, ...] = ()
    agreement: float | None = None
    boots: tuple[int, int] = (0, 0)


class SweepPoint(msgspec.Struct, frozen=True):
    """One value of a sweep: its geometric mean over the prompts, and whether it is told apart from the best.

    `low` and `high` are the interval of its ratio to the best times the best's speed; the best has none of its own.
    """

    arm: int
    tok_s: float
    low: float
    high: float
    al: float | None
    like_best: bool


class SweepStanding(StrEnum):
    """Where an arm of a sweep stands; `WORSE` is slower than the plateau."""

    RECOMMENDED = "recommended"
    PLATEAU = "plateau"
    OPEN = "not decided"
    WORSE = ""


class Sweep(msgspec.Struct, frozen=True):
    """A sweep over numbers: its points in order, the arms of the plateau, and the one that is recommended.

    The plateau is what is not told apart from the fastest, `best`, and within 3 % of it; `recommended` is one of it,
    None when something refuses a verdict. `open` are the arms that are not told apart from the best either, but seem
    slower: more boots would tell. `to_best` is how many times as fast the best is as the recommended one.
    """

    points: tuple[SweepPoint, ...]
    plateau: tuple[int, ...]
    recommended: int | None
    best: int | None = None
    to_best: Ratio | None = None

    @property
    def open(self) -> tuple[int, ...]:
        """The arms that may be as fast as the plateau, for all that was measured."""
        return tuple(point.arm for point in self.points if point.like_best and point.arm not in self.plateau)

    def standing(self, arm: int) -> SweepStanding:
        """Return where an arm stands."""
        if arm == self.recommended:
            return SweepStanding.RECOMMENDED
        if arm in self.plateau:
            return SweepStanding.PLATEAU
        return SweepStanding.OPEN if arm in self.open else SweepStanding.WORSE


class ExperimentReport(msgspec.Struct, frozen=True):
    """All of an experiment: enough for somebody else to repeat it and to judge it anew."""

    design: Design
    boots: tuple[Boot, ...]
    comparisons: tuple[Comparison, ...]
    sweep: Sweep | None = None
    complete: bool = True


def find_misplaced_arms(report: ExperimentReport) -> str:
    """Return, in words, what in a report points at an arm that it does not have, or nothing.

    For a report from a file: a decoder sees to the types, and every word about an arm looks it up.
    """
    arms = range(len(report.design.arms))
    if not arms:
        return "design.arms is empty"
    pointers = [("design.order", arm) for arm in report.design.order]
    pointers += [("boots.arm", boot.arm) for boot in report.boots]
    for one in report.comparisons:
        pointers += [("comparisons.a", one.a), ("comparisons.b", one.b)]
    if sweep := report.sweep:
        drawn = [point.arm for point in sweep.points]
        pointers += [("sweep.points.arm", arm) for arm in drawn]
        chosen = [arm for arm in (sweep.best, sweep.recommended, *sweep.plateau) if arm is not None]
        if lost := [arm for arm in chosen if arm not in drawn]:
            return f"the sweep speaks of arm {lost[0]}, of which it has no point"
    wrong = [f"{where} is {arm}" for where, arm in pointers if arm not in arms]
    return f"{wrong[0]}, and the last of the arms is {len(arms) - 1}" if wrong else ""
