"""Boots of an experiment -> what may be said of its arms; pure.

Of several comparisons each has the level at which all of them hold together: in one of twenty experiments any word of
all verdicts and of the sweep is wrong, not in one of twenty comparisons.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from statistics import fmean, median

from msgspec.structs import replace

from dflash_tui.benchmark import stats
from dflash_tui.benchmark.stats import ONE_TEXT, ArmDifference, BootLogs, Ratio
from dflash_tui.experiments.analysis import break_even, confounds, sweep
from dflash_tui.experiments.analysis.measures import (
    AL,
    FURTHER,
    OUTPUT,
    START,
    STEPS,
    TOKENS,
    changes_drafting,
    collect_measure,
    compare_measure,
    count_comparisons,
    is_in_seconds,
    is_speculating,
    list_concurrency_levels,
    measure_agreement,
    select_measured_boots,
)
from dflash_tui.experiments.analysis.report import (
    RULES,
    BootFigure,
    Comparison,
    ExperimentReport,
    FurtherVerdict,
    PromptRatio,
    SignificanceTest,
    Verdict,
)
from dflash_tui.experiments.design import Boot, Design

# A second question to the same boots: it may err this much less often, so that both together hold.
_STRICTER = 10


def build_report(design: Design, boots: Sequence[Boot]) -> ExperimentReport:
    """Return all that is known of an experiment; it is complete when every boot of the design is over."""
    comparisons = tuple(
        replace(comparison, further=_judge_further(design, boots, comparison))
        for comparison in judge_arms(design, boots)
    )
    complete = len({boot.number for boot in boots}) >= len(design.order)
    return ExperimentReport(design, tuple(boots), comparisons, sweep.analyze_sweep(design, boots), complete, RULES)


def judge_arms(design: Design, boots: Sequence[Boot]) -> tuple[Comparison, ...]:
    """Return each arm against the first."""
    measure = START if design.measures_start else ""
    return tuple(compare_pair(design, boots, 0, b, measure=measure) for b in range(1, len(design.arms)))


def compare_pair(
    design: Design,
    boots: Sequence[Boot],
    a: int,
    b: int,
    *,
    measure: str = "",
    comparisons: int = 0,
) -> Comparison:
    """Return what may be said of two arms.

    Args:
        design: the experiment.
        boots: its boots.
        a: the arm that is compared with.
        b: the arm that is judged.
        measure: what is judged; without it what suits what the arms differ in.
        comparisons: how many there are, so that all hold together; without it those of all arms.
    """
    count = comparisons or count_comparisons(design, boots)
    apart = {
        name: compare_measure(collect_measure(design, boots, name), a, b, name, count, levels=design.levels)
        for name in dict.fromkeys((STEPS, TOKENS, AL, measure or TOKENS))
    }
    measure = measure or _choose_measure(design, boots, (a, b), apart)
    judged = apart[measure]
    confounding = confounds.find_confounds(design, boots, a, b, measure)
    refused = judged is None or any(confound.refuses for confound in confounding)
    counts = (len(select_measured_boots(boots, a)), len(select_measured_boots(boots, b)))
    prompts = () if measure == START else _compare_prompts(design, boots, a, b, measure)
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
        cvs=judged.cvs if judged else (None, None),
        test=_describe_test(judged, count),
        figures=_list_figures(design, boots, (a, b), measure),
        detectable=judged.detectable if judged else None,
        prompts=prompts,
        confounds=confounding,
        start=break_even.compare_starts(boots, a, b),
        break_even=() if refused or measure == START else break_even.find_break_even(boots, a, b, judged, prompts),
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
    return TOKENS if moved or (al and al.is_shown and al.ratio(1 - (1 - al.level) / _STRICTER).excludes_one) else STEPS


def _judge_further(design: Design, boots: Sequence[Boot], comparison: Comparison) -> tuple[FurtherVerdict, ...]:
    """Return what is said of the measures that are not judged, at each number of streams.

    They are questions of their own, and none of their words is wrong in 19 of 20 experiments: each interval has the
    level that so many of them need.
    """
    verdicts, together = list[FurtherVerdict](), len(FURTHER) * len(design.concurrency)
    together *= count_comparisons(design, boots)
    kinds = len({request.kind for boot in boots for request in boot.requests})  # whose texts are in one output
    for measure in FURTHER if comparison.measure != START else ():
        arms = collect_measure(design, boots, measure)
        for streams in design.concurrency:
            of_level = [[_select_level(boot, streams) for boot in arm] for arm in arms]
            if measure == OUTPUT:
                text = ONE_TEXT / math.sqrt(max(1, kinds))
                apart = stats.compare_arms(of_level, comparison.a, comparison.b, text=text, comparisons=together)
            else:
                apart = compare_measure(of_level, comparison.a, comparison.b, measure, together, levels=design.levels)
            if apart:
                ratio = apart.ratio()
                if is_in_seconds(measure):
                    ratio = Ratio(1 / ratio.ratio, 1 / ratio.high, 1 / ratio.low)
                word = Verdict.REFUSED if comparison.word is Verdict.REFUSED else _decide(apart)
                verdicts.append(FurtherVerdict(measure, streams, word, ratio, apart.level))
    return tuple(verdicts)


def _select_level(boot: BootLogs, streams: int) -> BootLogs:
    return boot._replace(by_prompt={cell: logs for cell, logs in boot.by_prompt.items() if cell.streams == streams})


def _describe_test(difference: ArmDifference | None, comparisons: int) -> SignificanceTest | None:
    """Return the figures that decide, None where nothing was compared or no boot differs from another."""
    if difference is None or not difference.error:
        return None
    d = difference
    drift = None if d.drift is None else math.expm1(d.drift)
    return SignificanceTest(d.t, d.critical_t, d.df, d.level, comparisons, math.expm1(d.least), drift)


def _list_figures(design: Design, boots: Sequence[Boot], pair: tuple[int, int], measure: str) -> tuple[BootFigure, ...]:
    """Return what each boot of two arms measured over the prompts that all of them have: what the verdict compares."""
    arms = collect_measure(design, boots, measure)
    logs = [(arm, boot) for arm in pair for boot in arms[arm]]
    shared = (
        [cell for cell in logs[0][1].by_prompt if all(boot.by_prompt.get(cell) for _, boot in logs)] if logs else []
    )
    kinds = dict.fromkeys(cell.kind for cell in shared)
    sign = -1 if measure == START else 1  # seconds, not their inverse
    figures = [
        BootFigure(
            boot.place or 0,
            arm,
            math.exp(
                sign
                * fmean(fmean(fmean(boot.by_prompt[cell]) for cell in shared if cell.kind == kind) for kind in kinds)
            ),
        )
        for arm, boot in logs
        if shared
    ]
    return tuple(sorted(figures, key=lambda figure: figure.number))


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
    cells = list(dict.fromkeys(cell for boot in arms[a] for cell in boot.by_prompt))
    if design.levels:  # they were sent in a shuffled order, and are read from the least level to the greatest
        cells.sort(key=lambda cell: (cell.streams, [int(part) for part in re.findall(r"\d{1,15}", cell.kind)]))
    for cell in cells:
        only = [[boot.only(cell) for boot in arm if cell in boot.by_prompt] for arm in arms]
        apart = compare_measure(only, a, b, measure)
        if apart is not None:
            ours, theirs = ([log for boot in only[arm] for log in boot.by_prompt[cell]] for arm in (a, b))
            middles = math.exp(median(ours)), math.exp(median(theirs))
            ratios.append(PromptRatio(cell.kind, *middles, apart.ratio(), len(ours) + len(theirs), cell.streams))
    return tuple(ratios)
