"""Boots of an experiment -> what may be said of its arms; pure.

Each comparison stands by itself at `LEVEL`: of a sweep's many comparisons with its first arm one in twenty errs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from dflash_tui.benchmark.stats import ArmDifference, Ratio
from dflash_tui.experiments.analysis import break_even, confounds, sweep
from dflash_tui.experiments.analysis.measures import (
    AL,
    STEPS,
    TOKENS,
    changes_drafting,
    collect_measure,
    compare_measure,
    is_speculating,
    list_concurrency_levels,
    measure_agreement,
    select_measured_boots,
)
from dflash_tui.experiments.analysis.report import Comparison, ExperimentReport, PromptRatio, Verdict
from dflash_tui.experiments.design import Boot, Design

# A second question to the same boots: it is asked at a second level, so that both together err in one of twenty.
_STRICT_LEVEL = 0.99


def build_report(design: Design, boots: Sequence[Boot]) -> ExperimentReport:
    """Return all that is known of an experiment; it is complete when every boot of the design is over."""
    comparisons = judge_arms(design, boots)
    complete = len({boot.number for boot in boots}) >= len(design.order)
    return ExperimentReport(design, tuple(boots), comparisons, sweep.analyze_sweep(design, boots), complete)


def judge_arms(design: Design, boots: Sequence[Boot]) -> tuple[Comparison, ...]:
    """Return each arm against the first."""
    return tuple(_compare(design, boots, 0, b) for b in range(1, len(design.arms)))


def _compare(design: Design, boots: Sequence[Boot], a: int, b: int) -> Comparison:
    apart = {
        measure: compare_measure(collect_measure(design, boots, measure), a, b, measure)
        for measure in (STEPS, TOKENS, AL)
    }
    measure = _choose_measure(design, boots, (a, b), apart)
    judged = apart[measure]
    confounding = confounds.find_confounds(design, boots, a, b)
    refused = judged is None or any(each.refuses for each in confounding)
    counts = (len(select_measured_boots(boots, a)), len(select_measured_boots(boots, b)))
    prompts = _compare_prompts(design, boots, a, b, measure)
    return Comparison(
        a=a,
        b=b,
        measure=measure,
        word=Verdict.REFUSED if refused else _decide(judged),
        suggestive=min(counts) < 2,
        ratio=_ratio_of(judged),
        steps_s=_ratio_of(apart[STEPS]),
        tok_s=_ratio_of(apart[TOKENS]),
        al=_ratio_of(apart[AL]),
        cause=_find_cause(apart[TOKENS], {STEPS: apart[STEPS], AL: apart[AL]}),
        cv=judged.cv if judged else None,
        detectable=judged.detectable if judged else None,
        prompts=prompts,
        confounds=confounding,
        start=break_even.compare_starts(boots, a, b),
        break_even=() if refused else break_even.find_break_even(boots, a, b, judged, prompts),
        agreement=measure_agreement(design, boots, a, b),
        boots=counts,
    )


def _choose_measure(
    design: Design, boots: Sequence[Boot], pair: tuple[int, int], apart: dict[str, ArmDifference | None]
) -> str:
    """Return the measure that is judged: steps/s where what is varied leaves alone what is drafted and accepted.

    tok/s = steps/s x AL, and the text of an answer, which boots differ in, moves AL only. Where several requests were
    under way, not every server tells the steps of each: what is judged has to be known of all numbers of streams.
    """
    if apart[STEPS] is None or list_concurrency_levels(design, boots, STEPS, pair) != list_concurrency_levels(
        design, boots, TOKENS, pair
    ):
        return TOKENS
    a, b = (design.arms[arm] for arm in pair)
    moved, al = not (is_speculating(a) and is_speculating(b)) or changes_drafting(a, b), apart[AL]
    return TOKENS if moved or (al and al.is_shown and al.ratio(_STRICT_LEVEL).excludes_one) else STEPS


def _decide(difference: ArmDifference | None) -> Verdict:
    if difference is None or not difference.is_shown:
        return Verdict.NO_DIFFERENCE
    return Verdict.FASTER if difference.log > 0 else Verdict.SLOWER


def _ratio_of(difference: ArmDifference | None) -> Ratio | None:
    return difference.ratio() if difference else None


def _find_cause(speed: ArmDifference | None, parts: dict[str, ArmDifference | None]) -> str:
    """Return which of the factors of tok/s is shown to differ in the direction in which tok/s does."""
    if speed is None or not speed.is_shown:
        return ""
    causes = [name for name, part in parts.items() if part and part.is_shown and part.log * speed.log > 0]
    return "both" if len(causes) == 2 else "".join(causes)


def _compare_prompts(design: Design, boots: Sequence[Boot], a: int, b: int, measure: str) -> tuple[PromptRatio, ...]:
    arms = collect_measure(design, boots, measure)
    ratios = []
    for cell in dict.fromkeys(cell for boot in arms[a] for cell in boot):
        only = [[{cell: boot[cell]} for boot in arm if cell in boot] for arm in arms]
        apart = compare_measure(only, a, b, measure)
        if apart is not None:
            ours, theirs = ([log for boot in only[arm] for log in boot[cell]] for arm in (a, b))
            middles = math.exp(median(ours)), math.exp(median(theirs))
            ratios.append(PromptRatio(cell.kind, *middles, apart.ratio(), len(ours) + len(theirs), cell.streams))
    return tuple(ratios)
