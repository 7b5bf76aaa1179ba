"""The statistics of an experiment: the difference of two arms and its uncertainty. Pure.

Model: log(measure of a request) = prompt + arm + boot + prompt x arm + noise. Prompts differ far more than arms, so
arms are compared prompt by prompt, which cancels the prompt effect. Two random effects remain: the boot (means of boots
of one arm differ, see `measure_spread`) and the choice of prompts (an arm does better on some prompts). Their variances
are added. The noise of single requests is in both and counted once, as for any two crossed clusters (Cameron, Gelbach &
Miller 2011). No part is below zero. Concurrency levels send the same prompts, so the levels of a prompt count as one.

An interval is estimate ± t x standard error (Student 1908); the degrees of freedom of the summed variances follow
Satterthwaite (1946), see `_combine`. With two to four boots neither the normal quantile nor a percentile bootstrap has
the nominal coverage: resampling two boots yields only three means. `tools/benchmarks/verdicts.py` measures these rates,
`tests/unit/experiments/test_simulation.py` some of them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist, fmean
from typing import NamedTuple

import msgspec

LEVEL = 0.95

# The same requests to the same server on a GB10, Math of the five categories: 148.8 and 125.4 tok/s (forum report of
# Qwen3.5-35B-A3B). Used if there is only one request each.
SWING = math.log(148.8 / 125.4)
# The effect of the answer's text on tok/s and AL, as a standard error, when all boots of an arm give the same text.
ONE_TEXT = SWING / NormalDist().inv_cdf(0.975)
# Boots of one server lie within ±5 %, so two single boots may differ by this much without any effect of the arm.
UNSEEN = math.log(1.05 / 0.95)
# With this few prompts the noise of requests is not subtracted from the variance between prompts, and if the prompts
# happen to agree, at most twice their degrees of freedom are used.
_FEW_PROMPTS = 3
# With a drift line, this share of the degrees of freedom beyond those of the arm with the fewest is used.
_BELIEVED = 0.6
# From this many degrees of freedom on, Student's t is within 1 % of the normal distribution.
_AS_GOOD_AS_KNOWN = 200
# Above this, Student's t equals the normal distribution to six digits.
_MOST_DF = 1e6
# Terms of the continued fraction of the incomplete beta function; twice as many change no digit that is used.
_TERMS = 40
# Newton steps; seven on average.
_MOST_STEPS = 60
# A difference below a thousandth is never reported, even if it is significant.
_NOTHING = 1e-3
_POWER = 0.8
# With this many boots per arm or more, a drift can be estimated from their order.
LINE_FROM = 3
# Lower bounds of the standard deviation between boots, since boots, two in particular, may agree by chance. Without
# them, a server whose boots run 3 % faster or slower would show a significant difference of 6 % in one of eight
# experiments of two boots per arm.
CLOSEST, CLOSEST_OF_TWO = 0.005, 0.015
_LARGEST = 300.0
# The bootstrap: its resamples, and the share beyond each end of its interval.
_RESAMPLES, _TAIL = 2000, 0.025


class Ratio(msgspec.Struct, frozen=True):
    """The ratio of arm b to arm a with its confidence interval."""

    ratio: float
    low: float
    high: float

    @property
    def excludes_one(self) -> bool:
        """Whether 1 lies outside the interval."""
        return self.low > 1 or self.high < 1

    @property
    def inverse(self) -> Ratio:
        """Return the ratio of arm a to arm b; for a speed this is the ratio of the seconds."""
        ratio, high, low = (1 / end if end else math.inf for end in (self.ratio, self.low, self.high))
        return Ratio(ratio, low, high)


class PromptCell(NamedTuple):
    """The key by which requests of two arms are paired: the prompt and the number of streams."""

    kind: str
    streams: int = 1


class BootLogs(NamedTuple):
    """The logarithms of one boot's requests by prompt, and its place in the order of all boots, if any."""

    by_prompt: Mapping[PromptCell, Sequence[float]]
    place: int | None = None

    def select(self, cells: Iterable[PromptCell]) -> BootLogs:
        """Return the logarithms of these prompts only."""
        return self._replace(by_prompt={cell: self.by_prompt[cell] for cell in cells})


class ArmDifference(NamedTuple):
    """The logarithm of a ratio, its standard error and degrees of freedom (None: normal distribution).

    `cvs` are the coefficients of variation of both arms between their boots, or within the boot if each has one. `cv`
    is the larger one, or that of the other arms if both have one boot. `least` is the smallest logarithm that counts as
    a difference, however certain. `level` is the level of the interval. `drift` is the change of the logarithm from the
    first boot to the last, which was removed; None if no line was fitted.
    """

    log: float
    error: float
    df: float | None
    cv: float | None
    least: float
    cvs: tuple[float | None, float | None] = (None, None)
    level: float = LEVEL
    drift: float | None = None

    def ratio(self, level: float | None = None) -> Ratio:
        """Return the ratio with its interval at `level`, by default the level of the comparison."""
        reach = student_t_quantile((1 + (level or self.level)) / 2, self.df) * self.error
        return Ratio(math.exp(self.log), bounded_exp(self.log - reach), bounded_exp(self.log + reach))

    @property
    def is_shown(self) -> bool:
        """Whether the interval excludes 1 and the difference exceeds `least`."""
        return self.ratio().excludes_one and abs(self.log) > self.least

    @property
    def t(self) -> float:
        """The difference in standard errors."""
        return self.log / self.error if self.error else math.copysign(math.inf, self.log)

    @property
    def critical_t(self) -> float:
        """The value that `t` must exceed for the interval to exclude 1."""
        return student_t_quantile((1 + self.level) / 2, self.df)

    @property
    def detectable(self) -> float:
        """The relative difference that four of five such experiments would show (Bloom 1995); 0.09 for 9 %."""
        needed = max(self.critical_t * self.error, self.least)
        return bounded_exp(needed + student_t_quantile(_POWER, self.df) * self.error) - 1


def compare_arms(
    arms: Sequence[Sequence[BootLogs]],
    a: int,
    b: int,
    *,
    closest: float | None = None,
    text: float = 0.0,
    comparisons: int = 1,
    levels: bool = False,
) -> ArmDifference | None:
    """Return the difference of arm `b` to arm `a`, or None if they share no prompt.

    `closest` is the lower bound of the standard deviation between boots (None: chosen by the number of boots), `text`
    the standard error caused by the text of an answer. All `comparisons` hold at `LEVEL` together (Bonferroni). With
    `levels` the prompts are levels of one factor, such as context length: differences between them are no random
    effect, only those of their texts are.
    """
    shared = [cell for cell in list_shared_cells(arms[a]) if cell in list_shared_cells(arms[b])]
    if not shared:
        return None
    rounds = _rounds_of([*arms[a], *arms[b]], shared)
    ours, theirs = list_prompt_means(arms[a], shared, rounds), list_prompt_means(arms[b], shared, rounds)
    by_prompt = [fmean(y) - fmean(x) for x, y in zip(zip(*ours, strict=True), zip(*theirs, strict=True), strict=True)]
    least = UNSEEN if min(len(ours), len(theirs)) == 1 else _NOTHING
    level = 1 - (1 - LEVEL) / comparisons
    others = [(arm, list_prompt_means(arm)) for place, arm in enumerate(arms) if place not in {a, b}]
    means = [_means(arm, table) for arm, table in ((arms[a], ours), (arms[b], theirs), *others)]
    spread = measure_spread(means, closest)
    if spread is None:
        error, df, cv, cvs = _within(arms, a, b, shared, by_prompt)
        return ArmDifference(fmean(by_prompt), error, df, cv, least, cvs, level)
    count = 1 if levels else len(by_prompt)  # prompts as a random sample
    prompts = text**2 / len(by_prompt) if count == 1 else _prompts(ours, theirs, by_prompt)
    most = 2 * (count - 1) if 1 < count <= _FEW_PROMPTS else math.inf
    variance, df = _combine(spread, VariancePart(prompts, count - 1 or None), most)
    ours_cv, theirs_cv = (None if own is None else coefficient_of_variation(own) for own in spread.own)
    cvs = ours_cv, theirs_cv
    cv = coefficient_of_variation(spread.pooled.variance) if cvs == (None, None) else _larger(cvs)
    log = fmean(by_prompt) + spread.shift
    return ArmDifference(log, math.sqrt(variance), df, cv, least, cvs, level, spread.drift)


def _larger(cvs: tuple[float | None, float | None]) -> float | None:
    return max((cv for cv in cvs if cv is not None), default=None)


def _combine(spread: BootSpread, prompts: VariancePart, most: float) -> VariancePart:
    """Return the summed variance of boots and prompts; its `df` is None for a normal distribution.

    Satterthwaite's degrees of freedom are too many if an arm's spread is small by chance. With a drift line only the
    share `_BELIEVED` of those beyond the smallest arm's is used; with two boots, `CLOSEST_OF_TWO` prevents it.
    """
    boots = combine_parts(spread.parts)
    boots_df = min(boots.df or math.inf, spread.pooled.df or math.inf)
    if spread.drift is not None:
        fewest = min(part.df or math.inf for part in spread.parts)
        boots_df = fewest + _BELIEVED * max(0.0, boots_df - fewest)
    whole = combine_parts([VariancePart(boots.variance, boots_df), prompts])
    df = min(whole.df or math.inf, most, math.inf if prompts.df else boots_df)
    return VariancePart(whole.variance, None if df >= _AS_GOOD_AS_KNOWN else max(1.0, df))


def _squares(values: Sequence[float]) -> float:
    """Return the sum of squares around the mean; `statistics.stdev` is exact and 50 times slower."""
    mean = fmean(values)
    return sum((value - mean) ** 2 for value in values)


def _means(arm: Sequence[BootLogs], table: Sequence[Sequence[float]]) -> list[BootMean]:
    return [BootMean(fmean(row), boot.place) for boot, row in zip(arm, table, strict=True)] if table else []


def list_shared_cells(boots: Sequence[BootLogs]) -> list[PromptCell]:
    """Return the prompts measured in every boot, in the order of the first boot."""
    return [cell for cell in boots[0].by_prompt if all(boot.by_prompt.get(cell) for boot in boots)] if boots else []


def _rounds_of(boots: Sequence[BootLogs], cells: Sequence[PromptCell]) -> int:
    """Return the requests per boot of a single prompt, whose answers differ in text; else 1."""
    counts = {len(boot.by_prompt[cell]) for boot in boots for cell in cells}
    return counts.pop() if len(counts) == 1 and len({cell.kind for cell in cells}) == 1 else 1


def list_prompt_means(
    boots: Sequence[BootLogs], cells: Sequence[PromptCell] | None = None, rounds: int = 1
) -> list[list[float]]:
    """Return per boot the mean of each shared prompt, or of each round of a single prompt."""
    cells = list_shared_cells(boots) if cells is None else cells
    if rounds > 1:
        return [[fmean(boot.by_prompt[cell][place] for cell in cells) for place in range(rounds)] for boot in boots]
    kinds = dict.fromkeys(cell.kind for cell in cells)
    rows = [
        [fmean(fmean(boot.by_prompt[cell]) for cell in cells if cell.kind == kind) for kind in kinds] for boot in boots
    ]
    return rows if kinds else []


def _prompts(a: list[list[float]], b: list[list[float]], by_prompt: Sequence[float]) -> float:
    """Return the variance due to the choice of prompts, without the noise of their requests."""
    count = len(by_prompt)
    squares, df = 0.0, 0
    for table in (a, b):
        columns, whole = [fmean(column) for column in zip(*table, strict=True)], fmean(map(fmean, table))
        for row in table:
            mean = fmean(row)
            squares += sum((y - mean - column + whole) ** 2 for y, column in zip(row, columns, strict=True))
        df += (len(table) - 1) * (count - 1)
    noise = squares / df * (1 / len(a) + 1 / len(b)) if df and count > _FEW_PROMPTS else 0.0
    return max(0.0, _squares(by_prompt) / (count - 1) - noise) / count


def _within(
    arms: Sequence[Sequence[BootLogs]], a: int, b: int, shared: Sequence[PromptCell], by_prompt: Sequence[float]
) -> tuple[float, float | None, float | None, tuple[float | None, float | None]]:
    """Return standard error, df, variation, and each arm's variation, from one boot per arm."""
    spreads = [_repeated(arm, shared if i in {a, b} else list_shared_cells(arm)) for i, arm in enumerate(arms)]
    ours, theirs = (coefficient_of_variation(spreads[arm][0] / spreads[arm][1]) if spreads[arm][1] else None
                    for arm in (a, b))  # fmt: skip
    if len({cell.kind for cell in shared}) > 1:
        count, squares = len(by_prompt), _squares(by_prompt)
        # Each of the two requests has half the variance of their difference.
        cv = _larger((ours, theirs)) or coefficient_of_variation(squares / (2 * (count - 1)))
        return math.sqrt(squares / (count - 1) / count), count - 1, cv, (ours, theirs)
    if ours is None and theirs is None:
        return ONE_TEXT, None, None, (None, None)
    df = sum(df for _, df in spreads)
    variance = sum(squares for squares, _ in spreads) / df
    counts = [sum(len(arms[arm][0].by_prompt[cell]) for cell in shared) for arm in (a, b)]
    return math.sqrt(variance * sum(1 / count for count in counts)), df, _larger((ours, theirs)), (ours, theirs)


def _repeated(boots: Sequence[BootLogs], cells: Sequence[PromptCell]) -> tuple[float, int]:
    """Return the sum of squares within prompts and boots, and its degrees of freedom."""
    repeated = [boot.by_prompt[cell] for boot in boots for cell in cells if len(boot.by_prompt[cell]) > 1]
    return sum(map(_squares, repeated)), sum(len(logs) - 1 for logs in repeated)


@lru_cache(maxsize=1024)
def student_t_quantile(level: float, df: float | None) -> float:
    """Return the quantile of Student's t; a `df` of None is the normal distribution.

    `level` is at least 0.5. The distribution function is an incomplete beta function (Abramowitz & Stegun 26.7.1). It
    is concave above zero, so Newton's steps from the normal quantile, a lower bound, never overshoot.
    """
    normal = NormalDist().inv_cdf(level)
    if df is None or df > _MOST_DF:
        return normal
    density_at_zero = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi * df)
    t = max(0.0, normal)
    for _ in range(_MOST_STEPS):
        share = df / (df + t * t)
        outside = _incomplete_beta(share, df / 2, 0.5)  # outside ±t
        step = (outside / 2 - (1 - level)) / (density_at_zero * math.pow(share, (df + 1) / 2))
        t += step
        if step <= 1e-10 * t:
            break
    return t


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function by its continued fraction (Abramowitz & Stegun 26.5.8)."""
    if x > (a + 1) / (a + b + 2):  # the continued fraction converges slowly here; that of the complement does not
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)) * math.pow(x, a) * math.pow(1 - x, b) / a
    value = 1.0
    for m in range(_TERMS, 0, -1):
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        value = 1 + odd / (1 + even / value)
    return front / value


class BootMean(NamedTuple):
    """The mean logarithm of a boot and its place in the order of all boots, if any."""

    log: float
    place: int | None = None


class VariancePart(NamedTuple):
    """A part of a difference's variance and its degrees of freedom (None: exactly known)."""

    variance: float
    df: float | None


class BootSpread(NamedTuple):
    """The effect of the spread between boots on the difference of two arms.

    `own` are the variances of both arms' boots (None for one boot); `pooled` is that of all arms, and no comparison has
    more degrees of freedom than it. `shift` is the drift's effect on the difference, to be added to it; `drift` is the
    change from the first boot to the last, None if no line was fitted.
    """

    parts: tuple[VariancePart, VariancePart]
    own: tuple[float | None, float | None]
    pooled: VariancePart
    shift: float
    drift: float | None


class _Line(NamedTuple):
    """The slope over boot places, and the sum of squares of places within arms."""

    slope: float
    squares: float


_NO_LINE = _Line(0.0, math.inf)


def measure_spread(arms: Sequence[Sequence[BootMean]], closest: float | None = None) -> BootSpread | None:
    """Return the effect of boot spread on the first two arms' difference; None if no arm has two boots."""
    repeated = [arm for arm in arms if len(arm) > 1]
    if not repeated:
        return None
    a, b = arms[0], arms[1]
    few = min(len(a), len(b)) < LINE_FROM
    line = _NO_LINE if few or not _take_turns(a, b) else _fit_line(repeated)
    least = (CLOSEST_OF_TWO if few else CLOSEST) if closest is None else closest
    fits = [_fit_arm(arm, line) for arm in repeated]
    df = sum(freedom for _, freedom in fits)
    pooled = VariancePart(sum(variance * freedom for variance, freedom in fits) / df, df)
    own = [_fit_arm(arm, line) if len(arm) > 1 else None for arm in (a, b)]
    apart = _mean_place(b) - _mean_place(a)
    parts = []
    for arm, fit in zip((a, b), own, strict=True):
        variance, freedom = fit or pooled
        if len(repeated) > 2 and variance < pooled.variance:
            variance, freedom = pooled
        # The uncertainty of the line's slope is added: it grows with the distance of the arms in the boot order.
        weight = 1 / len(arm) + apart**2 * _place_squares(arm) / line.squares**2
        parts.append(VariancePart(max(variance, least**2) * weight, freedom))
    first, last = (end(boot.place or 0 for arm in arms for boot in arm) for end in (min, max))
    return BootSpread(
        parts=(parts[0], parts[1]),
        own=(own[0][0] if own[0] else None, own[1][0] if own[1] else None),
        pooled=pooled,
        shift=-line.slope * apart,
        drift=None if line is _NO_LINE else line.slope * (last - first),
    )


def combine_parts(parts: Sequence[VariancePart]) -> VariancePart:
    """Return the sum of variances and its degrees of freedom (Satterthwaite 1946)."""
    whole = sum(part.variance for part in parts)
    if not whole:
        return VariancePart(0.0, sum(part.df or 0.0 for part in parts) or None)
    doubt = sum(part.variance**2 / part.df for part in parts if part.df)
    return VariancePart(whole, whole**2 / doubt if doubt else None)


def _take_turns(a: Sequence[BootMean], b: Sequence[BootMean]) -> bool:
    """Whether the places of both arms overlap; in A A A B B B, drift and arm are confounded."""
    ours, theirs = ([boot.place for boot in arm if boot.place is not None] for arm in (a, b))
    all_placed = len(ours) == len(a) and len(theirs) == len(b)
    return all_placed and max(min(ours), min(theirs)) < min(max(ours), max(theirs))


def _fit_line(arms: Sequence[Sequence[BootMean]]) -> _Line:
    squares = sum(map(_place_squares, arms))
    products = sum(
        (boot.log - fmean(member.log for member in arm)) * ((boot.place or 0) - _mean_place(arm))
        for arm in arms
        for boot in arm
    )
    return _Line(products / squares, squares)


def _fit_arm(arm: Sequence[BootMean], line: _Line) -> tuple[float, float]:
    middle, at = fmean(boot.log for boot in arm), _mean_place(arm)
    df = len(arm) - 1 - _place_squares(arm) / line.squares
    return sum((boot.log - middle - line.slope * ((boot.place or 0) - at)) ** 2 for boot in arm) / df, df


def _mean_place(arm: Sequence[BootMean]) -> float:
    return fmean(boot.place or 0 for boot in arm)


def _place_squares(arm: Sequence[BootMean]) -> float:
    middle = _mean_place(arm)
    return sum(((boot.place or 0) - middle) ** 2 for boot in arm)


def coefficient_of_variation(variance: float) -> float:
    """Return the coefficient of variation of log-normal values whose logarithms have this variance."""
    return math.sqrt(math.expm1(min(variance, _LARGEST)))


def bounded_exp(log: float) -> float:
    """Return e^log, bounded so that it stays finite: an interval from few boots may have any width."""
    return math.exp(max(-_LARGEST, min(log, _LARGEST)))


def bootstrap_mean(values: Sequence[float]) -> Ratio:
    """Return the mean with its 95 % interval, by a percentile bootstrap seeded so that it repeats.

    The interval is at least as wide as that of a share seen in none or all of the values (Clopper & Pearson 1934).
    """
    draw = random.Random(len(values))  # noqa: S311 - nothing secret
    means = sorted(fmean(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    place, rare = round(_TAIL * _RESAMPLES), _TAIL ** (1 / len(values))
    return Ratio(fmean(values), min(means[place], rare), max(means[-place - 1], 1 - rare))


def divide(
    over: float, over_part: VariancePart, under: float, under_part: VariancePart
) -> tuple[float, float | None, float | None]:
    """Return the quotient of two estimates with its interval at `LEVEL` (Fieller 1954), cut at zero.

    The lower end is None if the interval is empty, the upper end if it is unbounded.
    """
    middle = over / under if under > 0 else math.inf
    scaled = VariancePart(under_part.variance * min(middle, 1e12) ** 2, under_part.df)
    df = combine_parts([over_part, scaled]).df
    t2 = student_t_quantile((1 + LEVEL) / 2, None if df is None else max(1.0, df)) ** 2
    # The quotients q for which over - q x under is within t standard errors of zero: a q² - 2 b q + c <= 0.
    a, b, c = under**2 - t2 * under_part.variance, over * under, over**2 - t2 * over_part.variance
    if a > 0 and under < 0:
        return middle, None, None
    root = math.sqrt(max(0.0, b * b - a * c))
    return middle, c / (b + root) if c > 0 else 0.0, (b + root) / a if a > 0 else None
