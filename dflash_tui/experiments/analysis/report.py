"""The results of an experiment as values: verdicts with intervals and confounds, sweeps, the report."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from dflash_tui.events import Speed
from dflash_tui.experiments.analysis.stats import Ratio
from dflash_tui.experiments.design import AnswerCheck, Boot, Design

# 2: each arm has its own spread, a line over the boots, all words hold together.
# 3: what the last step cut is no part of an acceptance length, and requests without a figure are reported.
# 4: which prompts were asked, and an arm that seems steady, are in the degrees of freedom by their part.
RULES = 5


class Verdict(StrEnum):
    """What may be said of an arm against the one it is compared with."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference shown"
    REFUSED = "refused"


class PromptRatio(msgspec.Struct, frozen=True):
    """One prompt: both arms in the judged measure."""

    kind: str
    a: Speed
    """The median of arm `a`."""
    b: Speed
    ratio: Ratio
    n: int
    """The requests of both arms."""
    streams: int = 1


class Confound(msgspec.Struct, frozen=True):
    """Something besides the arms that may have made the difference."""

    what: str
    evidence: str
    refuses: bool
    """Whether there is no verdict because of it."""


class BootFigure(msgspec.Struct, frozen=True):
    """What one boot measured, as the verdict compares it."""

    number: int
    arm: int
    value: float
    """The geometric mean over the prompts that all boots of both arms have."""


class BreakEven(msgspec.Struct, frozen=True):
    """After how many tokens the arm that starts later has made up for it."""

    by: int
    seconds: float
    """By how much it is behind when both arms have answered their first request."""
    cold: bool
    tokens: float | None = None
    """After how many tokens it has made up for it; None is never, as it is not shown to be faster."""
    requests: float | None = None
    """The same in requests of the suite's mean length."""
    low: float | None = None
    """The least that the interval of starts and speed allows; None: no speed in it makes up for the start."""
    high: float | None = None
    """The most that it allows; None is without end."""
    starts: tuple[int, int] = (0, 0)
    """Of how many starts of each arm `seconds` is the mean."""
    start_cv: float | None = None
    """How far starts of one arm vary; None in reports of earlier releases."""
    start_df: float | None = None
    """The degrees of freedom of that; None where it is assumed, as no start was repeated."""


class SignificanceTest(msgspec.Struct, frozen=True):
    """The figures that a verdict is decided by."""

    t: float
    """The difference of the logarithms in standard errors."""
    critical: float
    """What `t` has to exceed, up or down, for a difference to be shown."""
    df: float | None
    """The degrees of freedom of both; None is a normal distribution."""
    level: float
    comparisons: int = 1
    """How many hold together at 95 %."""
    least: float = 0.0
    """The relative difference below which none is shown, however sure it is."""
    drift: float | None = None
    """By how much the figure changed from the first boot to the last, taken out; None without a line."""


class OutputVerdict(StrEnum):
    """What may be said of the greedy answers of an arm against those of the one it is compared with."""

    ALIKE = "alike"
    DIFFERENT = "different beyond boots"
    UNKNOWN = "unknown"


class FirstDifference(msgspec.Struct, frozen=True):
    """The two answers to one prompt, one of each arm, that differ soonest."""

    kind: str
    streams: int
    round: int
    boots: tuple[int, int]
    """The boots that answered, by their numbers from 0."""
    position: int
    """The first token or character that differs, from 1."""
    common: str
    """The end of what both begin with."""
    a: str
    b: str


class TokenComparison(msgspec.Struct, frozen=True):
    """The answers of a server with speculation, scored token by token by one without."""

    alike: int
    """Answers that are the same in every token."""
    rounded: int
    """Those that part within rounding."""
    faults: int
    """Those that part beyond it."""
    unscored: int
    tokens: int
    """The tokens with speculation that were scored."""
    rounding: float
    """The measured rounding: the largest shift of a token's lead over its runner-up."""
    positions: int
    worst: AnswerCheck | None = None
    """Of the faults, else of the answers that part, the one with the largest gap; None where none part."""


class OutputComparison(msgspec.Struct, frozen=True):
    """Whether two arms answer alike at temperature 0, held against how far boots of one arm differ."""

    verdict: OutputVerdict
    why: str = ""
    """Why the verdict is unknown; empty where it is not."""
    prompts: int = 0
    """How many prompts, as they were sent, all boots of both arms answered."""
    boots: tuple[int, int] = (0, 0)
    different: float = 0.0
    """The share of pairs of boots, one of each arm, whose answers differ."""
    within: tuple[float, ...] = ()
    """The same between boots of one arm, of either; empty where an arm has a single boot."""
    excess: float | None = None
    """By how much the share between the arms exceeds the mean of those within; None where that is unknown."""
    low: float | None = None
    """The lower end of its 95 % interval, by a bootstrap over prompts."""
    high: float | None = None
    unit: str = "character"
    """What positions count: `token` where the server named them, else `character`."""
    first: FirstDifference | None = None
    """The two answers that differ soonest, or those of `tokens.worst`; None where none do in what was kept."""
    tokens: TokenComparison | None = None
    """What `verify --lossless` judges by; None in an A/B, which has no server score the answers of another."""


class FurtherVerdict(msgspec.Struct, frozen=True):
    """The verdict on a secondary measure, with a level of its own."""

    measure: str
    streams: int
    word: Verdict
    """On `b`; faster is fewer seconds, or more tokens per second."""
    ratio: Ratio
    """`b` to `a`: of seconds where the measure is in seconds."""
    level: float
    """All further verdicts of an experiment hold together at 95 %."""


class Comparison(msgspec.Struct, frozen=True):
    """One arm compared with another one: the verdict and what it is based on."""

    a: int
    b: int
    measure: str
    word: Verdict
    suggestive: bool
    """Whether an arm has one boot only, so that the spread between its boots is not known."""
    ratio: Ratio | None = None
    steps_s: Ratio | None = None
    tok_s: Ratio | None = None
    al: Ratio | None = None
    cause: str = ""
    """Which factor makes the difference in tok/s: `steps/s`, `AL`, `both`, or empty."""
    cv: float | None = None
    """The larger one of `cvs`; None if nothing was repeated."""
    cvs: tuple[float | None, float | None] = (None, None)
    """Each arm's coefficient of variation between its boots, within a boot if there is one each."""
    test: SignificanceTest | None = None
    """None where nothing was compared, and in reports of before 0.2."""
    figures: tuple[BootFigure, ...] = ()
    detectable: float | None = None
    """The smallest relative difference that four of five such experiments show."""
    prompts: tuple[PromptRatio, ...] = ()
    confounds: tuple[Confound, ...] = ()
    break_even: tuple[BreakEven, ...] = ()
    """When a later start has paid back, for cold and for cached starts."""
    boots: tuple[int, int] = (0, 0)
    """How many boots of each arm measured something."""
    further: tuple[FurtherVerdict, ...] = ()
    outputs: OutputComparison | None = None


class SweepPoint(msgspec.Struct, frozen=True):
    """One value of a sweep."""

    arm: int
    tok_s: float
    """Its geometric mean over the prompts."""
    low: float | None
    """The interval of its ratio to the best, times the best's speed; None for the best."""
    high: float | None
    al: float | None
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
    plateau: tuple[int, ...]
    """The arms that are not shown to differ from the fastest and are within 3 % of it."""
    recommended: int | None
    """One of the plateau; None when something refuses a verdict."""
    best: int | None = None
    to_best: Ratio | None = None
    """The best's speed to that of the recommended one; None when they are the same."""

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


class TuneOutcome(msgspec.Struct, frozen=True):
    """What a tune has found until now."""

    best: int
    """The fastest setting; 0 is the published one."""
    comparison: Comparison | None = None
    """The best against the published setting in tok/s, by the boots after the choice, or all where there are none."""
    confirmed: bool = False
    """Whether `comparison` rests on boots after the choice alone: chance, too, decides which setting seems best."""
    answers: str = "unknown"
    """Whether both answer alike: `yes`, `no` or `unknown`."""
    tried: int = 0
    dropped: dict[str, str] = {}
    left_out: dict[str, str] = {}
    spent: float = 0.0
    """Seconds that all boots took."""
    recipe: str = ""
    unwritten: str = ""


class ExperimentReport(msgspec.Struct, frozen=True):
    """All of an experiment: enough for others to repeat it and to judge it again."""

    design: Design
    boots: tuple[Boot, ...]
    comparisons: tuple[Comparison, ...]
    sweep: Sweep | None = None
    """The curve of three or more arms that are numbers."""
    complete: bool = True
    """Whether every boot of the design is over."""
    rules: int = 1
    """By which rules it was judged, `RULES` now; an older report is judged again from its boots."""
    tune: TuneOutcome | None = None


def list_verdicts(report: ExperimentReport) -> tuple[Comparison, ...]:
    """Return the comparisons that are worth a verdict: of a tune the best alone, by the boots after its choice."""
    if report.tune is None:
        return report.comparisons
    return (report.tune.comparison,) if report.tune.comparison else ()


def find_misplaced_arms(report: ExperimentReport) -> str:
    """Return why a report names an arm that it does not have, or nothing: the decoder checks types only."""
    arms, sweep, tune = range(len(report.design.arms)), report.sweep, report.tune
    pairs = [*report.comparisons, *([tune.comparison] if tune and tune.comparison else [])]
    named = {
        "design.order": report.design.order,
        "boots": [boot.arm for boot in report.boots],
        "comparisons": [arm for comparison in pairs for arm in (comparison.a, comparison.b)],
        "sweep": [point.arm for point in sweep.points] if sweep else [],
        "tune": [tune.best] if tune else [],
    }
    wrong = [f"{where} names arm {arm}" for where, each in named.items() for arm in each if arm not in arms]
    if sweep:
        chosen = [arm for arm in (sweep.best, sweep.recommended, *sweep.plateau) if arm is not None]
        wrong += [f"the sweep has no point of arm {arm}" for arm in chosen if arm not in named["sweep"]]
    return wrong[0] if wrong else "" if arms else "design.arms is empty"
