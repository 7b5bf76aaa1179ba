"""The rows of an experiment's tables, bars and intervals: values with their text, which each renderer lays out.

Names come from files that anybody may have written: here they lose their control characters, and no more.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dflash_tui.benchmark.stats import Ratio
from dflash_tui.common.formatting import (
    UNKNOWN,
    format_duration,
    format_gib,
    format_number,
    format_usage,
    pluralize,
    truncate_middle,
)
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.events import RequestDone
from dflash_tui.experiments.analysis.arm_summary import MedianFigure, summarize_arm
from dflash_tui.experiments.analysis.report import Comparison, ExperimentReport, PromptRatio
from dflash_tui.experiments.design import Boot, Conditions, Design
from dflash_tui.presentation.verdict_text import format_factor, label_arm

MARKS = "●◆▲■▼★"  # one per arm, so that colour is never alone
_LEAST_SCALE = math.log(1.05)
_MOST_SCALE = math.log(1000)
_NAME = 24


def arm_letter(arm: int) -> str:
    """Return the letter of an arm, `A` for the first."""
    return chr(ord("A") + arm % 26)


def arm_mark(arm: int) -> str:
    """Return the mark of an arm."""
    return MARKS[arm % len(MARKS)]


def name_arm(design: Design, arm: int, width: int = _NAME) -> str:
    """Return letter and name of an arm, the name cut in the middle."""
    return f"{arm_letter(arm)} {truncate_middle(clean_line(label_arm(design, arm)), width)}"


def describe_variation(design: Design) -> str:
    """Return what is varied, as `mode: eager against compile`."""
    names = [truncate_middle(clean_line(arm.name), _NAME) for arm in design.arms]
    joined = " against ".join(names) if len(names) == 2 else ", ".join(names)
    return f"{clean_line(design.vary)}: {joined}"


def describe_certainty(design: Design) -> str:
    """Return how sure an experiment can be: `honest, 4 boots`, `quick, 2 boots`, or `measured apart, 2 boots`."""
    kind = "measured apart" if not design.suite else "honest" if design.honest else "quick"
    return f"{kind}, {pluralize(len(design.order), 'boot')}"


def format_boot_order(design: Design) -> str:
    """Return the order of the boots, as `A B B A`."""
    return " ".join(arm_letter(arm) for arm in design.order)


def synthetic_label(design: Design) -> str:
    """Return why the figures are not those of a real model, or nothing."""
    return f"not a real model's figures: {clean_line(design.synthetic)}" if design.synthetic else ""


class FigureCell(NamedTuple):
    """A figure of an arm: the median of its boots and their range, None where nothing was measured."""

    figure: MedianFigure | None
    digits: int = 1
    is_seconds: bool = False
    is_start: bool = False  # of minutes, so that a range is told to the second

    def with_range(self) -> str:
        """Return `35.9 (34.1 to 36.6, n=4)`, or a dash."""
        if (figure := self.figure) is None:
            return UNKNOWN
        middle, low, high = (
            format_duration(value) if self.is_start else format_number(value, self.digits) for value in figure[:3]
        )
        unit = " s" if self.is_seconds and not self.is_start else ""
        return f"{middle}{unit} ({f'{low} to {high}, ' if figure.n > 1 else ''}n={figure.n})"

    def with_spread(self, *, spread: bool = True) -> str:
        """Return `35.9 ±3%`, the half of the range as a share of the median, or without it `35.9`; or a dash."""
        if (figure := self.figure) is None:
            return UNKNOWN
        median = figure.median
        text = format_seconds(median, self.digits) if self.is_seconds else f"{median:.{self.digits}f}"
        share = (figure.high - figure.low) / 2 / median * 100 if median else 0.0
        return text + (f" ±{share:.{0 if share >= 1 else 1}f}%" if spread and figure.n > 1 else "")


class ArmRow(NamedTuple):
    """An arm: how many of its boots measured something and how many failed, and its figures by `FIGURES`."""

    arm: int
    boots: int
    failed: int
    figures: tuple[FigureCell, ...]


FIGURES = ("steps/s", "tok/s", "AL", "TTFT", "ready cold", "ready cached", "first request")
TTFT = FIGURES.index("TTFT")


def list_arm_rows(design: Design, boots: Sequence[Boot]) -> list[ArmRow]:
    """Return a row per arm: medians of its boots."""
    rows = []
    for arm in range(len(design.arms)):
        of = summarize_arm(boots, arm)
        starts = [FigureCell(figure, is_seconds=True, is_start=True) for figure in (of.cold, of.cached)]
        ttft, first = FigureCell(of.ttft, 2, is_seconds=True), FigureCell(of.first, is_seconds=True)
        figures = (FigureCell(of.steps_s), FigureCell(of.tok_s), FigureCell(of.al, 2), ttft, *starts, first)
        rows.append(ArmRow(arm, of.boots, of.failed, figures))
    return rows


class BootRow(NamedTuple):
    """A boot as cells: when it served and answered, what it measured, and how the machine was before and after."""

    number: str
    cache: str
    up: str
    ready: str
    took: str
    first_speed: str
    speed: str
    requests: str
    before: str
    after: str
    remark: str


def list_boot_rows(boots: Sequence[Boot]) -> list[BootRow]:
    """Return a row per boot."""
    return [
        BootRow(
            number=str(boot.number + 1),
            cache=boot.cache or UNKNOWN,
            up=format_duration(boot.up),
            ready=format_duration(boot.ready),
            took=format_duration(boot.took),
            first_speed=format_number(boot.cold_request.decode_tok_s if boot.cold_request else None, 1, "tok/s"),
            speed=format_number(median_speed(boot)),
            requests=str(len(boot.requests)),
            before=format_conditions(boot.before),
            after=format_conditions(boot.after),
            remark=", ".join(filter(None, (f"attempt {boot.attempt}" if boot.attempt > 1 else "", boot.error))),
        )
        for boot in boots
    ]


def median_speed(boot: Boot) -> float | None:
    """Return the median tok/s of a boot's measured requests, or None without any."""
    known = [one.decode_tok_s for one in boot.requests if not one.error and one.decode_tok_s is not None]
    return statistics.median(known) if known else None


def format_conditions(at: Conditions | None) -> str:
    """Return how the machine was, as far as somebody said."""
    if at is None:
        return UNKNOWN
    parts = [
        at.power,
        format_number(at.clock_mhz, 0, "MHz") if at.clock_mhz is not None else "",
        format_number(at.temperature_c, 0, "°C") if at.temperature_c is not None else "",
        format_usage(at.power_w, at.power_limit_w, "W") if at.power_w is not None else "",
        f"throttled: {', '.join(at.throttle)}" if at.throttle else "",
        f"foreign: {', '.join(at.foreign)}" if at.foreign else "",
        f"load {at.load:.1f}" if at.load is not None else "",
        f"{format_gib(at.available)} free" if at.available is not None else "",
    ]
    return ", ".join(part for part in parts if part) or UNKNOWN


class PromptRow(NamedTuple):
    """A prompt, or the sum of all: the figures of both arms in the judged measure, their ratio, and requests."""

    name: str
    a: float | None
    b: float | None
    ratio: Ratio | None
    n: int
    is_total: bool = False

    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        return self.name, format_number(self.a), format_number(self.b), format_ratio(self.ratio), str(self.n)


def list_prompt_rows(report: ExperimentReport, one: Comparison) -> list[PromptRow]:
    """Return a row per prompt, and one of all."""
    rows = [PromptRow(_name_prompt(row), row.a, row.b, row.ratio, row.n) for row in one.prompts]
    arms = [summarize_arm(report.boots, arm) for arm in (one.a, one.b)]
    figures = [arm.steps_s if one.measure == "steps/s" else arm.tok_s for arm in arms]
    a, b = (figure.median if figure else None for figure in figures)
    return [*rows, PromptRow("all", a, b, one.ratio, sum(row.n for row in rows), is_total=True)]


def _name_prompt(row: PromptRatio) -> str:
    streams = f" ×{row.streams}" if row.streams != 1 else ""
    return truncate_middle(clean_line(row.kind), _NAME) + streams


class StartRow(NamedTuple):
    """A bar of the start-up: what it is, the arm, its seconds, and their share of the longest bar's."""

    what: str
    arm: int
    seconds: float
    share: float


def list_start_rows(boots: Sequence[Boot], arms: Sequence[int]) -> list[StartRow]:
    """Return the medians of cold and cached starts and of first requests, arm by arm, what is unknown left out."""
    of = [(arm, summarize_arm(boots, arm)) for arm in arms]
    bars = [("cold start", arm, each.cold) for arm, each in of]
    bars += [("cached start", arm, each.cached) for arm, each in of]
    bars += [("first request", arm, each.first) for arm, each in of]
    longest = max((figure.median for _, _, figure in bars if figure), default=0.0) or 1.0
    return [StartRow(what, arm, figure.median, figure.median / longest) for what, arm, figure in bars if figure]


REQUEST_FIGURES = ("TTFT s", "tok/s", "steps/s", "AL")


def request_cells(done: RequestDone) -> tuple[str, ...]:
    """Return the figures of a request by `REQUEST_FIGURES`."""
    figures = ((done.ttft, 3), (done.decode_tok_s, 1), (done.steps_s, 2), (done.acceptance_length, 2))
    return tuple(format_number(value, digits) for value, digits in figures)


def format_seconds(seconds: float, digits: int = 1) -> str:
    """Return seconds with that many digits, from a minute on as a duration."""
    return f"{seconds:.{digits}f} s" if seconds < 60 else format_duration(seconds)


def format_ratio(value: Ratio | None) -> str:
    """Return `1.85 (1.79 to 1.92)`, or a dash."""
    if value is None:
        return UNKNOWN
    return f"{format_factor(value.ratio)} ({format_factor(value.low)} to {format_factor(value.high)})"


def axis_scale(ratios: Iterable[Ratio]) -> float:
    """Return the greatest distance from 1 among the ends of the intervals, as a logarithm: how far an axis goes."""
    ends = [abs(math.log(end)) for one in ratios for end in (one.low, one.ratio, one.high) if 0 < end < math.inf]
    return min(_MOST_SCALE, max([*ends, _LEAST_SCALE]) * 1.05)


class IntervalCells(NamedTuple):
    """The cells of an axis at which an interval begins, has its estimate and ends, and that of 1."""

    low: int
    middle: int
    high: int
    one: int


def place_interval(value: Ratio, most: float, width: int) -> IntervalCells:
    """Return the cells of an interval on an axis of `width` cells, from 1/e^most to e^most."""
    return IntervalCells(*(_cell(end, most, width) for end in (value.low, value.ratio, value.high, 1.0)))


def draw_interval(value: Ratio, most: float, width: int) -> str:
    """Return an interval drawn on an axis of `width` cells, with `│` at 1 where it is free."""
    low, middle, high, one = place_interval(value, most, width)
    cells = [" "] * width
    cells[low : high + 1] = "━" * (high + 1 - low)
    cells[one] = "┿" if low <= one <= high else "│"
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
