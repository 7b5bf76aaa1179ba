"""How far the boots of each arm spread, around a line over their order where there are enough of them; pure.

Each arm has the spread of its own boots (Welch 1947): arms may be unlike, and one spread for both believes too much of
the arm that spreads more. From three boots per arm on, a line over the order of the boots, the same for all arms, is
taken out: what drifts (heat, clocks) is neither an arm's nor chance. Of more than two arms some always have boots that
came out alike; there an arm has the spread of all boots together, unless its own is greater.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

# From so many boots per arm on, their order tells a drift from chance.
LINE_FROM = 3
# Boots may come out alike by chance, two of them often. No standard deviation below these is believed; a server that
# runs 3 % faster or slower from boot to boot would else differ by 6 % for sure in one of eight pairs of two boots.
CLOSEST, CLOSEST_OF_TWO = 0.005, 0.015
_LARGEST = 300.0


class BootMean(NamedTuple):
    """What a boot measured, as a logarithm, and its place in the order of all boots; None where there is no order."""

    log: float
    place: int | None = None


class VariancePart(NamedTuple):
    """A part of a difference's variance and its degrees of freedom; None stands for a variance that is known."""

    variance: float
    df: float | None


class BootSpread(NamedTuple):
    """What the spread of boots does to the difference of two arms.

    `parts` are those of both arms. `own` are the variances of their boots, None for one boot. `pooled` is that of all
    arms with its degrees of freedom, of which no comparison has more. `shift` is what the line takes from the
    difference, `drift` how far it goes from the first boot to the last; None without a line.
    """

    parts: tuple[VariancePart, VariancePart]
    own: tuple[float | None, float | None]
    pooled: VariancePart
    shift: float
    drift: float | None


class _Line(NamedTuple):
    """A slope over the places, and the squares of the places around the mean of their arm, of all arms together."""

    slope: float
    squares: float


_NO_LINE = _Line(0.0, math.inf)


def measure_spread(arms: Sequence[Sequence[BootMean]], closest: float | None = None) -> BootSpread | None:
    """Return what boots' spread does to the difference of the first two arms, None where no arm has a second boot.

    Args:
        arms: the boots of each arm, those that are compared first.
        closest: the least standard deviation that is believed; None has it by the number of boots.
    """
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
        # Beside the arm's mean, the line's slope is in doubt: the more, the further apart in the order the arms are.
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
    """Return the sum of variances with the degrees of freedom that they have together (Satterthwaite 1946)."""
    whole = sum(part.variance for part in parts)
    if not whole:
        return VariancePart(0.0, sum(part.df or 0.0 for part in parts) or None)
    doubt = sum(part.variance**2 / part.df for part in parts if part.df)
    return VariancePart(whole, whole**2 / doubt if doubt else None)


def _take_turns(a: Sequence[BootMean], b: Sequence[BootMean]) -> bool:
    """Whether both arms' boots have places that overlap: of A A A B B B nobody can tell a drift from the arms."""
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
    """Return the variance of an arm's boots around the line and its degrees of freedom; of all arms' it takes one."""
    middle, at = fmean(boot.log for boot in arm), _mean_place(arm)
    df = len(arm) - 1 - _place_squares(arm) / line.squares
    return sum((boot.log - middle - line.slope * ((boot.place or 0) - at)) ** 2 for boot in arm) / df, df


def _mean_place(arm: Sequence[BootMean]) -> float:
    return fmean(boot.place or 0 for boot in arm)


def _place_squares(arm: Sequence[BootMean]) -> float:
    middle = _mean_place(arm)
    return sum(((boot.place or 0) - middle) ** 2 for boot in arm)


def coefficient_of_variation(variance: float) -> float:
    """Return the coefficient of variation of values whose logarithms have this variance, as a log-normal has it."""
    return math.sqrt(math.expm1(min(variance, _LARGEST)))


def bounded_exp(log: float) -> float:
    """Return e^log, kept finite: one boot more or less of a few may leave an interval of any width."""
    return math.exp(max(-_LARGEST, min(log, _LARGEST)))
