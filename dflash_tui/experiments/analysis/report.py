"""The results of an experiment: verdicts with intervals and confounds, sweeps, and the report."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from dflash_tui.events import Speed
from dflash_tui.experiments.analysis.stats import ArmDifference, Ratio
from dflash_tui.experiments.design import AnswerCheck, Boot, Design

# 2: each arm has its own spread, a drift over the boots is removed, all verdicts hold together.
# 3: acceptance lengths exclude what the last step cut off, and requests without a figure are reported.
# 4: the choice of prompts and arms of small spread count in the degrees of freedom.
RULES = 5


class Verdict(StrEnum):
    """The verdict on an arm, compared with another one."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference shown"
    REFUSED = "refused"


def decide(difference: ArmDifference | None) -> Verdict:
    """Return the verdict on a difference that no confound refuses; None is no difference."""
    if difference is None or not difference.is_shown:
        return Verdict.NO_DIFFERENCE
    return Verdict.FASTER if difference.log > 0 else Verdict.SLOWER


class PromptRatio(msgspec.Struct, frozen=True):
    """One prompt's figures of both arms in the judged measure."""

    kind: str
    a: Speed
    """The median of arm `a`."""
    b: Speed
    ratio: Ratio
    n: int
    """The requests of both arms together."""
    streams: int = 1


class Confound(msgspec.Struct, frozen=True):
    """A difference other than the varied setting that may explain the result."""

    what: str
    evidence: str
    refuses: bool
    """Whether it refuses a verdict."""


class BootFigure(msgspec.Struct, frozen=True):
    """The figure of one boot, as the verdict compares it."""

    number: int
    arm: int
    value: float
    """The geometric mean over the prompts measured in all boots of both arms."""


class BreakEven(msgspec.Struct, frozen=True):
    """The number of tokens after which the arm that starts later has caught up."""

    by: int
    seconds: float
    """How much later it is when both arms have answered their first request."""
    cold: bool
    tokens: float | None = None
    """The tokens until it has caught up; None is never, as it is not shown to be faster."""
    requests: float | None = None
    """The same in requests of the suite's mean length."""
    low: float | None = None
    """The lower end of the interval, from the spread of starts and speeds; None if it never catches up."""
    high: float | None = None
    """The upper end of the interval; None is unbounded."""
    starts: tuple[int, int] = (0, 0)
    """The starts of each arm that `seconds` is averaged over."""
    start_cv: float | None = None
    """The coefficient of variation between starts of one arm; None in reports of earlier releases."""
    start_df: float | None = None
    """Its degrees of freedom; None if it is assumed, as no start was repeated."""


class SignificanceTest(msgspec.Struct, frozen=True):
    """The test that decides a verdict."""

    t: float
    """The difference of the logarithms in standard errors."""
    critical: float
    """The absolute value that `t` must exceed for a significant difference."""
    df: float | None
    """The degrees of freedom; None is a normal distribution."""
    level: float
    comparisons: int = 1
    """The number of comparisons that hold together at 95 %."""
    least: float = 0.0
    """The smallest relative difference that counts, however certain."""
    drift: float | None = None
    """The removed relative change from the first boot to the last; None if no line was fitted."""


class OutputVerdict(StrEnum):
    """The verdict on the greedy answers of an arm, compared with those of another one."""

    ALIKE = "alike"
    DIFFERENT = "different beyond boots"
    UNKNOWN = "unknown"


class FirstDifference(msgspec.Struct, frozen=True):
    """The two answers to one prompt, one of each arm, that differ earliest."""

    kind: str
    streams: int
    round: int
    boots: tuple[int, int]
    """The numbers of the two boots, from 0."""
    position: int
    """The first token or character that differs, from 1."""
    common: str
    """The end of their common beginning."""
    a: str
    b: str


class TokenComparison(msgspec.Struct, frozen=True):
    """The answers with speculation, scored token by token by a server without it."""

    alike: int
    """Answers that are the same in every token."""
    rounded: int
    """Answers that differ within rounding."""
    faults: int
    """Answers that differ by more than rounding."""
    unscored: int
    tokens: int
    """The scored tokens of answers with speculation."""
    rounding: float
    """The measured rounding: the largest shift of a token's lead over its runner-up."""
    positions: int
    worst: AnswerCheck | None = None
    """The fault, or else the differing answer, with the largest gap; None if none differ."""


class OutputComparison(msgspec.Struct, frozen=True):
    """Whether two arms answer alike at temperature 0, relative to how much boots of one arm differ."""

    verdict: OutputVerdict
    why: str = ""
    """Why the verdict is unknown; empty if it is known."""
    prompts: int = 0
    """The number of prompts, as sent, that all boots of both arms answered."""
    boots: tuple[int, int] = (0, 0)
    different: float = 0.0
    """The share of pairs of boots, one of each arm, whose answers differ."""
    within: tuple[float, ...] = ()
    """The same share between boots of one arm, for each arm; empty if an arm has a single boot."""
    excess: float | None = None
    """How much the share between the arms exceeds the mean of those within; None if unknown."""
    low: float | None = None
    """The lower end of its 95 % interval, by a bootstrap over prompts."""
    high: float | None = None
    unit: str = "character"
    """The unit of positions: `token` if the server returned token ids, else `character`."""
    first: FirstDifference | None = None
    """The two answers that differ earliest, or those of `tokens.worst`; None if no kept answers differ."""
    tokens: TokenComparison | None = None
    """The comparison by scored tokens of `verify --lossless`; None in an A/B."""


class FurtherVerdict(msgspec.Struct, frozen=True):
    """The verdict on a secondary measure, with its own confidence level."""

    measure: str
    streams: int
    word: Verdict
    """The verdict on arm `b`; faster means fewer seconds or more tokens per second."""
    ratio: Ratio
    """The ratio of `b` to `a`; of seconds if the measure is in seconds."""
    level: float
    """The level of this interval; all secondary verdicts of an experiment hold together at 95 %."""


class Comparison(msgspec.Struct, frozen=True):
    """The comparison of two arms: the verdict and its evidence."""

    a: int
    b: int
    measure: str
    word: Verdict
    suggestive: bool
    """Whether an arm has only one boot, so that the spread between its boots is unknown."""
    ratio: Ratio | None = None
    steps_s: Ratio | None = None
    tok_s: Ratio | None = None
    al: Ratio | None = None
    cause: str = ""
    """The factor responsible for the difference in tok/s: `steps/s`, `AL`, `both`, or empty."""
    cv: float | None = None
    """The larger of `cvs`; None if nothing was repeated."""
    cvs: tuple[float | None, float | None] = (None, None)
    """Each arm's coefficient of variation between its boots, or within a boot if each arm has one."""
    test: SignificanceTest | None = None
    """None if nothing was compared, and in reports from before 0.2."""
    figures: tuple[BootFigure, ...] = ()
    detectable: float | None = None
    """The smallest relative difference that four of five such experiments would show."""
    prompts: tuple[PromptRatio, ...] = ()
    confounds: tuple[Confound, ...] = ()
    break_even: tuple[BreakEven, ...] = ()
    """The break-even of a later start, for cold and for cached starts."""
    boots: tuple[int, int] = (0, 0)
    """The boots of each arm that measured something."""
    further: tuple[FurtherVerdict, ...] = ()
    outputs: OutputComparison | None = None


class SweepPoint(msgspec.Struct, frozen=True):
    """One value of a sweep."""

    arm: int
    tok_s: float
    """The geometric mean over the prompts."""
    low: float | None
    """The interval of its ratio to the best, multiplied by the best's speed; None for the best."""
    high: float | None
    al: float | None
    like_best: bool
    """Whether it is not significantly different from the best."""


class SweepStanding(StrEnum):
    """The place of an arm in a sweep; `WORSE` is slower than the plateau."""

    RECOMMENDED = "recommended"
    PLATEAU = "plateau"
    OPEN = "not decided"
    WORSE = ""


class Sweep(msgspec.Struct, frozen=True):
    """A sweep over numbers."""

    points: tuple[SweepPoint, ...]
    plateau: tuple[int, ...]
    """The arms not significantly different from the fastest and within 3 % of it."""
    recommended: int | None
    """An arm of the plateau; None if a confound refuses a verdict."""
    best: int | None = None
    to_best: Ratio | None = None
    """The ratio of the best's speed to the recommended arm's; None if they are the same."""

    @property
    def open(self) -> tuple[int, ...]:
        """The arms that look slower than the best but are not significantly so; more boots would decide."""
        return tuple(point.arm for point in self.points if point.like_best and point.arm not in self.plateau)

    def standing(self, arm: int) -> SweepStanding:
        """Return the place of an arm."""
        if arm == self.recommended:
            return SweepStanding.RECOMMENDED
        if arm in self.plateau:
            return SweepStanding.PLATEAU
        return SweepStanding.OPEN if arm in self.open else SweepStanding.WORSE


ALL_KINDS = "all kinds"
"""The kind of a map's cell that covers all prompts at a number of streams."""


class MapCell(msgspec.Struct, frozen=True):
    """Speculation against none for a kind of prompt at a number of streams, in tok/s of a request."""

    kind: str
    streams: int
    arm: int
    word: Verdict
    ratio: Ratio
    without: Speed
    """The median tok/s without speculation."""
    speculating: Speed
    """The median tok/s of `arm`."""


class MapLevel(msgspec.Struct, frozen=True):
    """The drafted tokens that follow from a map for a number of streams."""

    streams: int
    tokens: int
    is_shown: bool
    """Whether the interval over all kinds excludes 1; else the drafts of the fastest arm are kept."""


class SpeculationMap(msgspec.Struct, frozen=True):
    """Where speculation pays, and the drafts and launch that follow; both are empty if a verdict is refused."""

    cells: tuple[MapCell, ...]
    levels: tuple[MapLevel, ...] = ()
    launch: str = ""
    """The command that launches with these drafts."""


class TuneOutcome(msgspec.Struct, frozen=True):
    """The result of a tune so far."""

    best: int
    """The fastest setting; 0 is the published one."""
    comparison: Comparison | None = None
    """The best against the published setting in tok/s, by boots after the choice if any."""
    confirmed: bool = False
    """Whether `comparison` uses only boots after the choice; those before it favour the chosen setting."""
    answers: str = "unknown"
    """Whether both answer alike: `yes`, `no` or `unknown`."""
    tried: int = 0
    dropped: dict[str, str] = {}
    left_out: dict[str, str] = {}
    spent: float = 0.0
    """The seconds that all boots took."""
    recipe: str = ""
    unwritten: str = ""


class ExperimentReport(msgspec.Struct, frozen=True):
    """The whole experiment: enough to repeat it and to judge it again."""

    design: Design
    boots: tuple[Boot, ...]
    comparisons: tuple[Comparison, ...]
    sweep: Sweep | None = None
    """The sweep, if the arms are three or more numbers."""
    complete: bool = True
    """Whether every boot of the design has ended."""
    rules: int = 1
    """The version of the rules it was judged by; an older report is judged again from its boots."""
    tune: TuneOutcome | None = None
    map: SpeculationMap | None = None
    """Where speculation pays, of `tune --map`."""


def list_verdicts(report: ExperimentReport) -> tuple[Comparison, ...]:
    """Return the comparisons to report; for a tune only the best setting, by the boots after its choice."""
    if report.tune is None:
        return report.comparisons
    return (report.tune.comparison,) if report.tune.comparison else ()


def find_misplaced_arms(report: ExperimentReport) -> str:
    """Return why a report names an arm that it does not have, else ""; the decoder checks types only."""
    arms, sweep, tune = range(len(report.design.arms)), report.sweep, report.tune
    pairs = [*report.comparisons, *([tune.comparison] if tune and tune.comparison else [])]
    named = {
        "design.order": report.design.order,
        "boots": [boot.arm for boot in report.boots],
        "comparisons": [arm for comparison in pairs for arm in (comparison.a, comparison.b)],
        "sweep": [point.arm for point in sweep.points] if sweep else [],
        "tune": [tune.best] if tune else [],
        "map": [cell.arm for cell in report.map.cells] if report.map else [],
    }
    wrong = [f"{where} names arm {arm}" for where, each in named.items() for arm in each if arm not in arms]
    if sweep:
        chosen = [arm for arm in (sweep.best, sweep.recommended, *sweep.plateau) if arm is not None]
        wrong += [f"the sweep has no point of arm {arm}" for arm in chosen if arm not in named["sweep"]]
    return wrong[0] if wrong else "" if arms else "design.arms is empty"
