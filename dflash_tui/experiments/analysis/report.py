"""The results of an experiment as values: verdicts with intervals and confounds, starts, sweeps, the report."""

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
    """One prompt: both arms in the judged measure."""

    kind: str
    """The name of the prompt."""
    a: float
    """The median of arm `a`."""
    b: float
    """The median of arm `b`."""
    ratio: Ratio
    """That of `b` to `a`, with its interval."""
    n: int
    """How many requests both arms answered."""
    streams: int = 1
    """How many requests were under way at a time."""


class Confound(msgspec.Struct, frozen=True):
    """Something besides the arms that may have made the difference."""

    what: str
    """What it is, as the reader is told."""
    evidence: str
    """What shows it, boot by boot where they differ."""
    refuses: bool
    """Whether there is no verdict because of it."""


class StartComparison(msgspec.Struct, frozen=True):
    """Mean seconds of both arms' starts, None where none was seen."""

    cold: tuple[float | None, float | None] = (None, None)
    """From the launch to the first answer, where everything was compiled."""
    cached: tuple[float | None, float | None] = (None, None)
    """From the launch to the first answer, where the compile cache had it."""
    first_request: tuple[float | None, float | None] = (None, None)
    """What the first real request took."""


class BreakEven(msgspec.Struct, frozen=True):
    """After how many tokens the arm that starts later has made up for it."""

    by: int
    """The arm that starts later."""
    seconds: float
    """By how much it is behind when both arms have answered their first request."""
    cold: bool
    """Whether that is after cold starts."""
    tokens: float | None = None
    """After how many tokens it has made up for it; None is never, as it is not shown to be faster."""
    requests: float | None = None
    """The same in requests of the suite's mean length."""
    low: float | None = None
    """The fewest tokens that the interval of the speed allows; None: no speed within it makes up for the start."""
    high: float | None = None
    """The most tokens that the interval allows; None is without end."""
    starts: tuple[int, int] = (0, 0)
    """Of how many starts of each arm `seconds` is the mean."""


class Comparison(msgspec.Struct, frozen=True):
    """One arm compared with another one: the verdict and what it is based on."""

    a: int
    """The arm that is compared with."""
    b: int
    """The arm that is judged."""
    measure: str
    """What is judged: `steps/s` or `tok/s`."""
    word: Verdict
    """The verdict on `b`."""
    suggestive: bool
    """Whether an arm has one boot only, so that the spread between its boots is not known."""
    ratio: Ratio | None = None
    """`b` to `a` in the judged measure."""
    steps_s: Ratio | None = None
    """`b` to `a` in verification steps per second; None without speculation."""
    tok_s: Ratio | None = None
    """`b` to `a` in decoded tokens per second."""
    al: Ratio | None = None
    """`b` to `a` in acceptance length; None without speculation."""
    cause: str = ""
    """Which factor makes the difference in tok/s: `steps/s`, `AL`, `both`, or empty."""
    cv: float | None = None
    """The larger coefficient of variation between an arm's boots, within a boot if there is one each; None if nothing
    was repeated."""
    detectable: float | None = None
    """The smallest relative difference that four of five such experiments show."""
    prompts: tuple[PromptRatio, ...] = ()
    """The judged measure prompt by prompt."""
    confounds: tuple[Confound, ...] = ()
    """What else may have made the difference."""
    start: StartComparison = StartComparison()
    """How long both arms take to start."""
    break_even: tuple[BreakEven, ...] = ()
    """When a later start has paid back, for cold and for cached starts."""
    agreement: float | None = None
    """The share of answers at temperature 0 that begin alike; None where the temperature was another."""
    boots: tuple[int, int] = (0, 0)
    """How many boots of each arm measured something."""


class SweepPoint(msgspec.Struct, frozen=True):
    """One value of a sweep."""

    arm: int
    """The arm of that value."""
    tok_s: float
    """Its geometric mean over the prompts."""
    low: float
    """The lower end of the interval of its ratio to the best, times the best's speed; the best has no interval."""
    high: float
    """The upper end."""
    al: float | None
    """Its acceptance length; None without speculation."""
    like_best: bool
    """Whether it is not shown to differ from the best."""


class SweepStanding(StrEnum):
    """Where an arm of a sweep stands; `WORSE` is slower than the plateau."""

    RECOMMENDED = "recommended"
    PLATEAU = "plateau"
    OPEN = "not decided"
    WORSE = ""


class Sweep(msgspec.Struct, frozen=True):
    """A sweep over numbers."""

    points: tuple[SweepPoint, ...]
    """Its values in order."""
    plateau: tuple[int, ...]
    """The arms that are not shown to differ from the fastest and are within 3 % of it."""
    recommended: int | None
    """One arm of the plateau; None when something refuses a verdict."""
    best: int | None = None
    """The fastest arm."""
    to_best: Ratio | None = None
    """How many times as fast the best is as the recommended one; None when they are the same."""

    @property
    def open(self) -> tuple[int, ...]:
        """The arms that are not shown to differ from the best but seem slower: more boots would decide."""
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
    """What was going to be done."""
    boots: tuple[Boot, ...]
    """What was measured, failed attempts included."""
    comparisons: tuple[Comparison, ...]
    """Each arm against the first."""
    sweep: Sweep | None = None
    """The curve of three or more arms that are numbers."""
    complete: bool = True
    """Whether every boot of the design is over."""


def find_misplaced_arms(report: ExperimentReport) -> str:
    """Return which field of a report names an arm that it does not have, as text, or nothing.

    For reports from files: the decoder checks types only, and whoever shows a report looks its arms up.
    """
    arms = range(len(report.design.arms))
    if not arms:
        return "design.arms is empty"
    pointers = [("design.order", arm) for arm in report.design.order]
    pointers += [("boots.arm", boot.arm) for boot in report.boots]
    for comparison in report.comparisons:
        pointers += [("comparisons.a", comparison.a), ("comparisons.b", comparison.b)]
    if sweep := report.sweep:
        measured = [point.arm for point in sweep.points]
        pointers += [("sweep.points.arm", arm) for arm in measured]
        named = [arm for arm in (sweep.best, sweep.recommended, *sweep.plateau) if arm is not None]
        if missing := [arm for arm in named if arm not in measured]:
            return f"the sweep names arm {missing[0]}, of which it has no point"
    wrong = [f"{where} is {arm}" for where, arm in pointers if arm not in arms]
    return f"{wrong[0]}, and the last of the arms is {len(arms) - 1}" if wrong else ""
