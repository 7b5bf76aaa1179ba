"""The sentences of a verdict, the same on the command line, in reports and in the panel."""

from __future__ import annotations

import math
from statistics import fmean
from typing import NamedTuple

import msgspec

from dflash_tui.benchmark.boot_spread import CLOSEST, CLOSEST_OF_TWO, LINE_FROM
from dflash_tui.benchmark.stats import LEVEL, UNSEEN, Ratio
from dflash_tui.common.formatting import format_duration, format_percent, pluralize, truncate_middle
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.experiments.analysis.measures import START, select_measured_boots
from dflash_tui.experiments.analysis.report import (
    Comparison,
    ExperimentReport,
    FurtherVerdict,
    OutputVerdict,
    PromptRatio,
    Sweep,
    Verdict,
)
from dflash_tui.experiments.design import Design
from dflash_tui.presentation import output_text, start_text

# Values that say by themselves what they are.
_SELF_EXPLANATORY = {"mode", "profile", "variant", "run", "setup"}
_FACTOR_FROM = 1.5
_MOST_T = 1000
# How far one prompt has to move the ratio of all, as a logarithm, to be named: less is chance.
_LEAST_TURN = math.log(1.1)
_NAME = 24
_SUGGESTIVE = "suggestive only: an arm has one boot, which does not show how far boots differ (up to 10 %)"


class Detail(NamedTuple):
    """A sentence behind a verdict; `mark` is `✗` where it refuses the verdict, `!` where it qualifies it, or empty."""

    text: str
    mark: str = ""

    def __str__(self) -> str:
        return f"{self.mark} {self.text}" if self.mark else self.text


def label_arm(design: Design, arm: int) -> str:
    """Return what an arm is called: `compile`, `n=8`, `spec=off`."""
    name = design.arms[arm].name
    return name if design.tuning or design.vary in _SELF_EXPLANATORY else f"{design.vary}={name}"


def name_prompt(prompt: PromptRatio) -> str:
    """Return what a prompt is called, with how many were under way at a time where that is not one."""
    streams = f" ×{prompt.streams}" if prompt.streams != 1 else ""
    return truncate_middle(clean_line(prompt.kind), _NAME) + streams


def format_headline(report: ExperimentReport, comparison: Comparison) -> str:
    """Return the verdict on arm b against arm a in one sentence."""
    a, b = label_arm(report.design, comparison.a), label_arm(report.design, comparison.b)
    boots = _count_boots(comparison)
    ratio = comparison.ratio
    if comparison.word is Verdict.REFUSED:
        reasons = dict.fromkeys(confound.what for confound in comparison.confounds if confound.refuses)  # each once
        why = "; ".join(reasons) or "no prompt was measured in both"
        return f"refused: {why}"
    if comparison.measure == START:
        return _format_start_headline(report, comparison, boots)
    if comparison.word is Verdict.NO_DIFFERENCE or ratio is None:
        least = (
            f"; smallest detectable here about {_format_share(comparison.detectable)}" if comparison.detectable else ""
        )
        if comparison.suggestive:
            least = f"; with one boot nothing below {_format_share(math.expm1(UNSEEN))} counts"
        return f"no difference shown between {a} and {b} in {comparison.measure}{least}, {boots}"
    much, unit = _format_difference(ratio)
    return f"{b} is {comparison.word.value} than {a}: {much}{unit} in {comparison.measure}, {boots}"


def _format_start_headline(report: ExperimentReport, comparison: Comparison, boots: str) -> str:
    """Return which arm is ready sooner: by how many seconds, and the ratio of the seconds with its interval."""
    a, b = label_arm(report.design, comparison.a), label_arm(report.design, comparison.b)
    kind = "cold starts" if report.design.cold else "starts with filled caches"
    ours, theirs = (
        [figure.value for figure in comparison.figures if figure.arm == arm] for arm in (comparison.a, comparison.b)
    )
    if comparison.word is Verdict.NO_DIFFERENCE or comparison.ratio is None or not (ours and theirs):
        least = f"; smallest detectable about {_format_share(comparison.detectable)}" if comparison.detectable else ""
        return f"no difference shown between {a} and {b} in the {START} of {kind}{least}, {boots}"
    word = "sooner" if comparison.word is Verdict.FASTER else "later"
    seconds = f"{format_duration(fmean(ours))} → {format_duration(fmean(theirs))}"
    interval = _format_interval(comparison.ratio.inverse)
    return f"{b} is ready {word} than {a}: {seconds}, {interval} times the seconds of {kind}, {boots}"


def list_details(
    report: ExperimentReport, comparison: Comparison, *, labelled: bool = False, short: bool = False
) -> list[Detail]:
    """Return what stands behind the verdict, a sentence each, what refuses or qualifies it first.

    Args:
        report: the experiment.
        comparison: two of its arms.
        labelled: whether the reader has the label of a synthetic model beside it, whose sentence is then left out.
        short: whether to leave out the further verdicts, which the report has.
    """
    comparison = msgspec.structs.replace(comparison, further=()) if short else comparison
    design = report.design
    synthetic = [Detail(f"{design.synthetic}: not a statement about real answers", "!")] if design.synthetic else []
    confounds = [
        Detail(
            f"{confound.what}{f': {confound.evidence}' if confound.evidence else ''}", "✗" if confound.refuses else "!"
        )
        for confound in comparison.confounds
        if confound.evidence != design.synthetic or confound.refuses
    ]
    outputs = _list_output_details(report, comparison)
    return [*([] if labelled else synthetic), *confounds, *outputs, *map(Detail, _explain(report, comparison))]


def _list_output_details(report: ExperimentReport, comparison: Comparison) -> list[Detail]:
    """Return whether the arms answer alike, and by what figures; nothing where nobody compared their answers."""
    if (outputs := comparison.outputs) is None:
        return []
    a, b = label_arm(report.design, comparison.a), label_arm(report.design, comparison.b)
    mark = "!" if outputs.verdict is OutputVerdict.DIFFERENT else ""
    head = Detail(output_text.format_output_headline(outputs), mark)
    return [head, *map(Detail, output_text.list_output_details(outputs, a, b))]


def _explain(report: ExperimentReport, comparison: Comparison) -> list[str]:
    """Return the figures behind the verdict, a sentence each."""
    a, b = label_arm(report.design, comparison.a), label_arm(report.design, comparison.b)
    lines = [_SUGGESTIVE] if comparison.suggestive else []
    if comparison.cv is None and comparison.ratio:
        lines.append("no request was repeated: the interval is what such requests differed by on a GB10 (17 %)")
    figures = {"steps/s": comparison.steps_s, "tok/s": comparison.tok_s, "AL": comparison.al}
    ratios = [f"{name} {_format_interval(ratio)}" for name, ratio in figures.items() if ratio]
    if ratios:
        level = _format_level(comparison)
        what = f"{level} intervals within these boots only" if comparison.suggestive else f"{level} intervals"
        by = {"both": "both steps/s and acceptance length (AL)", "AL": "the acceptance length (AL)"}
        cause = f"; the difference is in {by.get(comparison.cause, comparison.cause)}" if comparison.cause else ""
        lines.append(f"ratio of {b} to {a}, {what}: {', '.join(ratios)}{cause}")
    lines += _describe_deciding_prompt(comparison, b, a)
    lines += _describe_further(comparison, b, a)
    lines += _describe_test(report.design, comparison)
    lines += _describe_variation(report, comparison, a, b)
    if comparison.agreement is not None:
        lines.append(
            f"greedy answers with the same first 40 characters in both arms: {format_percent(comparison.agreement)}"
        )
    lines += start_text.describe_starts(comparison, a, b)
    return lines + [
        start_text.describe_break_even(comparison, break_even, a, b) for break_even in comparison.break_even
    ]


def _describe_deciding_prompt(comparison: Comparison, b: str, a: str) -> list[str]:
    """Return which prompt alone makes the one arm faster or slower than the other, where one does."""
    logs = [math.log(prompt.ratio.ratio) for prompt in comparison.prompts]
    if len(logs) < 2:
        return []
    whole = fmean(logs)
    others = [(sum(logs) - log) / (len(logs) - 1) for log in logs]
    turned = [place for place, mean in enumerate(others) if mean * whole < 0 and abs(mean - whole) > _LEAST_TURN]
    if not turned:
        return []
    place = max(turned, key=lambda place: abs(others[place] - whole))
    name, ratio = name_prompt(comparison.prompts[place]), format_factor(comparison.prompts[place].ratio.ratio)
    return [
        f"one prompt makes the difference: {b} to {a} in {comparison.measure} is {ratio} with {name}, and "
        f"{format_factor(math.exp(others[place]))} with the others together"
    ]


def _describe_further(comparison: Comparison, b: str, a: str) -> list[str]:
    """Return what is said of TTFT, end-to-end time and output, a line for each number of streams."""
    streams_measured = dict.fromkeys(verdict.streams for verdict in comparison.further)
    levels = {
        streams: [verdict for verdict in comparison.further if verdict.streams == streams]
        for streams in streams_measured
    }
    return [
        f"ratio of {b} to {a}{f', {streams} at a time' if len(levels) > 1 else ''}, {100 * verdicts[0].level:.3g} % "
        f"intervals, so that all of these hold together at 95 %: {', '.join(map(_format_further, verdicts))}"
        for streams, verdicts in levels.items()
    ]


def _format_further(verdict: FurtherVerdict) -> str:
    words = {Verdict.FASTER: " (better)", Verdict.SLOWER: " (worse)"}
    return f"{verdict.measure} {_format_interval(verdict.ratio)}{words.get(verdict.word, '')}"


def _format_level(comparison: Comparison) -> str:
    level = comparison.test.level if comparison.test else LEVEL
    return f"{100 * level:.3g} %"


def _describe_test(design: Design, comparison: Comparison) -> list[str]:
    """Return the rule that decides and the figures that it was decided by; nothing in reports of before."""
    if (test := comparison.test) is None:
        return []
    over = "t test over prompts, within one boot each" if comparison.boots == (1, 1) else "Welch's t test of boot means"
    if len(design.arms) > 2 and comparison.boots != (1, 1):
        over += ", each arm with no less than the spread of all arms together"
    t = f"|t| = {abs(test.t):.3g}" if abs(test.t) < _MOST_T else f"|t| over {_MOST_T}"
    df = "the normal distribution" if test.df is None else f"df {test.df:.3g}"
    least = f" if {_format_share(test.least)} or more" if comparison.suggestive else ""
    lines = [f"{over}: {t}, significant above {test.critical:.3g}{least} ({df})"]
    level, pairs = _format_level(comparison), test.comparisons // design.looks
    if pairs > 1:
        lines.append(f"{pairs} comparisons of two arms, each at {level}, so that all of them hold together at 95 %")
    if design.looks > 1:
        more = pluralize(design.looks - 1, "time")
        lines.append(f"boots were added {more} after a report: each interval is at {level} for that")
    if test.drift is not None:
        lines.append(f"drift over the boots, taken out of both arms: {100 * test.drift:+.1f} % from first to last")
    return lines


def _describe_variation(report: ExperimentReport, comparison: Comparison, a: str, b: str) -> list[str]:
    """Return the coefficients of variation, arm by arm where they are known so."""
    if comparison.cv is None:
        return []
    shares = [f"{name} {_format_share(cv)}" for name, cv in zip((a, b), comparison.cvs, strict=True) if cv is not None]
    arms = range(len(report.design.arms))
    between = any(len(select_measured_boots(report.boots, arm)) > 1 for arm in arms)
    if shares:
        where = "between boots" if between else "within a boot"
    else:
        where = "between boots of the other arms" if between else "of single requests"
    least = CLOSEST_OF_TWO if min(comparison.boots) < LINE_FROM else CLOSEST
    low = between and any(cv is not None and cv < least for cv in comparison.cvs)
    believed = f" (counted as at least {_format_share(least)})" if low else ""
    return [f"CV {where}: {', '.join(shares) or _format_share(comparison.cv)}{believed}"]


def describe_sweep(report: ExperimentReport) -> list[str]:
    """Return what a sweep comes to, a sentence each; nothing when it is none."""
    sweep = report.sweep
    if sweep is None or sweep.best is None:
        return []
    names = {point.arm: label_arm(report.design, point.arm) for point in sweep.points}
    speeds = {point.arm: point.tok_s for point in sweep.points}
    fastest = f"fastest measured: {names[sweep.best]} with {speeds[sweep.best]:.1f} tok/s"
    plateau_names = [names[arm] for arm in sweep.plateau if arm != sweep.best]
    if plateau_names:
        fastest += f"; not shown to be slower: {', '.join(plateau_names)}"
    lines = [_recommend(sweep, names), fastest]
    if sweep.open:
        lines.append(f"estimated slower, but not shown to be: {', '.join(names[arm] for arm in sweep.open)}")
    worse = [names[point.arm] for point in sweep.points if not point.like_best]
    if worse:
        lines.append(f"slower: {', '.join(worse)}")
    if not report.design.honest:
        lines.append(_SUGGESTIVE)
    return lines


def _recommend(sweep: Sweep, names: dict[int, str]) -> str:
    if sweep.recommended is None:
        return "no recommendation: a comparison was refused"
    line = f"recommended: {names[sweep.recommended]}"
    if sweep.to_best is None or sweep.best is None:
        return line
    ratio = _format_interval(sweep.to_best)
    return f"{line}, the smallest that is not shown to be slower; {names[sweep.best]} is {ratio} times as fast"


def _count_boots(comparison: Comparison) -> str:
    a, b = comparison.boots
    count = f"{pluralize(a, 'boot')} each" if a == b else f"{a} and {pluralize(b, 'boot')}"
    return f"{count} (suggestive)" if comparison.suggestive else count


def _format_difference(ratio: Ratio) -> tuple[str, str]:
    """Return how much more or less it is and the unit: times when that is far, else percent."""
    if ratio.ratio > _FACTOR_FROM:
        return f"{format_factor(ratio.ratio)}x ({format_factor(ratio.low)}–{format_factor(ratio.high)})", ""
    values = [(value - 1) * 100 for value in (ratio.ratio, ratio.low, ratio.high)]
    return "{:+.1f} % ({:+.1f} to {:+.1f})".format(*values), ""


def _format_interval(ratio: Ratio) -> str:
    return f"{format_factor(ratio.ratio)} ({format_factor(ratio.low)}–{format_factor(ratio.high)})"


def format_factor(value: float) -> str:
    """Return a ratio with as many digits as tell something; beyond a thousand either way none do."""
    if not 0.001 <= value < 1000:
        return ">1000" if value > 1 else "<0.001"
    if value < 0.01:
        return f"{value:.3f}"
    return f"{value:.3g}" if value >= 10 else f"{value:.2f}"


def _format_share(share: float | None) -> str:
    if share is not None and share > 2:
        return f"a factor of {format_factor(1 + share)}"
    return format_percent(share, 0 if share is not None and share >= 0.1 else 1)
