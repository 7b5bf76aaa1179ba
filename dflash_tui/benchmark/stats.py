"""How far two arms are apart, and how sure that is; pure.

The logarithm of a request's measure is taken as prompt + arm + boot + prompt x arm + noise. Prompts differ far more
than arms do, so that arms are compared prompt by prompt, where that cancels. Two things are left that chance decides:
what a boot got (its mean differs from that of the next boot of the same arm) and which prompts were asked (an arm does
better on some than on others). Their variances are added; the noise of single requests, which is in both, is counted
once, as for any two crossed clusters (Cameron, Gelbach & Miller 2011), and no part is less than nothing. Levels of
concurrency ask the same prompts, so a prompt's levels are one.

An interval is estimate ± t x standard error (Student 1908), with the degrees of freedom that the two variances have
together (Satterthwaite 1946), never more than those of the boots. With two to four boots neither the normal quantile
nor a percentile bootstrap holds its rate: resampling two boots yields three means. What a bootstrap over prompts knows
beyond that, the variance of a mean, has a closed form (Efron & Tibshirani 1993, chapter 5), which is used instead.
`tests/unit/experiments/test_simulation.py` shows the rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist, fmean
from typing import NamedTuple

import msgspec

LEVEL = 0.95

# The same requests to the same server on a GB10, Math of the five categories: 148.8 and 125.4 tok/s (forum report of
# Qwen3.5-35B-A3B). Stands in where one request each is all there is.
SWING = math.log(148.8 / 125.4)
# What a text may do for tok/s and AL, as a standard error, where an arm's boots all answer with the same one.
ONE_TEXT = SWING / NormalDist().inv_cdf(0.975)
# Boots of one server lie within ±5 %, so that much may be between two of them: what one boot each cannot tell apart.
UNSEEN = math.log(1.05 / 0.95)
# Of so few prompts nobody knows how far an arm does better on some: the noise of requests is left in that.
_FEW_PROMPTS = 3
# So many degrees of freedom leave Student's t within 1 % of the normal distribution.
_AS_GOOD_AS_KNOWN = 200
# Two boots may come out alike by chance. Nothing below a standard deviation of 1 % between boots is believed, which
# keeps intervals from two boots each at their rate even where boots are spread evenly instead of normally.
CLOSEST = 0.01
# Less than a thousandth is no difference to anybody, even where chance has no part in it.
_NOTHING = 1e-3
_POWER = 0.8


class Ratio(msgspec.Struct, frozen=True):
    """How many times as much arm b has as arm a, with the interval that holds the truth at `LEVEL`."""

    ratio: float
    low: float
    high: float

    @property
    def excludes_one(self) -> bool:
        """Whether the interval lies on one side of 1."""
        return self.low > 1 or self.high < 1


class PromptCell(NamedTuple):
    """What requests of two arms are paired by: the prompt, and how many were under way at a time."""

    kind: str
    streams: int = 1


# Logarithms of one boot's requests.
Logs = Mapping[PromptCell, Sequence[float]]


class ArmDifference(NamedTuple):
    """The logarithm of a ratio, its standard error and degrees of freedom.

    `df` None stands for a normal distribution. `cv` is the larger coefficient of variation of the two arms between
    boots, within the boot when there is one each, None when nothing was repeated. `least` is what the logarithm has to
    exceed however sure it is.
    """

    log: float
    error: float
    df: int | None
    cv: float | None
    least: float

    def ratio(self, level: float = LEVEL) -> Ratio:
        """Return the ratio with the interval that holds the truth at `level`."""
        reach = student_t_quantile((1 + level) / 2, self.df) * self.error
        return Ratio(math.exp(self.log), math.exp(self.log - reach), math.exp(self.log + reach))

    @property
    def is_shown(self) -> bool:
        """Whether the arms differ: the interval excludes 1 and the difference exceeds twice the larger variation."""
        return self.ratio().excludes_one and abs(self.log) > self.least

    @property
    def detectable(self) -> float:
        """The relative difference that is shown in four of five such experiments (Bloom 1995, as 0.09 for 9 %)."""
        needed = max(student_t_quantile((1 + LEVEL) / 2, self.df) * self.error, self.least)
        return math.expm1(needed + student_t_quantile(_POWER, self.df) * self.error)


def compare_arms(
    arms: Sequence[Sequence[Logs]], a: int, b: int, closest: float = CLOSEST, text: float = 0.0
) -> ArmDifference | None:
    """Return how far arm `b` is from arm `a`, None when they share no prompt.

    The spread between boots is taken from all arms, as in an analysis of variance: it is a property of the machine, and
    two boots alone tell little of it.

    Args:
        arms: the boots of each arm.
        a: the arm that is compared with.
        b: the arm that is judged.
        closest: the least standard deviation between boots that is believed.
        text: the standard error that texts make in what is measured, for arms of a single one.
    """
    shared = [cell for cell in _cells(arms[a]) if cell in _cells(arms[b])]
    if not shared:
        return None
    rounds = _rounds_of([*arms[a], *arms[b]], shared)
    ours, theirs = _table(arms[a], shared, rounds), _table(arms[b], shared, rounds)
    by_prompt = [fmean(y) - fmean(x) for x, y in zip(zip(*ours, strict=True), zip(*theirs, strict=True), strict=True)]
    few = min(len(ours), len(theirs)) == 1
    boots = _between([ours, theirs, *(_table(arm, _cells(arm)) for i, arm in enumerate(arms) if i not in {a, b})])
    log = fmean(by_prompt)
    if boots is None:
        error, df, cv = _within(arms, a, b, shared, by_prompt)
    else:
        variance, freedom = boots
        part = max(variance, closest**2) * (1 / len(ours) + 1 / len(theirs))
        prompts = text**2 if len(by_prompt) == 1 else _prompts(ours, theirs, by_prompt)
        error, df = _sum((part, freedom), (prompts, len(by_prompt) - 1 or None))
        df = freedom if df is None else min(df, freedom)
        cvs = [coefficient_of_variation([fmean(row) for row in table]) for table in (ours, theirs) if len(table) > 1]
        cv = max(cvs, default=_variation(variance, 1))  # with one boot each it is that of the other arms
    least = UNSEEN if few else _NOTHING
    return ArmDifference(log, error, df, cv, max(least, math.log1p(2 * (cv or 0.0))))


def coefficient_of_variation(logs: Sequence[float]) -> float:
    """Return the coefficient of variation of values with these logarithms: √(exp(s²) - 1), as a log-normal has it."""
    return _variation(_squares(logs), len(logs) - 1)


def _variation(squares: float, df: int) -> float:
    return math.sqrt(math.expm1(squares / df))


def _squares(values: Sequence[float]) -> float:
    """Return the sum of squares around the mean; `statistics.stdev` takes fifty times as long to be exact."""
    mean = fmean(values)
    return sum((value - mean) ** 2 for value in values)


def _cells(boots: Sequence[Logs]) -> list[PromptCell]:
    """Return what every boot of an arm has requests of, in the first one's order."""
    return [cell for cell in boots[0] if all(boot.get(cell) for boot in boots)] if boots else []


def _rounds_of(boots: Sequence[Logs], cells: Sequence[PromptCell]) -> int:
    """Return how many requests each boot has of a prompt that is the only one; their texts differ. Else 1."""
    counts = {len(boot[cell]) for boot in boots for cell in cells}
    return counts.pop() if len(counts) == 1 and len({cell.kind for cell in cells}) == 1 else 1


def _table(boots: Sequence[Logs], cells: Sequence[PromptCell], rounds: int = 1) -> list[list[float]]:
    """Return a row for each boot with the mean of each prompt over its levels, or of each round of the only prompt."""
    if rounds > 1:
        return [[fmean(boot[cell][place] for cell in cells) for place in range(rounds)] for boot in boots]
    kinds = dict.fromkeys(cell.kind for cell in cells)
    rows = [[fmean(fmean(boot[cell]) for cell in cells if cell.kind == kind) for kind in kinds] for boot in boots]
    return rows if kinds else []


def _between(tables: Sequence[list[list[float]]]) -> tuple[float, int] | None:
    """Return the variance of boots' means around their arm's and its degrees of freedom, None without a second boot."""
    means = [[fmean(row) for row in table] for table in tables if len(table) > 1]
    df = sum(len(arm) - 1 for arm in means)
    return (sum(map(_squares, means)) / df, df) if df else None


def _prompts(a: list[list[float]], b: list[list[float]], by_prompt: Sequence[float]) -> float:
    """Return the variance that comes from which prompts were asked, without the noise of their requests."""
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


def _sum(*parts: tuple[float, int | None]) -> tuple[float, int | None]:
    """Return the standard error of variances and degrees of freedom (None: known), and their own (Satterthwaite)."""
    whole = sum(variance for variance, _ in parts)
    doubt = sum(variance**2 / df for variance, df in parts if df)
    df = whole**2 / doubt if doubt else math.inf
    return math.sqrt(whole), max(1, int(df)) if df < _AS_GOOD_AS_KNOWN else None


def _within(
    arms: Sequence[Sequence[Logs]], a: int, b: int, shared: Sequence[PromptCell], by_prompt: Sequence[float]
) -> tuple[float, int | None, float | None]:
    """Return standard error, degrees of freedom and variation of one boot each, which say nothing of the next boot.

    With several prompts they are paired; with a single one its repetitions are all there is.
    """
    spreads = [_repeated(arm, shared if i in {a, b} else _cells(arm)) for i, arm in enumerate(arms)]
    cvs = [_variation(squares, df) for squares, df in (spreads[a], spreads[b]) if df]
    if len({cell.kind for cell in shared}) > 1:
        count, squares = len(by_prompt), _squares(by_prompt)
        # Each of the two requests has half the variance of their difference.
        cv = max(cvs, default=_variation(squares, 2 * (count - 1)))
        return math.sqrt(squares / (count - 1) / count), count - 1, cv
    if not cvs:
        return ONE_TEXT, None, None
    df = sum(df for _, df in spreads)
    variance = sum(squares for squares, _ in spreads) / df
    counts = [sum(len(arms[arm][0][cell]) for cell in shared) for arm in (a, b)]
    return math.sqrt(variance * sum(1 / count for count in counts)), df, max(cvs)


def _repeated(boots: Sequence[Logs], cells: Sequence[PromptCell]) -> tuple[float, int]:
    """Return the squares of requests around the mean of their prompt and boot, and their degrees of freedom."""
    repeated = [boot[cell] for boot in boots for cell in cells if len(boot[cell]) > 1]
    return sum(map(_squares, repeated)), sum(len(logs) - 1 for logs in repeated)


@lru_cache(maxsize=1024)
def student_t_quantile(level: float, df: int | None) -> float:
    """Return the quantile of Student's t with `df` degrees of freedom, of the normal distribution for None.

    The distribution function is the finite sum for whole degrees of freedom (Abramowitz & Stegun 26.7.3 and 26.7.4),
    which is inverted by halving; no more is needed of a statistics library.
    """
    if df is None:
        return NormalDist().inv_cdf(level)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, df) < 2 * level - 1 else (low, middle)
    return math.sqrt(df) * math.tan(low)


def _inside(angle: float, df: int) -> float:
    """Return how much of Student's t lies within ±√df tan(angle)."""
    odd, cos2 = df % 2, math.cos(angle) ** 2
    term = total = math.cos(angle) if odd else 1.0
    for index in range(2 + odd, df, 2):
        term *= cos2 * (index - 1) / index
        total += term
    if not odd:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + (math.sin(angle) * total if df > 1 else 0.0))
