"""The sentences of a verdict, the same on the command line, in reports and in the panel."""

from __future__ import annotations

import math
from typing import NamedTuple

from dflash_tui.benchmark.stats import UNSEEN, Ratio
from dflash_tui.common.formatting import format_duration, format_percent, pluralize
from dflash_tui.experiments.analysis.measures import select_measured_boots
from dflash_tui.experiments.analysis.report import BreakEven, Comparison, ExperimentReport, StartComparison, Verdict
from dflash_tui.experiments.design import Design

# Values that say by themselves what they are.
_SELF_EXPLANATORY = {"mode", "profile", "variant", "run"}
_FACTOR_FROM = 1.5
_INTERVALS = "95 % intervals"
_SUGGESTIVE = "suggestive only: one boot per arm does not show how far boots differ, which may be 10 %"


class Detail(NamedTuple):
    """A sentence behind a verdict; `mark` is `✗` where it refuses the verdict, `!` where it qualifies it, or empty."""

    text: str
    mark: str = ""

    def __str__(self) -> str:
        return f"{self.mark} {self.text}" if self.mark else self.text


def label_arm(design: Design, arm: int) -> str:
    """Return what an arm is called: `compile`, `n=8`, `spec=off`."""
    name = design.arms[arm].name
    return name if design.vary in _SELF_EXPLANATORY else f"{design.vary}={name}"


def format_headline(report: ExperimentReport, comparison: Comparison) -> str:
    """Return the verdict on arm b against arm a in one sentence."""
    a, b = label_arm(report.design, comparison.a), label_arm(report.design, comparison.b)
    boots = _count_boots(comparison)
    ratio = comparison.ratio
    if comparison.word is Verdict.REFUSED:
        reasons = dict.fromkeys(each.what for each in comparison.confounds if each.refuses)  # each once
        why = "; ".join(reasons) or "no prompt was measured in both"
        return f"refused: {why}"
    if comparison.word is Verdict.NO_DIFFERENCE or ratio is None:
        least = (
            f"; smallest detectable here about {_format_share(comparison.detectable)}" if comparison.detectable else ""
        )
        if comparison.suggestive:
            least = f"; less than {_format_share(math.expm1(UNSEEN))} is never shown by one boot each"
        return f"no difference shown between {a} and {b} in {comparison.measure}{least}, {boots}"
    much, unit = _format_difference(ratio)
    return f"{b} is {comparison.word.value} than {a}: {much}{unit} in {comparison.measure}, {boots}"


def list_details(report: ExperimentReport, comparison: Comparison, *, labelled: bool = False) -> list[Detail]:
    """Return what stands behind the verdict, a sentence each, what refuses or qualifies it first.

    Where the reader has the label of a synthetic model beside it (`labelled`), its sentence is left out.
    """
    design = report.design
    synthetic = [Detail(f"{design.synthetic}: not a statement about real answers", "!")] if design.synthetic else []
    confounds = [
        Detail(f"{each.what}{f': {each.evidence}' if each.evidence else ''}", "✗" if each.refuses else "!")
        for each in comparison.confounds
        if each.evidence != design.synthetic or each.refuses
    ]
    return [*([] if labelled else synthetic), *confounds, *map(Detail, _explain(report, comparison))]


def _explain(report: ExperimentReport, comparison: Comparison) -> list[str]:
    """Return the figures behind the verdict, a sentence each."""
    design = report.design
    lines = []
    if comparison.suggestive:
        lines.append(_SUGGESTIVE)
    if comparison.cv is None and comparison.ratio:
        lines.append(
            "nothing was repeated: the interval is the spread of such requests on another machine (a GB10, 17 %)"
        )
    figures = {"steps/s": comparison.steps_s, "tok/s": comparison.tok_s, "AL": comparison.al}
    ratios = [f"{name} {_format_interval(ratio)}" for name, ratio in figures.items() if ratio]
    if ratios:
        a, b = label_arm(design, comparison.a), label_arm(design, comparison.b)
        what = "intervals within these boots, which do not hold for the next" if comparison.suggestive else _INTERVALS
        lines.append(f"{b} to {a}, {what}: {', '.join(ratios)}")
    if comparison.cause:
        by = {"both": "more or less of both, steps/s and AL"}.get(comparison.cause, comparison.cause)
        lines.append(f"what makes the difference in tok/s: {by}")
    if comparison.cv is not None:
        again = any(len(select_measured_boots(report.boots, arm)) > 1 for arm in range(len(design.arms)))
        where = "between boots of an arm" if again else "within a boot"
        lines.append(f"variation {where}: {_format_share(comparison.cv)}")
    if comparison.agreement is not None:
        lines.append(f"answers that begin alike at temperature 0: {format_percent(comparison.agreement)}")
    lines += _describe_starts(report, comparison)
    lines += [_describe_break_even(report, comparison, each) for each in comparison.break_even]
    return lines


def describe_sweep(report: ExperimentReport) -> list[str]:
    """Return what a sweep comes to, a sentence each; nothing when it is none."""
    sweep = report.sweep
    if sweep is None or sweep.best is None:
        return []
    names = {point.arm: label_arm(report.design, point.arm) for point in sweep.points}
    speeds = {point.arm: point.tok_s for point in sweep.points}
    lines = [f"fastest measured: {names[sweep.best]} with {speeds[sweep.best]:.1f} tok/s"]
    rest = [names[arm] for arm in sweep.plateau if arm != sweep.best]
    if rest:
        lines[0] += f"; not shown to be slower: {', '.join(rest)}"
    if sweep.open:
        lines.append(f"undecided, more boots would tell: {', '.join(names[arm] for arm in sweep.open)}")
    worse = [names[point.arm] for point in sweep.points if not point.like_best]
    if worse:
        lines.append(f"slower: {', '.join(worse)}")
    if sweep.recommended is None:
        lines.append("no recommendation: a comparison was refused")
    elif sweep.to_best:
        lines.append(
            f"recommended: {names[sweep.recommended]}, the smallest of them; "
            f"{names[sweep.best]} is {_format_interval(sweep.to_best)} times as fast"
        )
    else:
        lines.append(f"recommended: {names[sweep.recommended]}")
    if not report.design.honest:
        lines.append(_SUGGESTIVE)
    return lines


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
    """Return a ratio with as many digits as tell something."""
    return f"{value:.3g}" if value >= 10 else f"{value:.2f}"


def _format_share(share: float | None) -> str:
    if share is not None and share > 2:
        return f"a factor of {format_factor(1 + share)}"
    return format_percent(share, 0 if share is not None and share >= 0.1 else 1)


def _describe_starts(report: ExperimentReport, comparison: Comparison) -> list[str]:
    a, b = label_arm(report.design, comparison.a), label_arm(report.design, comparison.b)
    start: StartComparison = comparison.start
    return [
        f"{what}: {a} {format_duration(ours)}, {b} {format_duration(theirs)}"
        for what, (ours, theirs) in (
            ("first answer after a cold start", start.cold),
            (f"first answer after {_name_cached_start(comparison)}", start.cached),
            ("first request", start.first_request),
        )
        if ours is not None or theirs is not None
    ]


def _name_cached_start(comparison: Comparison) -> str:
    """Return what a start is called that is not cold: where none is, there may be no cache."""
    return "a start" if comparison.start.cold == (None, None) else "a cached start"


def _describe_break_even(report: ExperimentReport, comparison: Comparison, even: BreakEven) -> str:
    name, start = label_arm(report.design, even.by), "a cold start" if even.cold else _name_cached_start(comparison)
    once = " (seen once each, and starts differ)" if even.starts == (1, 1) else ""
    behind = f"{name} is {format_duration(even.seconds)} behind after {start}{once}"
    if even.tokens is not None and even.requests is not None:
        bounds = f"{_token_count(even.low)} to {_token_count(even.high)}"
        return (
            f"{behind} and pays back after {_token_count(even.tokens)} tokens ({bounds}), {even.requests:.0f} requests"
        )
    if even.low is None:
        return f"{behind} and never pays back"
    return f"{behind} and is not shown to pay back: never, or not before {_token_count(even.low)} tokens"


def _token_count(count: float | None) -> str:
    return "without end" if count is None else f"{float(f'{count:.2g}'):,.0f}"
