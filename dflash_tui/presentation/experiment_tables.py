"""An A/B as tables, bars and ranges of text; the same in reports and on the screens.

Names come from files that anybody may have written: here they lose their control characters, and no more.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dflash_tui.benchmark.stats import Ratio
from dflash_tui.common.formatting import UNKNOWN, format_duration, format_number, pluralize, truncate_middle
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.experiments.analysis import arm_summary
from dflash_tui.experiments.analysis.arm_summary import ArmSummary, MedianFigure
from dflash_tui.experiments.analysis.report import Comparison, ExperimentReport, PromptRatio
from dflash_tui.experiments.design import Boot, Design
from dflash_tui.presentation import verdict_text

MARKS = "●◆▲■▼★"  # one per arm, so that colour is never alone
_LEAST_SCALE = math.log(1.05)
_MOST_SCALE = math.log(1000)
_NAME = 24


def list_other_details(report: ExperimentReport, one: Comparison) -> list[str]:
    """Return what stands behind a verdict, less what the label says already."""
    synthetic = f"! {report.design.synthetic}:" if report.design.synthetic else "\n"
    return [line for line in verdict_text.list_details(report, one) if not line.startswith(synthetic)]


class Bar(NamedTuple):
    """A row of the start-up bars: what it is, the arm, and seconds."""

    what: str
    arm: int
    seconds: float


def arm_letter(arm: int) -> str:
    """Return the letter of an arm, `A` for the first."""
    return chr(ord("A") + arm % 26)


def arm_mark(arm: int) -> str:
    """Return the mark of an arm."""
    return MARKS[arm % len(MARKS)]


def name_arm(design: Design, arm: int, width: int = _NAME) -> str:
    """Return letter and name of an arm, the name cut in the middle."""
    return f"{arm_letter(arm)} {truncate_middle(clean_line(verdict_text.label_arm(design, arm)), width)}"


def describe_variation(design: Design) -> str:
    """Return what is varied, as `mode: eager against compile`."""
    names = [truncate_middle(clean_line(arm.name), _NAME) for arm in design.arms]
    joined = " against ".join(names) if len(names) == 2 else ", ".join(names)
    return f"{clean_line(design.vary)}: {joined}"


def describe_certainty(design: Design) -> str:
    """Return how sure an experiment can be: `honest, 4 boots`, `quick, 2 boots`, or `measured apart, 2 boots`."""
    if not design.suite:
        return f"measured apart, {pluralize(len(design.order), 'boot')}"
    return f"{'honest' if design.honest else 'quick'}, {pluralize(len(design.order), 'boot')}"


def format_boot_order(design: Design) -> str:
    """Return the order of the boots, as `A B B A`."""
    return " ".join(arm_letter(arm) for arm in design.order)


def synthetic_label(design: Design) -> str:
    """Return why the figures are not those of a real model, or nothing."""
    return f"not a real model's figures: {clean_line(design.synthetic)}" if design.synthetic else ""


ARMS_HEADER = ("arm", "boots", "steps/s", "tok/s", "AL", "TTFT", "ready cold", "ready cached", "first request")


def tabulate_arms(report: ExperimentReport) -> list[tuple[str, ...]]:
    """Return a row per arm: medians of its boots, with least and greatest where there are several."""
    found = [
        (name_arm(report.design, arm), arm_summary.summarize_arm(report.boots, arm))
        for arm in range(len(report.design.arms))
    ]
    return [(title, *_cells(summed)) for title, summed in found]


def _cells(arm: ArmSummary) -> list[str]:
    boots = f"{arm.boots} of {arm.boots + arm.failed}" if arm.failed else str(arm.boots)
    return [
        boots,
        format_figure(arm.steps_s),
        format_figure(arm.tok_s),
        format_figure(arm.al, 2),
        format_figure(arm.ttft, 2, " s"),
        format_times(arm.cold),
        format_times(arm.cached),
        format_figure(arm.first, 1, " s"),
    ]


def format_figure(figure: MedianFigure | None, digits: int = 1, unit: str = "") -> str:
    """Return `35.9 (34.1 to 36.6, n=4)`, or a dash."""
    if figure is None:
        return UNKNOWN
    middle, low, high = (format_number(value, digits) for value in (figure.median, figure.low, figure.high))
    return f"{middle}{unit} (n=1)" if figure.n == 1 else f"{middle}{unit} ({low} to {high}, n={figure.n})"


def format_times(figure: MedianFigure | None) -> str:
    """Return `9:31 (9:20 to 9:40, n=2)`, or a dash."""
    if figure is None:
        return UNKNOWN
    middle, low, high = (format_duration(value) for value in (figure.median, figure.low, figure.high))
    return f"{middle} (n=1)" if figure.n == 1 else f"{middle} ({low} to {high}, n={figure.n})"


def format_ratio(value: Ratio | None) -> str:
    """Return `1.85 (1.79 to 1.92)`, or a dash."""
    if value is None:
        return UNKNOWN
    return f"{format_factor(value.ratio)} ({format_factor(value.low)} to {format_factor(value.high)})"


def format_factor(value: float) -> str:
    """Return a ratio with as many digits as tell something."""
    return f"{value:.3g}" if value >= 10 else f"{value:.2f}"


def tabulate_prompts(report: ExperimentReport, one: Comparison) -> list[tuple[str, ...]]:
    """Return a row per prompt: both medians in the judged measure, their ratio with its interval, requests."""
    rows = [
        (
            name_prompt(row),
            format_number(row.a),
            format_number(row.b),
            format_ratio(row.ratio),
            str(row.n),
        )
        for row in one.prompts
    ]
    return [*rows, ("all", *_both(report, one), format_ratio(one.ratio), str(sum(row.n for row in one.prompts)))]


def _both(report: ExperimentReport, one: Comparison) -> tuple[str, str]:
    found = (arm_summary.summarize_arm(report.boots, one.a), arm_summary.summarize_arm(report.boots, one.b))
    figures = [arm.steps_s if one.measure == "steps/s" else arm.tok_s for arm in found]
    low, high = (format_number(figure.median if figure else None) for figure in figures)
    return low, high


def name_prompt(row: PromptRatio) -> str:
    """Return the name of a prompt, with how many were under way at a time where that is not one."""
    streams = f" ×{row.streams}" if row.streams != 1 else ""
    return truncate_middle(clean_line(row.kind), _NAME) + streams


def axis_scale(ratios: Iterable[Ratio]) -> float:
    """Return the greatest distance from 1 among the ends of the intervals, as a logarithm: how far an axis goes."""
    ends = [abs(math.log(end)) for one in ratios for end in (one.low, one.ratio, one.high) if 0 < end < math.inf]
    return min(_MOST_SCALE, max([*ends, _LEAST_SCALE]) * 1.05)


def draw_interval(value: Ratio, most: float, width: int) -> str:
    """Return an interval drawn on an axis of `width` cells, from 1/e^most to e^most, with `│` at 1 where it is free."""
    low, middle, high = (_cell(end, most, width) for end in (value.low, value.ratio, value.high))
    cells = [" "] * width
    cells[_cell(1.0, most, width)] = "│"
    for cell in range(low, high + 1):
        cells[cell] = "━" if cells[cell] == " " else "┿"
    cells[middle] = "◆"
    return "".join(cells)


def _cell(value: float, most: float, width: int) -> int:
    place = math.log(value) if 0 < value < math.inf else most if value > 0 else -most
    return round((max(-most, min(place, most)) + most) / (2 * most) * (width - 1))


def draw_axis(most: float, width: int) -> str:
    """Return the labels under an axis of ratios: both ends and 1."""
    left, right = f"{math.exp(-most):.2g}", f"{math.exp(most):.2g}"
    centre = _cell(1.0, most, width)
    line = left.ljust(centre) + "1"
    return line.ljust(width - len(right)) + right


def list_start_bars(boots: Sequence[Boot], arms_shown: Sequence[int]) -> list[Bar]:
    """Return the medians of cold and cached starts and of first requests, arm by arm, what is unknown left out."""
    found = [(arm, arm_summary.summarize_arm(boots, arm)) for arm in arms_shown]
    rows = []
    for what, field in (
        ("cold start", "cold"),
        ("cached start", "cached"),
        ("first request", "first"),
    ):
        for arm, figures in found:
            if figure := getattr(figures, field):
                rows.append(Bar(what, arm, figure.median))
    return rows


def count_requests(boots: Iterable[Boot]) -> int:
    """Return how many requests were measured."""
    return sum(len(boot.requests) for boot in boots)


def total_seconds(boots: Sequence[Boot]) -> str:
    """Return how long the boots took together."""
    known = [boot.took for boot in boots if boot.took is not None]
    return format_duration(sum(known)) if known else UNKNOWN


def format_clocks(boots: Iterable[Boot]) -> str:
    """Return the GPU clocks that were seen before and after the boots, their median and ends; or a dash."""
    seen = [at.clock_mhz for boot in boots for at in (boot.before, boot.after) if at and at.clock_mhz is not None]
    return f"{statistics.median(seen):.0f} MHz ({min(seen)} to {max(seen)}, n={len(seen)})" if seen else UNKNOWN
