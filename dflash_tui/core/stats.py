"""How far two arms are apart, and how sure that is; pure.

The logarithm of a request's measure is taken as prompt + arm + boot + noise. Prompts differ far more than arms do, so
that arms are compared prompt by prompt, where that cancels. Two things are left that chance decides: what a boot got
(its mean differs from that of the next boot of the same arm) and which prompts were asked (an arm may do better on some
than on others). Their variances are added.

An interval is estimate ± t x standard error (Student 1908). With two to four boots neither the normal quantile nor a
percentile bootstrap holds its rate: resampling two boots yields three different means. What a bootstrap over prompts
knows beyond that, the variance of a mean, has a closed form (Efron & Tibshirani 1993, 5.12), which is used instead.
`tests/core/test_simulation.py` shows the rates of both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

from dflash_tui.core.experiment import LEVEL, Ratio

# The same requests to the same server on a GB10, Math of the five categories: 148.8 and 125.4 tok/s (forum report of
# Qwen3.5-35B-A3B). Stands in where one request each is all there is.
SWING = math.log(148.8 / 125.4)
# Boots of one server lie within ±5 %, so that much may be between two of them: what one boot each cannot tell apart.
UNSEEN = math.log(1.05 / 0.95)
# Less than a thousandth is no difference to anybody, even where chance has no part in it.
_NOTHING = 1e-3
_POWER = 0.8


class Cell(NamedTuple):
    """What requests of two arms are paired by: the prompt, and how many were under way at a time."""

    kind: str
    streams: int = 1


# Logarithms of one boot's requests.
Logs = Mapping[Cell, Sequence[float]]


class Difference(NamedTuple):
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
        reach = quantile((1 + level) / 2, self.df) * self.error
        return Ratio(math.exp(self.log), math.exp(self.log - reach), math.exp(self.log + reach))

    @property
    def shown(self) -> bool:
        """Whether the arms differ: the interval excludes 1 and the difference exceeds twice the larger variation."""
        return self.ratio().excludes_one and abs(self.log) > self.least

    @property
    def detectable(self) -> float:
        """The relative difference that is shown in four of five such experiments (Bloom 1995, as 0.09 for 9 %)."""
        needed = max(quantile((1 + LEVEL) / 2, self.df) * self.error, self.least)
        return math.expm1(needed + quantile(_POWER, self.df) * self.error)


def difference(arms: Sequence[Sequence[Logs]], a: int, b: int) -> Difference | None:
    """Return how far arm `b` is from arm `a`, None when they share no prompt.

    `arms` holds the boots of each arm. The spread between boots is taken from all of them, as in an analysis of
    variance: it is a property of the machine, and two boots alone tell little of it.
    """
    shared = [cell for cell in _cells(arms[a]) if cell in _cells(arms[b])]
    if not shared:
        return None
    ours, theirs = _table(arms[a], shared), _table(arms[b], shared)
    by_prompt = [fmean(y) - fmean(x) for x, y in zip(zip(*ours, strict=True), zip(*theirs, strict=True), strict=True)]
    few = min(len(ours), len(theirs)) == 1
    boots = _between([ours, theirs, *(_table(arm, _cells(arm)) for i, arm in enumerate(arms) if i not in {a, b})])
    log = fmean(by_prompt)
    if boots is None:
        error, df, cv = _within(arms, a, b, shared, by_prompt)
    else:
        error, df = _both(*boots, ours, theirs, by_prompt)
        cv = max(variation([fmean(row) for row in table]) for table in (ours, theirs) if len(table) > 1)
    least = UNSEEN if few else _NOTHING
    return Difference(log, error, df, cv, max(least, math.log1p(2 * (cv or 0.0))))


def variation(logs: Sequence[float]) -> float:
    """Return the coefficient of variation of values with these logarithms: √(exp(s²) - 1), as a log-normal has it."""
    return math.sqrt(math.expm1(stdev(logs) ** 2))


def _cells(boots: Sequence[Logs]) -> list[Cell]:
    """Return what every boot of an arm has requests of, in the first one's order."""
    return [cell for cell in boots[0] if all(boot.get(cell) for boot in boots)] if boots else []


def _table(boots: Sequence[Logs], cells: Sequence[Cell]) -> list[list[float]]:
    """Return a row for each boot with the mean of each prompt."""
    return [[fmean(boot[cell]) for cell in cells] for boot in boots] if cells else []


def _between(tables: Sequence[list[list[float]]]) -> tuple[float, int] | None:
    """Return the variance of boots' means around their arm's and its degrees of freedom, None without a second boot."""
    means = [[fmean(row) for row in table] for table in tables if len(table) > 1]
    df = sum(len(arm) - 1 for arm in means)
    return (sum(stdev(arm) ** 2 * (len(arm) - 1) for arm in means) / df, df) if df else None


def _both(
    variance: float, df: int, a: list[list[float]], b: list[list[float]], by_prompt: Sequence[float]
) -> tuple[float, int]:
    """Return standard error and degrees of freedom from boots and prompts.

    The noise of single requests is in either spread and is taken out once, as for two crossed clusters (Cameron,
    Gelbach & Miller 2011). Degrees of freedom are Satterthwaite's (1946), rounded down.
    """
    boots, count = variance * (1 / len(a) + 1 / len(b)), len(by_prompt)
    residual = _residual(a, b) * (1 / len(a) + 1 / len(b)) / count
    prompts = max(0.0, stdev(by_prompt) ** 2 / count - residual) if count > 1 else 0.0
    total = boots + prompts
    if not total:
        return 0.0, df
    return math.sqrt(total), int(total**2 / (boots**2 / df + (prompts**2 / (count - 1) if prompts else 0.0)) + 1e-9)


def _residual(*tables: list[list[float]]) -> float:
    """Return the variance of what neither the boot nor the prompt of its arm explains."""
    squares, df = 0.0, 0
    for table in tables:
        columns, whole = [fmean(column) for column in zip(*table, strict=True)], fmean(map(fmean, table))
        for row in table:
            mean = fmean(row)
            squares += sum((y - mean - x + whole) ** 2 for y, x in zip(row, columns, strict=True))
        df += (len(table) - 1) * (len(columns) - 1)
    return squares / df if df else 0.0


def _within(
    arms: Sequence[Sequence[Logs]], a: int, b: int, shared: Sequence[Cell], by_prompt: Sequence[float]
) -> tuple[float, int | None, float | None]:
    """Return standard error, degrees of freedom and variation of one boot each, which say nothing of the next boot.

    With several prompts they are paired; with a single one its repetitions are all there is.
    """
    spreads = [_rounds(arm, shared if i in {a, b} else _cells(arm)) for i, arm in enumerate(arms)]
    cvs = [math.sqrt(math.expm1(squares / df)) for squares, df in (spreads[a], spreads[b]) if df]
    if len(by_prompt) > 1:
        spread = stdev(by_prompt)
        cv = max(cvs, default=math.sqrt(math.expm1(spread**2 / 2)))
        return spread / math.sqrt(len(by_prompt)), len(by_prompt) - 1, cv
    if not cvs:
        return SWING / quantile((1 + LEVEL) / 2, None), None, None
    df = sum(df for _, df in spreads)
    variance = sum(squares for squares, _ in spreads) / df
    counts = (len(arms[arm][0][shared[0]]) for arm in (a, b))
    return math.sqrt(variance * sum(1 / count for count in counts)), df, max(cvs)


def _rounds(boots: Sequence[Logs], cells: Sequence[Cell]) -> tuple[float, int]:
    """Return the squares of requests around the mean of their prompt and boot, and their degrees of freedom."""
    repeated = [boot[cell] for boot in boots for cell in cells if len(boot[cell]) > 1]
    return sum(stdev(logs) ** 2 * (len(logs) - 1) for logs in repeated), sum(len(logs) - 1 for logs in repeated)


@lru_cache(maxsize=1024)
def quantile(level: float, df: int | None) -> float:
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
