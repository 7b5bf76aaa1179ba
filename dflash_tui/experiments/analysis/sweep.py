"""A sweep over numbers: its curve, its plateau and the recommended value; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from dflash_tui.benchmark.stats import LEVEL, Logs, PromptCell
from dflash_tui.experiments.analysis import confounds
from dflash_tui.experiments.analysis.measures import AL, TOKENS, collect_measure, compare_measure
from dflash_tui.experiments.analysis.report import Sweep, SweepPoint
from dflash_tui.experiments.design import Boot, Design

# What a plateau may give away, by estimate: less than two boots of the same launch differ by (5 %, published for GB10).
NEAR = 0.03


def analyze_sweep(design: Design, boots: Sequence[Boot]) -> Sweep | None:
    """Return the sweep of an experiment whose three or more arms are numbers, None for another.

    The best is compared with all others at once, so that each interval has the level that holds for all together
    (Bonferroni's). What is not told apart from it and within 3 % of it makes the plateau; what is not told apart and
    seems slower stays open. Of a plateau of drafted tokens the smallest is recommended: it drafts the least that is
    thrown away, which is what costs when more requests run. Of other numbers it is the fastest.
    """
    numbers = {arm: value for arm in range(len(design.arms)) if (value := read_arm_number(design, arm)) is not None}
    arms = collect_measure(design, boots, TOKENS)
    shared = _shared_prompts(arms)
    if len(numbers) < max(3, len(design.arms)) or not shared:
        return None
    logs = {arm: _mean_log(arms[arm], shared) for arm in sorted(numbers, key=lambda arm: numbers[arm]) if arms[arm]}
    best = max(logs, key=lambda arm: logs[arm])
    lengths = collect_measure(design, boots, AL)
    level = 1 - (1 - LEVEL) / max(1, len(logs) - 1)
    points = []
    for arm, log in logs.items():
        top, difference = math.exp(logs[best]), compare_measure(arms, best, arm, TOKENS)
        ratio = difference.ratio(level) if difference and arm != best else None
        low, high = (ratio.low * top, ratio.high * top) if ratio else (math.exp(log), math.exp(log))
        al = math.exp(_mean_log(lengths[arm], cells)) if (cells := _shared_prompts([lengths[arm]])) else None
        points.append(
            SweepPoint(
                arm,
                math.exp(log),
                low,
                high,
                al,
                not (difference and difference.is_shown and ratio and ratio.excludes_one),
            )
        )
    near = math.exp(logs[best]) * (1 - NEAR)
    plateau = tuple(point.arm for point in points if point.like_best and point.tok_s >= near)
    refused = any(
        each.refuses for arm in logs if arm != best for each in confounds.find_confounds(design, boots, best, arm)
    )
    chosen = plateau[0] if design.vary == "n" else best
    behind = compare_measure(arms, chosen, best, TOKENS)
    return Sweep(
        points=tuple(points),
        plateau=plateau,
        recommended=None if refused else chosen,
        best=best,
        to_best=behind.ratio(level) if behind and chosen != best else None,
    )


def read_arm_number(design: Design, arm: int) -> float | None:
    """Return the value of an arm if it is a number."""
    try:
        number = float(design.arms[arm].name)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _shared_prompts(arms: Sequence[Sequence[Logs]]) -> list[PromptCell]:
    """Return the prompts that every boot of every arm that measured has."""
    boots = [boot for arm in arms for boot in arm]
    return [cell for cell in boots[0] if all(boot.get(cell) for boot in boots)] if boots else []


def _mean_log(boots: Sequence[Logs], cells: Sequence[PromptCell]) -> float:
    return fmean(fmean(boot[cell]) for boot in boots for cell in cells)
