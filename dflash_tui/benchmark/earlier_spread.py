"""How far boots of the same launch spread in earlier experiments, put together with two boots each of one now.

Of two boots each the spread has one degree of freedom by arm, so that 10 % is seldom found. Earlier boots add
theirs, as a scaled inverse chi-square prior does: variances are averaged by degrees of freedom, which are added up. A
machine may have changed since, and two boots hardly tell. So earlier boots count where those of here spread no more
than they did, both arms together (a ratio of variances), and leave an interval of some width whatever they say. Pure.
`tools/benchmarks/verdicts.py informed` has the rates of that.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dflash_tui.benchmark.boot_spread import CLOSEST_OF_TWO, LINE_FROM, BootSpread, VariancePart
from dflash_tui.readings import Amount, Whole

# More degrees of freedom than these change little, and are of machines longer ago.
_MOST_DF = 8
# Boots of here that spread more than this many times the variance of before are believed by themselves.
_MOST_RATIO = 1.0
# Of the logarithm: the interval of two boots each reaches so far at least, or as far as their own spread says.
LEAST_REACH = 0.08


class EarlierSpread(msgspec.Struct, frozen=True):
    """How far the boots of an arm's launch spread in earlier experiments."""

    variance: Amount
    """That of the logarithms of what boots measured, around the mean of their experiment."""
    boots: Whole
    """Of how many boots it is."""
    experiments: Whole
    """Of how many experiments these are."""

    @property
    def df(self) -> int:
        """The degrees of freedom of the variance."""
        return max(0, self.boots - self.experiments)


def inform_spread(
    spread: BootSpread, counts: tuple[int, int], earlier: Sequence[EarlierSpread | None]
) -> BootSpread | None:
    """Return the spread of two arms together with that of earlier experiments.

    None where nothing is known of them, where there is one boot, where three boots each need no help, and where the
    boots of here spread more than those of before.

    Args:
        spread: that of the boots of here.
        counts: how many boots both arms have.
        earlier: that of before, of both arms.
    """
    arms = [(own, count - 1, before) for own, count, before in zip(spread.own, counts, earlier, strict=False)
            if own is not None and before is not None]  # fmt: skip
    if len(arms) < len(counts) or min(counts) >= LINE_FROM:
        return None
    ratio = sum(own * df / max(before.variance, CLOSEST_OF_TWO**2) for own, df, before in arms)
    if ratio > _MOST_RATIO * sum(df for _, df, _ in arms):
        return None
    parts = [_put_together(*arm) for arm in arms]
    a, b = (VariancePart(part.variance / count, part.df) for part, count in zip(parts, counts, strict=True))
    df = sum(part.df or 0 for part in parts)
    return spread._replace(parts=(a, b), pooled=spread.pooled._replace(df=df))


def _put_together(own: float, df: int, before: EarlierSpread) -> VariancePart:
    """Return the variance of an arm's boots by both; `CLOSEST_OF_TWO` is the least that is believed."""
    weight = min(before.df, _MOST_DF)
    variance = (own * df + before.variance * weight) / (df + weight)
    return VariancePart(max(variance, CLOSEST_OF_TWO**2), df + weight)
