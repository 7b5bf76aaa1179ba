"""The rows of an experiment's tables and bars: values with their text, which each renderer lays out.

Names come from files that anybody may have written: here they lose their control characters, and no more.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dflash_tui.benchmark import latency
from dflash_tui.benchmark.stats import LEVEL, Ratio
from dflash_tui.common.formatting import (
    UNKNOWN,
    format_duration,
    format_gib,
    format_number,
    format_usage,
    pluralize,
    shorten_names,
    truncate_middle,
)
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.events import RequestDone
from dflash_tui.experiments.analysis.arm_summary import MedianFigure, is_uncached, summarize_arm
from dflash_tui.experiments.analysis.measures import START, select_measured_boots
from dflash_tui.experiments.analysis.report import Comparison, ExperimentReport, SweepPoint
from dflash_tui.experiments.design import Boot, Conditions, Design
from dflash_tui.presentation.benchmark_text import format_latency
from dflash_tui.presentation.intervals import format_ratio
from dflash_tui.presentation.verdict_text import label_arm, name_prompt

ABOUT_RATIOS = "Verdicts compare the arms prompt by prompt, so that their ratios are not quotients of these medians."
MARKS = "●◆▲■▼★"  # one per arm, so that colour is never alone
_NAME = 24


def arm_letter(arm: int) -> str:
    """Return the letter of an arm, `A` for the first."""
    return chr(ord("A") + arm % 26)


def arm_mark(arm: int) -> str:
    """Return the mark of an arm."""
    return MARKS[arm % len(MARKS)]


def name_arm(design: Design, arm: int, width: int = _NAME) -> str:
    """Return letter and name of an arm, the name cut so that it differs from those of the others."""
    labels = [clean_line(label_arm(design, place)) for place in range(len(design.arms))]
    return f"{arm_letter(arm)} {shorten_names(labels, width)[labels[arm]]}"


def describe_variation(design: Design) -> str:
    """Return what is varied, as `mode: eager against compile`; of a tune within which budget."""
    if design.tuning:
        return f"tune within {format_duration(design.tuning.budget)}"
    names = [truncate_middle(clean_line(arm.name), _NAME) for arm in design.arms]
    joined = " against ".join(names) if len(names) == 2 else ", ".join(names)
    return f"{clean_line(design.vary)}: {joined}"


def describe_certainty(design: Design) -> str:
    """Return how sure an experiment can be: `4 boots, 2 per arm`, or `measured apart, 2 boots`."""
    boots = pluralize(len(design.order), "boot")
    if design.tuning:
        return boots
    if not design.suite:
        return f"measured apart, {boots}"
    counts = sorted({design.order.count(arm) for arm in range(len(design.arms))})
    return f"{boots}, {' to '.join(map(str, counts))} per arm"


def format_boot_order(design: Design) -> str:
    """Return the order of the boots, as `A B B A`."""
    return " ".join(arm_letter(arm) for arm in design.order)


def synthetic_label(design: Design) -> str:
    """Return why the figures are not those of a real model, or nothing."""
    return f"not a real model's figures: {clean_line(design.synthetic)}" if design.synthetic else ""


def compares_prompts(report: ExperimentReport) -> bool:
    """Whether a verdict of the report is a ratio over prompts, so that `ABOUT_RATIOS` belongs under its medians."""
    return any(comparison.prompts for comparison in report.comparisons)


class FigureCell(NamedTuple):
    """A figure of an arm: the median of its boots and their range, None where nothing was measured."""

    figure: MedianFigure | None
    digits: int = 1
    is_seconds: bool = False
    is_start: bool = False  # of minutes, so that a range is told to the second
    is_none: bool = False  # there is no such figure of this arm, which is not the same as an unknown one

    def with_range(self) -> str:
        """Return `35.9 (34.1 to 36.6, 4 boots)`, `none`, or a dash where it is unknown."""
        if (figure := self.figure) is None:
            return "none" if self.is_none else UNKNOWN
        middle, low, high = (
            format_duration(value) if self.is_start else format_number(value, self.digits) for value in figure[:3]
        )
        unit = " s" if self.is_seconds and not self.is_start else ""
        return f"{middle}{unit} ({f'{low} to {high}, ' if figure.n > 1 else ''}{pluralize(figure.n, 'boot')})"

    def with_spread(self, *, spread: bool = True) -> str:
        """Return `35.9 ±3%`, half the range as a share of the median, or `35.9` without it; else as `with_range`."""
        if (figure := self.figure) is None:
            return "none" if self.is_none else UNKNOWN
        median = figure.median
        text = format_seconds(median, self.digits) if self.is_seconds else f"{median:.{self.digits}f}"
        share = (figure.high - figure.low) / 2 / median * 100 if median else 0.0
        return text + (f" ±{share:.{0 if share >= 1 else 1}f}%" if spread and figure.n > 1 else "")


class ArmRow(NamedTuple):
    """An arm: how many of its boots measured something and how many failed, and its figures by `list_figures`."""

    arm: int
    boots: int
    failed: int
    figures: tuple[FigureCell, ...]


_FIGURES = ("steps/s", "tok/s", "AL", "TTFT", "ready cold", "ready cached", "first request")
TTFT = _FIGURES.index("TTFT")
_FIRST_START, _LATER_STARTS, _COLD_STARTS = "first start", "later starts", "cold starts"


def list_figures(design: Design) -> tuple[str, ...]:
    """Return the names of the figures of an arm; of an A/B of starts those of starts alone."""
    if not design.measures_start:
        return _FIGURES
    return (_COLD_STARTS,) if design.cold else (_FIRST_START, _LATER_STARTS)


def list_arm_rows(design: Design, boots: Sequence[Boot]) -> list[ArmRow]:
    """Return a row per arm: medians of its boots."""
    rows = []
    for arm in range(len(design.arms)):
        of = summarize_arm(boots, arm)
        if design.measures_start:
            medians = (of.ready,) if design.cold else (of.filling, of.ready)
            cells = tuple(FigureCell(figure, is_seconds=True, is_start=True) for figure in medians)
            rows.append(ArmRow(arm, of.boots, of.failed, cells))
            continue
        without = is_uncached(boots, arm)
        starts = [
            FigureCell(figure, is_seconds=True, is_start=True, is_none=without and cached)
            for figure, cached in ((of.cold, False), (of.cached, True))
        ]
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
            cache=boot.cache or ("none" if is_uncached(boots, boot.arm) else UNKNOWN),
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
    speeds = [
        request.decode_tok_s for request in boot.requests if not request.error and request.decode_tok_s is not None
    ]
    return statistics.median(speeds) if speeds else None


def format_conditions(at: Conditions | None) -> str:
    """Return how the machine was, as far as somebody said."""
    if at is None:
        return UNKNOWN
    parts = [
        at.power,
        format_number(at.clock_mhz, 0, "MHz") if at.clock_mhz is not None else "",
        format_number(at.temperature_c, 0, "°C") if at.temperature_c is not None else "",
        format_usage(at.power_w, at.power_limit_w, "W") if at.power_w is not None else "",
        f"driver reported: {', '.join(at.throttle)}" if at.throttle else "",
        f"foreign: {', '.join(at.foreign)}" if at.foreign else "",
        f"load {at.load:.1f}" if at.load is not None else "",
        f"{format_gib(at.available)} free" if at.available is not None else "",
    ]
    near = ", ".join(part for part in parts if part) or UNKNOWN
    return "; ".join([near, *(f"{host}: {format_conditions(far)}" for host, far in at.hosts.items())])


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


def list_prompt_rows(comparison: Comparison) -> list[PromptRow]:
    """Return a row per prompt, and one of all: geometric means, as the verdict's, and its interval with its level.

    Of starts there is the last alone, and its ratio is one of seconds, of which less is better.
    """
    rows = [PromptRow(name_prompt(row), row.a, row.b, row.ratio, row.n) for row in comparison.prompts]
    a, b = (statistics.geometric_mean(figures) if figures else None for figures in (
        [row.a for row in comparison.prompts], [row.b for row in comparison.prompts]))  # fmt: skip
    ratio = comparison.ratio.inverse if comparison.ratio and comparison.measure == START else comparison.ratio
    level = comparison.test.level if comparison.test else LEVEL
    name = "all" if level == LEVEL else f"all ({100 * level:.3g} % interval)"
    return [*rows, PromptRow(name, a, b, ratio, sum(row.n for row in rows), is_total=True)]


class StartRow(NamedTuple):
    """A bar of the start-up: what it is, the arm, its seconds, and their share of the longest bar's."""

    what: str
    arm: int
    seconds: float
    share: float


def list_start_rows(design: Design, boots: Sequence[Boot], arms: Sequence[int]) -> list[StartRow]:
    """Return the medians of cold and cached starts and of first requests, arm by arm, what is unknown left out.

    Of an A/B of starts they are the figures of its arms.
    """
    if design.measures_start:
        names = list_figures(design)
        rows = {row.arm: row.figures for row in list_arm_rows(design, boots)}
        bars = [(name, arm, rows[arm][place].figure) for place, name in enumerate(names) for arm in arms]
    else:
        of = [(arm, summarize_arm(boots, arm)) for arm in arms]
        bars = [("cold start", arm, start.cold) for arm, start in of]
        bars += [("cached start", arm, start.cached) for arm, start in of]
        bars += [("first request", arm, start.first) for arm, start in of]
    longest = max((figure.median for _, _, figure in bars if figure), default=0.0) or 1.0
    return [StartRow(what, arm, figure.median, figure.median / longest) for what, arm, figure in bars if figure]


REQUEST_FIGURES = ("TTFT s", "tok/s", "steps/s", "AL")


def format_load(done: RequestDone) -> str:
    """Return how a request was sent: among so many at a time, or at so many per second; a dash where that is lost."""
    if done.rate:
        return f"{done.rate:g}/s"
    return str(done.streams) if done.streams else UNKNOWN


def request_cells(done: RequestDone) -> tuple[str, ...]:
    """Return the figures of a request by `REQUEST_FIGURES`."""
    figures = ((done.ttft, 3), (done.decode_tok_s, 1), (done.steps_s, 2), (done.acceptance_length, 2))
    return tuple(format_number(value, digits) for value, digits in figures)


def format_seconds(seconds: float, digits: int = 1) -> str:
    """Return seconds with that many digits, from a minute on as a duration."""
    return f"{seconds:.{digits}f} s" if seconds < 60 else format_duration(seconds)


def list_figure_rows(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Return a row per boot of a comparison: its number, its arm and what the verdict compares."""
    return [
        (str(figure.number + 1), arm_letter(figure.arm), format_number(figure.value, 2))
        for figure in comparison.figures
    ]


def format_point(point: SweepPoint) -> str:
    """Return the speed of a point of a sweep with its interval against the fastest, which has none."""
    if point.low is None:
        return format_number(point.tok_s)
    return f"{format_number(point.tok_s)} ({format_number(point.low)} to {format_number(point.high)})"


def count_requests(boots: Iterable[Boot]) -> int:
    """Return how many requests were measured."""
    return sum(len(boot.requests) for boot in boots)


def format_total_time(boots: Sequence[Boot]) -> str:
    """Return how long the boots took together."""
    durations = [boot.took for boot in boots if boot.took is not None]
    return format_duration(sum(durations)) if durations else UNKNOWN


def format_clocks(boots: Iterable[Boot]) -> str:
    """Return the GPU clocks that were seen before and after the boots, their median and ends; or a dash."""
    clocks = [at.clock_mhz for boot in boots for at in (boot.before, boot.after) if at and at.clock_mhz is not None]
    if not clocks:
        return UNKNOWN
    return f"{statistics.median(clocks):.0f} MHz ({min(clocks)} to {max(clocks)}, {pluralize(len(clocks), 'reading')})"


def list_latency_rows(report: ExperimentReport) -> list[tuple[str, ...]]:
    """Return the percentiles of latencies by arm, number of streams and prompt, which has none if it was sent once."""
    rows = []
    for arm in range(len(report.design.arms)):
        requests = [done for boot in select_measured_boots(report.boots, arm) for done in boot.requests]
        for streams in report.design.concurrency:
            groups = latency.group_latencies([done for done in requests if done.streams == streams], {})
            named = (("TTFT", "ttft"), ("TPOT", "tpot"), ("E2E", "e2e"))
            rows += [
                (name_arm(report.design, arm), str(streams), kind or "all", name, str(percentiles.n),
                 *map(format_latency, percentiles.values))
                for kind, group in groups.items() for name, field in named
                if (percentiles := getattr(group, field)) and (percentiles.n > 1 or not kind)
            ]  # fmt: skip
    return rows


def describe_energy(report: ExperimentReport) -> list[str]:
    """Return the energy of an output token of each arm, a line for each number of streams; nothing where unknown."""
    lines = []
    for streams in report.design.concurrency:
        figures = []
        for arm in range(len(report.design.arms)):
            windows = [w for boot in report.boots if boot.arm == arm for w in boot.windows if w.streams == streams]
            joules = [window.joules_per_token for window in windows if window.joules_per_token is not None]
            figures += (
                [f"{name_arm(report.design, arm)} {statistics.fmean(joules):.3g} J ({pluralize(len(joules), 'boot')})"]
                if joules
                else []
            )
        if figures:
            lines.append(f"energy of an output token, all GPUs, {streams} at a time: {', '.join(figures)}")
    return lines
