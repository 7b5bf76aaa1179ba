"""The tables, bars and intervals of an experiment, built once from its values for every renderer."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import product

from dflash_tui.benchmark import summary
from dflash_tui.benchmark.stats import LEVEL
from dflash_tui.common.formatting import (
    UNKNOWN,
    format_duration,
    format_number,
    pluralize,
    shorten_names,
    truncate_middle,
)
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.events import Phase
from dflash_tui.experiments.analysis.arm_summary import MedianFigure, is_uncached, summarize_arm
from dflash_tui.experiments.analysis.measures import START, measure_seconds_to_ready, select_measured_boots
from dflash_tui.experiments.analysis.report import Comparison, ExperimentReport
from dflash_tui.experiments.design import Boot, Design
from dflash_tui.presentation.benchmark_text import format_latency
from dflash_tui.presentation.report import (
    Bar,
    Bars,
    Interval,
    Intervals,
    Span,
    Table,
    format_spread,
    is_noisy,
)
from dflash_tui.presentation.verdict_text import label_arm, name_prompt

MARKS = "●◆▲■▼★"  # one per arm, so that colour is never alone
_NAME, _COLUMN = 24, 18
_LEAST_REQUESTS = 20  # fewer have a median, but no percentiles
_FIGURES = ("steps/s", "tok/s", "AL", "TTFT", "cold start", "cached start", "first request")
_INSPECTED, _FIRST, _WHOLE = "inspected before", "first answer", "ready"


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


def synthetic_label(design: Design) -> str:
    """Return why the figures are not those of a real model, or nothing."""
    return f"not a real model's figures: {clean_line(design.synthetic)}" if design.synthetic else ""


def count_requests(boots: Iterable[Boot]) -> int:
    """Return how many requests were measured."""
    return sum(len(boot.requests) for boot in boots)


def median_speed(boot: Boot) -> float | None:
    """Return the median tok/s of a boot's measured requests, or None without any."""
    speeds = [done.decode_tok_s for done in boot.requests if not done.error and done.decode_tok_s is not None]
    return statistics.median(speeds) if speeds else None


def format_seconds(seconds: float, digits: int = 1) -> str:
    """Return seconds with that many digits, from a minute on as a duration."""
    return f"{seconds:.{digits}f} s" if seconds < 60 else format_duration(seconds)


def _mark_arm(arm: int) -> Span:
    return Span(f"{arm_mark(arm)} {arm_letter(arm)}", f"arm {arm}")


def _list_starts(design: Design, boots: Sequence[Boot], arm: int) -> list[tuple[str, MedianFigure | None]]:
    """Return the starts of an arm, and its first request, by their names; of an A/B of starts those it judges."""
    of = summarize_arm(boots, arm)
    if design.measures_start:
        return [("cold starts", of.ready)] if design.cold else [("first start", of.filling), ("later starts", of.ready)]
    return list(zip(_FIGURES[4:], (of.cold, of.cached, of.first), strict=True))


def build_arms_table(design: Design, boots: Sequence[Boot]) -> Table:
    """Return a row per arm: how many boots measured something, the medians of its boots, ± half their range."""
    rows: list[tuple[str | Span, ...]] = []
    for arm in range(len(design.arms)):
        of, starts = summarize_arm(boots, arm), _list_starts(design, boots, arm)
        figures = [] if design.measures_start else [
            _format_figure(of.steps_s), _format_figure(of.tok_s), _format_figure(of.al, 2),
            _format_figure(of.ttft, 2, seconds=True)]  # fmt: skip
        for name, start in starts:
            none = name == _FIGURES[5] and is_uncached(boots, arm)
            figures.append("none" if none and start is None else _format_figure(start, seconds=True))
        failed = f"+{of.failed}✗" if of.failed else ""
        label = Span(f"{arm_mark(arm)} {name_arm(design, arm, _COLUMN)}", f"arm {arm}")
        rows.append((label, f"{of.boots}{failed}", *figures))
    names = [name for name, _ in _list_starts(design, boots, 0)] if design.measures_start else _FIGURES
    return Table(("arm", "boots", *names), tuple(rows), tuple(range(1, len(names) + 2)))


def _format_figure(figure: MedianFigure | None, digits: int = 1, *, seconds: bool = False) -> str:
    """Return `35.9 ±3%`, half the range as a share of the median, `35.9` of one boot, or a dash."""
    if figure is None:
        return UNKNOWN
    text = format_seconds(figure.median, digits) if seconds else f"{figure.median:.{digits}f}"
    return f"{text} {format_spread(figure.low, figure.high, figure.median)}" if figure.n > 1 else text


def build_intervals(comparison: Comparison) -> Intervals:
    """Return the ratio of each prompt with its interval, then that of all, with its level where it is not 95 %.

    Of starts there is the last alone, a ratio of seconds, of which less is better. Noise is not drawn.
    """
    if comparison.ratio and is_noisy(comparison.ratio) and not comparison.ratio.excludes_one:
        return Intervals(())
    rows = [Interval(name_prompt(prompt), prompt.ratio) for prompt in comparison.prompts]
    level = comparison.test.level if comparison.test else LEVEL
    name = "all" if level == LEVEL else f"all ({100 * level:.3g} % interval)"
    if ratio := comparison.ratio:
        whole = ratio.inverse if comparison.measure == START else ratio
        rows.append(Interval(name, whole, "bold"))
    colored = [
        row._replace(style=f"arm {comparison.b}") if not row.style and row.ratio.excludes_one else row for row in rows
    ]
    return Intervals(tuple(colored))


def build_start_bars(design: Design, boots: Sequence[Boot], arms: Sequence[int]) -> Bars:
    """Return the medians of the starts and of first requests, arm by arm on one scale, what is unknown left out."""
    starts = {arm: _list_starts(design, boots, arm) for arm in arms}
    figures = [(name, arm, figure) for row in zip(*starts.values(), strict=True) for arm, (name, figure) in
               zip(starts, row, strict=True) if figure]  # fmt: skip
    longest = max((figure.median for _, _, figure in figures), default=0.0) or 1.0
    return Bars(
        tuple(
            Bar(name, _mark_arm(arm), figure.median / longest, format_seconds(figure.median))
            for name, arm, figure in figures
        )
    )


def build_phases_table(design: Design, boots: Sequence[Boot], arms: Sequence[int]) -> Table | None:
    """Return the median seconds of each phase of the starts by arm; None where starts were not what was measured."""
    if not design.measures_start:
        return None
    starts = [[_split_start(boot) for boot in select_measured_boots(boots, arm) if boot.start == "measured"]
              for arm in arms]  # fmt: skip
    rows: list[tuple[str | Span, ...]] = []
    for name in (_INSPECTED, *(phase.value for phase in Phase), _FIRST, _WHOLE):
        seconds = [[start[name] for start in of_arm if name in start] for of_arm in starts]
        if any(map(any, seconds)):
            cells = (format_number(statistics.median(values) if values else None, 1, "s") for values in seconds)
            rows.append((Span(name, "bold" if name == _WHOLE else "dim"), *cells))
    header = ("phase", *(f"{arm_mark(arm)} {arm_letter(arm)}" for arm in arms))
    return Table(header, tuple(rows), tuple(range(1, len(header)))) if rows else None


def _split_start(boot: Boot) -> dict[str, float]:
    """Return the seconds of a start by what they went into."""
    parts = dict(boot.phases)
    if boot.inspected:
        parts[_INSPECTED] = boot.inspected
    if boot.ready is not None and boot.up is not None:
        parts[_FIRST] = boot.ready - boot.up
    if (whole := measure_seconds_to_ready(boot)) is not None:
        parts[_WHOLE] = whole
    return parts


def build_boots_table(report: ExperimentReport) -> Table:
    """Return a row per boot: how it started, and what it measured."""
    design, boots = report.design, report.boots
    header = ("boot", "arm", "start", "ready", "first request", "tok/s", "requests", "remark")
    rows: list[tuple[str | Span, ...]] = []
    for boot in boots:
        first = boot.cold_request.decode_tok_s if boot.cold_request else None
        measured = (format_number(first, 1, "tok/s"), format_number(median_speed(boot)), str(len(boot.requests)))
        rows.append(
            (
                str(boot.number + 1),
                name_arm(design, boot.arm),
                boot.cache or ("none" if is_uncached(boots, boot.arm) else UNKNOWN),
                format_duration(boot.ready),
                *(() if design.measures_start else measured),
                ", ".join(filter(None, (f"attempt {boot.attempt}" if boot.attempt > 1 else "", boot.error))),
            )
        )
    if design.measures_start:
        return Table((*header[:4], header[-1]), tuple(rows), (0, 3))
    return Table(header, tuple(rows), (0, 3, 4, 5, 6))


def build_latency_table(report: ExperimentReport) -> Table | None:
    """Return the latencies by arm and number of streams, and by prompt where enough requests have percentiles."""
    rows: list[tuple[str | Span, ...]] = []
    for arm in range(len(report.design.arms)):
        requests = [done for boot in select_measured_boots(report.boots, arm) for done in boot.requests]
        for streams in report.design.concurrency:
            groups = summary.group_latencies([done for done in requests if done.streams == streams], {})
            named = (("TTFT", "ttft"), ("TPOT", "tpot"), ("E2E", "e2e"))
            rows += [
                (name_arm(report.design, arm), str(streams), kind or "all", name, str(percentiles.n),
                 format_latency(percentiles.values[0]),
                 *(format_latency(value) if percentiles.n >= _LEAST_REQUESTS else UNKNOWN
                   for value in percentiles.values[1:]))
                for kind, group in groups.items() for name, field in named
                if (percentiles := getattr(group, field)) and (percentiles.n >= _LEAST_REQUESTS or not kind)
            ]  # fmt: skip
    header = ("arm", "streams", "prompt", "latency", "requests", "p50", "p90", "p95", "p99")
    return Table(header, tuple(rows), (1, *range(4, 9))) if rows else None


def describe_energy(report: ExperimentReport) -> list[str]:
    """Return the energy of an output token of each arm, a line for each number of streams; nothing where unknown."""
    lines: dict[int, list[str]] = {}
    for streams, arm in product(report.design.concurrency, range(len(report.design.arms))):
        windows = [w for boot in report.boots if boot.arm == arm for w in boot.windows if w.streams == streams]
        if joules := [window.joules_per_token for window in windows if window.joules_per_token is not None]:
            figure = f"{statistics.fmean(joules):.3g} J ({pluralize(len(joules), 'boot')})"
            lines.setdefault(streams, []).append(f"{name_arm(report.design, arm)} {figure}")
    return [
        f"energy of an output token, all GPUs, {streams} at a time: {', '.join(figures)}"
        for streams, figures in lines.items()
    ]
