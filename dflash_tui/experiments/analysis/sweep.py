"""A sweep over numbers: its curve, its plateau and the recommended value; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from dflash_tui.benchmark.stats import BootLogs
from dflash_tui.experiments.analysis import confounds
from dflash_tui.experiments.analysis.measures import AL, TOKENS, collect_measure, compare_measure, count_comparisons
from dflash_tui.experiments.analysis.report import Sweep, SweepPoint
from dflash_tui.experiments.design import Boot, Design

# What a plateau may give away, by estimate: less than two boots of the same launch differ by (5 %, published for GB10).
NEAR = 0.03


def analyze_sweep(design: Design, boots: Sequence[Boot]) -> Sweep | None:
    """Return the sweep of an experiment whose three or more arms are numbers, None for another.

    The best is compared with all others, and it was chosen by the same boots, so that each interval has the level that
    holds for all pairs of arms together. What is not told apart from it and within 3 % of it makes the plateau; what is
    not told apart and seems slower stays open. Of a plateau of drafted tokens the smallest is recommended: it drafts
    the least that is thrown away, which is what costs when more requests run. Of other numbers it is the fastest.
    """
    numbers = {arm: value for arm in range(len(design.arms)) if (value := read_arm_number(design, arm)) is not None}
    arms = _keep_shared_prompts(collect_measure(design, boots, TOKENS))
    measured = sorted((arm for arm in numbers if arms[arm]), key=lambda arm: numbers[arm])
    if len(numbers) < max(3, len(design.arms)) or not measured:
        return None
    count = count_comparisons(design, boots)
    logs = _align_logs(arms, measured)
    best = max(logs, key=lambda arm: logs[arm])
    lengths = collect_measure(design, boots, AL)
    points = []
    for arm in measured:
        al, top = _mean_length(lengths[arm]), math.exp(logs[best])
        if arm == best:
            points.append(SweepPoint(arm, top, None, None, al, like_best=True))
        elif difference := compare_measure(arms, best, arm, TOKENS, count, levels=design.levels):
            ratio = difference.ratio()
            speeds = ratio.ratio * top, ratio.low * top, ratio.high * top
            points.append(SweepPoint(arm, *speeds, al, like_best=not difference.is_shown))
    near = math.exp(logs[best]) * (1 - NEAR)
    plateau = tuple(point.arm for point in points if point.like_best and point.tok_s >= near)
    refused = any(
        confound.refuses
        for arm in measured
        if arm != best
        for confound in confounds.find_confounds(design, boots, best, arm)
    )
    chosen = plateau[0] if design.vary == "n" else best
    behind = compare_measure(arms, chosen, best, TOKENS, count, levels=design.levels) if chosen != best else None
    return Sweep(
        points=tuple(points),
        plateau=plateau,
        recommended=None if refused else chosen,
        best=best,
        to_best=behind.ratio() if behind else None,
    )


def read_arm_number(design: Design, arm: int) -> float | None:
    """Return the value of an arm if it is a number."""
    try:
        number = float(design.arms[arm].name)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _keep_shared_prompts(arms: Sequence[Sequence[BootLogs]]) -> list[list[BootLogs]]:
    """Return the arms with those prompts only that every boot of every arm that measured has; none without such."""
    boots = [boot for arm in arms for boot in arm]
    shared = [cell for cell in boots[0].by_prompt if all(boot.by_prompt.get(cell) for boot in boots)] if boots else []
    if not shared:
        return [[] for _ in arms]
    return [[boot._replace(by_prompt={cell: boot.by_prompt[cell] for cell in shared}) for boot in arm] for arm in arms]


def _align_logs(arms: Sequence[Sequence[BootLogs]], measured: Sequence[int]) -> dict[int, float]:
    """Return the mean logarithm of each arm, without what a drift over the boots adds to some more than to others."""
    first = measured[0]
    start = _mean_log(arms[first])
    apart = {arm: compare_measure(arms, first, arm, TOKENS) for arm in measured[1:]}
    return {first: start} | {arm: start + difference.log for arm, difference in apart.items() if difference}


def _mean_length(boots: Sequence[BootLogs]) -> float | None:
    (shared,) = _keep_shared_prompts([boots])
    return math.exp(_mean_log(shared)) if shared else None


def _mean_log(boots: Sequence[BootLogs]) -> float:
    return fmean(fmean(logs) for boot in boots for logs in boot.by_prompt.values())
