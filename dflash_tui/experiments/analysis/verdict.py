"""Judge the boots of an experiment. Pure.

The family-wise error rate is 5 %: one in twenty experiments has any wrong verdict, including its sweep, not one in
twenty comparisons.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from statistics import fmean, median
from typing import NamedTuple

from msgspec.structs import replace

from dflash_tui.experiments.analysis import confounds, measures, speculation_map, stats
from dflash_tui.experiments.analysis.measures import (
    AL,
    START,
    STEPS,
    TOKENS,
    classify_start,
    collect_measure,
    compare_measure,
    count_comparisons,
    join_turns,
    select_measured_boots,
)
from dflash_tui.experiments.analysis.report import (
    RULES,
    BootFigure,
    BreakEven,
    Comparison,
    ExperimentReport,
    FurtherVerdict,
    PromptRatio,
    SignificanceTest,
    Sweep,
    SweepPoint,
    Verdict,
    decide,
)
from dflash_tui.experiments.analysis.stats import ArmDifference, BootLogs, Ratio, VariancePart
from dflash_tui.experiments.design import Boot, Design

# The error rate of a second question to the same boots is divided by this, so that both hold together.
_STRICTER = 10
# How much slower than the best an arm of the plateau may be: less than two boots of one launch differ (5 %, published
# for GB10).
NEAR = 0.03
# A start later by less than this share, which boots differ by anyway, or by less than a second has no break-even.
_MIN_SHARE, _MIN_SECONDS = 0.05, 1.0
# Starts of one server vary by 3 to 10 %. The first is the lower bound of a spread measured from few starts, the second
# is assumed if no start was repeated.
CLOSEST_STARTS, ASSUMED_STARTS = 0.03, 0.10
_ENOUGH_STARTS = 4


def build_report(design: Design, boots: Sequence[Boot]) -> ExperimentReport:
    """Return the report of an experiment; it is complete once every boot of the design has ended."""
    comparisons = tuple(
        replace(comparison, further=_judge_further(design, boots, comparison))
        for comparison in judge_arms(design, boots)
    )
    complete = len({boot.number for boot in boots}) >= len(design.order)
    sweep = _analyze_sweep(design, boots)
    found = speculation_map.build_map(design, boots, comparisons) if design.by_kind else None
    return ExperimentReport(design, tuple(boots), comparisons, sweep, complete, RULES, map=found)


def judge_arms(design: Design, boots: Sequence[Boot]) -> tuple[Comparison, ...]:
    """Return the comparison of each arm with the first one."""
    measure = START if design.measures_start else ""
    return tuple(compare_pair(design, boots, 0, b, measure=measure) for b in range(1, len(design.arms)))


def compare_pair(
    design: Design, boots: Sequence[Boot], a: int, b: int, *, measure: str = "", comparisons: int = 0
) -> Comparison:
    """Return the comparison of arm `b` with arm `a`, in `measure` or the one that suits the arms.

    `comparisons` is the number that hold together at 95 %; 0 stands for all pairs of arms.
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
    counts = (len(join_turns(design, boots, a)), len(join_turns(design, boots, b)))
    prompts = () if measure == START else _compare_prompts(design, boots, a, b, measure)
    return Comparison(
        a=a,
        b=b,
        measure=measure,
        word=Verdict.REFUSED if refused else decide(judged),
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
        break_even=() if refused or measure == START else _find_break_even(boots, a, b, judged, prompts),
        boots=counts,
    )


def _choose_measure(
    design: Design, boots: Sequence[Boot], pair: tuple[int, int], apart: dict[str, ArmDifference | None]
) -> str:
    """Return the judged measure: steps/s if the arms draft and accept alike, else tok/s.

    tok/s = steps/s x AL, and the text of an answer, which differs between boots, affects only AL. The judged measure
    must be known for every number of streams.
    """
    steps_at, tokens_at = (
        {cell.streams for arm in pair for boot in collect_measure(design, boots, name)[arm] for cell in boot.by_prompt}
        for name in (STEPS, TOKENS)
    )
    if apart[STEPS] is None or steps_at != tokens_at:
        return TOKENS
    a, b = (design.arms[arm] for arm in pair)
    speculating = measures.is_speculating(a) and measures.is_speculating(b)
    moved, al = not speculating or measures.changes_drafting(a, b), apart[AL]
    return TOKENS if moved or (al and al.is_shown and al.ratio(1 - (1 - al.level) / _STRICTER).excludes_one) else STEPS


def _judge_further(design: Design, boots: Sequence[Boot], comparison: Comparison) -> tuple[FurtherVerdict, ...]:
    """Return the verdicts on the secondary measures; their intervals hold together at 95 %."""
    a, b, verdicts = comparison.a, comparison.b, list[FurtherVerdict]()
    together = len(measures.FURTHER) * len(design.concurrency) * count_comparisons(design, boots)
    kinds = len({request.kind for boot in boots for request in boot.requests})  # all in one output rate
    for measure in measures.FURTHER if comparison.measure != START else ():
        arms = collect_measure(design, boots, measure)
        for streams in design.concurrency:
            of_level = [[boot.select(cell for cell in boot.by_prompt if cell.streams == streams) for boot in arm]
                        for arm in arms]  # fmt: skip
            if measure == measures.OUTPUT:
                text = stats.ONE_TEXT / math.sqrt(max(1, kinds))
                apart = stats.compare_arms(of_level, a, b, text=text, comparisons=together)
            else:
                apart = compare_measure(of_level, a, b, measure, together, levels=design.levels)
            if apart:
                ratio = apart.ratio().inverse if measures.is_in_seconds(measure) else apart.ratio()
                word = Verdict.REFUSED if comparison.word is Verdict.REFUSED else decide(apart)
                verdicts.append(FurtherVerdict(measure, streams, word, ratio, apart.level))
    return tuple(verdicts)


def _describe_test(difference: ArmDifference | None, comparisons: int) -> SignificanceTest | None:
    if difference is None or not difference.error:
        return None
    d = difference
    drift = None if d.drift is None else math.expm1(d.drift)
    return SignificanceTest(d.t, d.critical_t, d.df, d.level, comparisons, math.expm1(d.least), drift)


def _list_figures(design: Design, boots: Sequence[Boot], pair: tuple[int, int], measure: str) -> tuple[BootFigure, ...]:
    arms = collect_measure(design, boots, measure)
    shared = _keep_shared_prompts([arms[arm] for arm in pair])
    sign = -1 if measure == START else 1  # starts as seconds, not as their inverse
    figures = [
        BootFigure(boot.place or 0, arm, math.exp(sign * fmean(stats.list_prompt_means([boot])[0])))
        for arm, of_arm in zip(pair, shared, strict=True)
        for boot in of_arm
    ]
    return tuple(sorted(figures, key=lambda figure: figure.number))


def _ratio_of(difference: ArmDifference | None) -> Ratio | None:
    return difference.ratio() if difference else None


def _find_cause(speed: ArmDifference | None, parts: dict[str, ArmDifference | None]) -> str:
    """Return the factors of tok/s that differ significantly in the direction of tok/s."""
    if speed is None or not speed.is_shown:
        return ""
    causes = [name for name, part in parts.items() if part and part.is_shown and part.log * speed.log > 0]
    return "both" if len(causes) == 2 else "".join(causes)


def _compare_prompts(design: Design, boots: Sequence[Boot], a: int, b: int, measure: str) -> tuple[PromptRatio, ...]:
    arms = collect_measure(design, boots, measure)
    ratios = []
    cells = list(dict.fromkeys(cell for boot in arms[a] for cell in boot.by_prompt))
    if design.levels:  # sent in a shuffled order, listed by level
        cells.sort(key=lambda cell: (cell.streams, [int(part) for part in re.findall(r"\d{1,15}", cell.kind)]))
    for cell in cells:
        only = [[boot.select([cell]) for boot in arm if cell in boot.by_prompt] for arm in arms]
        apart = compare_measure(only, a, b, measure)
        if apart is not None:
            ours, theirs = ([log for boot in only[arm] for log in boot.by_prompt[cell]] for arm in (a, b))
            middles = math.exp(median(ours)), math.exp(median(theirs))
            ratios.append(PromptRatio(cell.kind, *middles, apart.ratio(), len(ours) + len(theirs), cell.streams))
    return tuple(ratios)


def _analyze_sweep(design: Design, boots: Sequence[Boot]) -> Sweep | None:
    """Return the sweep if all arms are numbers and there are at least three, else None.

    The best arm was chosen by the same boots that compare it with the others, so each interval has the level that holds
    for all pairs of arms together. Arms not significantly different from the best and within 3 % of it form the
    plateau; those not significantly different but slower by more are open. For drafted tokens the smallest of the
    plateau is recommended, as it wastes the fewest drafts, which costs when more requests run. For other numbers the
    fastest is.
    """
    numbers = {arm: value for arm in range(len(design.arms)) if (value := _read_arm_number(design, arm)) is not None}
    arms = _keep_shared_prompts(collect_measure(design, boots, TOKENS))
    measured = sorted((arm for arm in numbers if arms[arm]), key=lambda arm: numbers[arm])
    if len(numbers) < max(3, len(design.arms)) or not measured:
        return None
    count = count_comparisons(design, boots)
    # The mean logarithm of each arm without the drift over the boots.
    apart = {arm: compare_measure(arms, measured[0], arm, TOKENS) for arm in measured[1:]}
    logs = {measured[0]: 0.0} | {arm: difference.log for arm, difference in apart.items() if difference}
    best = max(logs, key=lambda arm: logs[arm])
    top = math.exp(_mean_log(arms[measured[0]]) + logs[best])
    points = []
    for arm, lengths in ((arm, collect_measure(design, boots, AL)[arm]) for arm in measured):
        (shared,) = _keep_shared_prompts([lengths])
        al = math.exp(_mean_log(shared)) if shared else None
        if arm == best:
            points.append(SweepPoint(arm, top, None, None, al, like_best=True))
        elif difference := compare_measure(arms, best, arm, TOKENS, count, levels=design.levels):
            ratio = difference.ratio()
            speeds = ratio.ratio * top, ratio.low * top, ratio.high * top
            points.append(SweepPoint(arm, *speeds, al, like_best=not difference.is_shown))
    plateau = tuple(point.arm for point in points if point.like_best and point.tok_s >= top * (1 - NEAR))
    others = [confounds.find_confounds(design, boots, best, arm) for arm in measured if arm != best]
    refused = any(confound.refuses for found in others for confound in found)
    chosen = plateau[0] if design.vary == "n" else best
    behind = compare_measure(arms, chosen, best, TOKENS, count, levels=design.levels) if chosen != best else None
    return Sweep(tuple(points), plateau, None if refused else chosen, best, behind.ratio() if behind else None)


def _read_arm_number(design: Design, arm: int) -> float | None:
    try:
        number = float(design.arms[arm].name)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _keep_shared_prompts(arms: Sequence[Sequence[BootLogs]]) -> list[list[BootLogs]]:
    boots = [boot for arm in arms for boot in arm]
    shared = stats.list_shared_cells(boots)
    return [[boot.select(shared) for boot in arm] if shared else [] for arm in arms]


def _mean_log(boots: Sequence[BootLogs]) -> float:
    return fmean(fmean(logs) for boot in boots for logs in boot.by_prompt.values())


def _find_break_even(
    boots: Sequence[Boot], a: int, b: int, judged: ArmDifference | None, prompts: Sequence[PromptRatio]
) -> tuple[BreakEven, ...]:
    """Return the break-even of the arm that starts later, for cold and for cached starts."""
    break_evens = []
    arms = [select_measured_boots(boots, arm) for arm in (a, b)]
    spread = _measure_start_spread(arms)
    # A boot without a reported cache state counts for both. If no boot has one, all starts count as cached.
    states = {classify_start(boot) for arm in arms for boot in arm} - {""} or {"cached"}
    for state in ("cold", "cached"):
        starts = [
            [s for boot in arm if classify_start(boot) in {state, ""} and (s := _seconds_to_first_answer(boot))]
            for arm in arms
        ]
        if judged is None or state not in states or not all(starts):
            continue
        ours, theirs = map(fmean, starts)
        later = theirs - ours
        if abs(later) > max(_MIN_SECONDS, _MIN_SHARE * max(ours, theirs)):
            part = VariancePart(sum(fmean(arm) ** 2 * spread.variance / len(arm) for arm in starts), spread.df)
            saving = _measure_saving(arms[0 if later > 0 else 1], judged, prompts, forward=later > 0)
            even = BreakEven(
                by=b if later > 0 else a,
                seconds=abs(later),
                cold=state == "cold",
                starts=(len(starts[0]), len(starts[1])),
                start_cv=math.sqrt(spread.variance),
                start_df=spread.df,
            )
            if saving:
                tokens, low, high = stats.divide(abs(later), part, saving.seconds, saving.part)
                paid = (tokens, tokens / saving.tokens) if saving.is_shown and saving.seconds > 0 else (None, None)
                even = replace(even, tokens=paid[0], requests=paid[1], low=low, high=high)
            break_evens.append(even)
    return tuple(break_evens)


def _measure_start_spread(arms: Sequence[Sequence[Boot]]) -> VariancePart:
    groups: dict[tuple[int, str], list[float]] = {}
    for place, arm in enumerate(arms):
        for boot in arm:
            if seconds := _seconds_to_first_answer(boot):
                groups.setdefault((place, classify_start(boot)), []).append(math.log(seconds))
    df = sum(len(logs) - 1 for logs in groups.values())
    if not df:
        return VariancePart(ASSUMED_STARTS**2, None)
    variance = sum((log - fmean(logs)) ** 2 for logs in groups.values() for log in logs) / df
    return VariancePart(max(variance, CLOSEST_STARTS**2 if df < _ENOUGH_STARTS else 0.0), df)


class _Saving(NamedTuple):
    """The savings of the arm that starts later, in seconds per token, and the tokens per request."""

    seconds: float
    part: VariancePart
    tokens: float
    is_shown: bool


def _measure_saving(
    others: Sequence[Boot], judged: ArmDifference, prompts: Sequence[PromptRatio], *, forward: bool
) -> _Saving | None:
    """Return the savings of the arm that starts later over the boots `others` of the other arm.

    Prompts are weighted by the seconds of their tokens, at the fewest streams. With `forward`, the judged arm starts
    later.
    """
    faster = judged if forward else judged._replace(log=-judged.log)
    ratios = {(request.kind, request.streams): request.ratio.ratio for request in prompts}
    sent = [
        (request, request.tokens / request.decode_tok_s)
        for boot in others
        for request in boot.requests
        if request.decode_tok_s and request.tokens and (request.kind, request.streams) in ratios
    ]
    if not sent:
        return None
    fewest = min(request.streams for request, _ in sent)
    alone = [(request, took) for request, took in sent if request.streams == fewest]
    times = [(took, ratios[request.kind, request.streams] ** (1 if forward else -1)) for request, took in alone]
    tokens = fmean(request.tokens for request, _ in alone)
    a_token = sum(took for took, _ in times) / sum(request.tokens for request, _ in alone)
    whole = sum(took for took, _ in times) / sum(took / ratio for took, ratio in times)
    # The variance from the slower arm's boots counts in full, the rest divided by the squared ratio.
    slower = min(faster.error**2, (faster.cvs[0 if forward else 1] or 0.0) ** 2 / len(others))
    variance = a_token**2 * (slower + (faster.error**2 - slower) / whole**2)
    is_shown = faster.is_shown and faster.log > 0
    return _Saving(a_token * (1 - 1 / whole), VariancePart(variance, faster.df), tokens, is_shown)


def _seconds_to_first_answer(boot: Boot) -> float | None:
    cold = boot.cold_request
    if boot.ready is None or (cold and cold.error):
        return None
    return boot.ready + (cold.total if cold else 0.0)
