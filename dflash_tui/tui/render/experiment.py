"""Experiments as Textual content: boots, arms, the verdict, intervals around 1, start-up bars. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import accumulate

from textual.content import Content

from dflash_tui.common.formatting import format_duration, format_table, pluralize, truncate, truncate_middle
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.experiments.analysis.measures import START
from dflash_tui.experiments.analysis.report import Comparison, ExperimentReport, Verdict
from dflash_tui.experiments.design import Boot, Design
from dflash_tui.experiments.progress import Progress
from dflash_tui.presentation import experiment_text, start_phases, verdict_text
from dflash_tui.presentation.experiment_tables import (
    ABOUT_RATIOS,
    TTFT,
    arm_letter,
    arm_mark,
    compares_prompts,
    count_requests,
    describe_certainty,
    describe_variation,
    format_seconds,
    list_arm_rows,
    list_figures,
    list_latency_rows,
    list_prompt_rows,
    list_start_rows,
    name_arm,
)
from dflash_tui.presentation.intervals import axis_scale, draw_axis, draw_interval, format_ratio, place_interval
from dflash_tui.tui.widgets.basic import MUTED, draw_bar, join_fitting

_COLOURS = ("$series-a", "$series-b", "$series-c")
_VERDICTS = {
    Verdict.FASTER: ("▲", "$success"),
    Verdict.SLOWER: ("▼", "$accent"),
    Verdict.NO_DIFFERENCE: ("=", "$primary"),
    Verdict.REFUSED: ("✗", "$error"),
}
STATUS = {
    "running": ("◐", "$warning"),
    "finished": ("✓", "$success"),
    "halted": ("■", "$foreground"),
    "interrupted": ("!", "$error"),
}
_DETAILS = {"✗": "bold $error", "!": "bold $warning", "": ""}
# By the latest answer: what follows is under way.
_STAGES = {"starting": "starting", "cold": "warming up", "warm-up": "warming up", "round": "measuring"}
_PROMPT = 22
# Columns from which on there is room for the verdicts on other measures.
_ROOMY = 100
_SHORT = {"ready cold": "cold", "ready cached": "cached", "first request": "first"}
_WIDE = (6, 12, 12, 12, 13, 13, 13, 13)
_TIGHT = (6, 8, 8, 6, 8, 8, 8)
_BOOTS, _START = 6, 14
_PHASE_NAME, _PHASE = 17, 10


# Of a line over a screen: its padding, the most and the least cells of a name, and the least that say what is varied.
_PADDING, _NAME, _LEAST_NAME, _LEAST_VARIED = 2, 28, 12, 16


def arm_color(arm: int) -> str:
    """Return the theme variable of an arm; letter and mark go with it."""
    return _COLOURS[arm % len(_COLOURS)]


def render_arm_name(design: Design, arm: int, width: int = 20) -> Content:
    """Return an arm as `● A eager`."""
    return Content.assemble(
        (f"{arm_mark(arm)} ", arm_color(arm)),
        (name_arm(design, arm, width), "bold"),
    )


def render_report_head(report: ExperimentReport, width: int, place: int = 0) -> Content:
    """Return the line over a verdict, as wide as the screen: what was compared, and of how much as far as it fits."""
    design = report.design
    which = f"  {place + 1} of {len(report.comparisons)}" if len(report.comparisons) > 1 else ""
    engine = next((boot.engine for boot in report.boots if boot.engine), "")
    marks = Content.assemble(
        (" SYNTHETIC" if design.synthetic else "", "bold $accent"),
        ("" if report.complete else " NOT COMPLETE", "bold $error"),
        (which, "bold"),
    )
    kind = "Tune " if report.tune else "A/B "
    name = shorten_recipe(design, width - _PADDING - len(kind) - marks.cell_length)
    head = Content.assemble((kind, "bold"), (name, "bold $primary")) + marks
    sent = "" if design.measures_start else f"{count_requests(report.boots)} requests"
    facts = [describe_certainty(design), sent, clean_line(engine)]
    varied = _describe_in(design, width - _PADDING - head.cell_length)
    return join_fitting([head, varied, *(Content(f" · {fact}") for fact in facts if fact)], width - _PADDING)


def _describe_in(design: Design, room: int) -> Content:
    """Return what is varied, cut where it alone has no room, unless that would say nothing."""
    text = f"  {describe_variation(design)}"
    return Content(truncate(text, room) if room >= _LEAST_VARIED else text)


def shorten_recipe(design: Design, room: int) -> str:
    """Return the name of what is measured, in so many cells and no more than a line over a screen has for it."""
    return truncate_middle(clean_line(design.recipe), max(_LEAST_NAME, min(_NAME, room)))


def render_progress(progress: Progress, now: float, width: int) -> Content:
    """Return the line over an experiment, as wide as the screen: how it stands, what it is as far as it fits."""
    design, word = progress.design, progress.status
    sign, color = STATUS[word]
    done = len(progress.boots)
    head = Content.assemble(
        (f"{sign} ", color),
        (f"A/B {word.upper()}", "bold"),
        (" SYNTHETIC" if design.synthetic else "", "bold $accent"),
        f"  {done} of {pluralize(len(design.order), 'boot')}  ",
    )
    head += shorten_recipe(design, width - _PADDING - head.cell_length)
    since = f" · for {format_duration(max(0.0, now - design.made_at))}" if word == "running" else ""
    facts = [f" · {'honest' if design.honest else 'quick'}", since]
    varied = _describe_in(design, width - _PADDING - head.cell_length).stylize(MUTED)
    return join_fitting([head, varied, *(Content.assemble((fact, MUTED)) for fact in facts)], width - _PADDING)


def render_timeline(progress: Progress, now: float, width: int, rows: int) -> Content:
    """Return the order of an experiment with a mark for each boot, and below it the boots around the current one.

    Args:
        progress: how far it is.
        now: the time, in seconds since the epoch.
        width: of the lines.
        rows: how many boots are listed at most.
    """
    design, over = progress.design, {boot.number: boot for boot in progress.boots}
    current = progress.current
    here = current.number if current else progress.next[0] if progress.next else len(design.order) - 1
    live = "◐" if progress.driven else "!"
    signs: list[str | tuple[str, str]] = []
    for number, arm in enumerate(design.order):
        boot = over.get(number)
        sign = ("✗" if boot.error else "✓") if boot else live if current and number == here else "·"
        style = "bold reverse" if current and number == here else arm_color(arm) if boot else MUTED
        signs += [(f" {arm_letter(arm)}{sign} ", style), " "]
    first = max(0, min(here - rows // 2, len(design.order) - rows))
    lines = [Content.assemble(("order  ", MUTED), *signs)]
    numbers = range(first, min(len(design.order), first + rows))
    lines += [_render_boot(progress, number, over.get(number), now, width) for number in numbers]
    return Content("\n").join(lines)


def _render_boot(progress: Progress, number: int, boot: Boot | None, now: float, width: int) -> Content:
    design, current = progress.design, progress.current
    arm = design.order[number]
    longest = max(_name_length(design, place) for place in range(len(design.arms)))
    pad = " " * (longest - _name_length(design, arm) + 2)
    head = Content.assemble((f"{number + 1:>3}  ", MUTED), render_arm_name(design, arm, 16), pad)
    tried = sum(attempt.number == number for attempt in progress.tries)
    again = f", attempt {tried + 1}" if tried else ""
    room = max(0, width - head.cell_length - 2)
    if boot and boot.error:
        return head + Content.assemble(("✗ ", "$error"), (truncate(clean_line(boot.error), room), "$error"))
    if boot:
        cache = f"{boot.cache} start, " if boot.cache else ""
        text = f"{format_duration(boot.took):>7}  {cache}ready in {format_duration(boot.ready)}, "
        text += f"{pluralize(len(boot.requests), 'request')}{again}"
        return head + Content.assemble(("✓ ", "$success"), truncate(text, room))
    if current and current.number == number:
        stage = _STAGES.get(current.stage, current.stage)
        share = f" {current.requests} of {progress.due}" if current.stage == "round" and progress.due else ""
        attempt = f", attempt {current.attempt}" if current.attempt > 1 else ""
        text = f"{format_duration(max(0.0, now - current.began)):>7}  {stage}{share}{attempt}"
        mark = ("◐ ", "$warning") if progress.driven else ("! ", "$error")
        return head + Content.assemble(mark, (truncate(text, room), "bold"))
    return head + Content.assemble(("· ", MUTED), ("to come" + again, MUTED))


def _name_length(design: Design, arm: int) -> int:
    return len(name_arm(design, arm, 16))


def shows_spread(design: Design, boots: Sequence[Boot], width: int) -> bool:
    """Return whether `render_arms` shows the range of any figure."""
    cells = (cell for row in list_arm_rows(design, boots) for cell in row.figures)
    return _has_room(design, width) and any(cell.figure and cell.figure.n > 1 for cell in cells)


def _has_room(design: Design, width: int) -> bool:
    return width >= _arm_name_width(design) + 2 + sum(_choose_widths(design, wide=True))


def _choose_widths(design: Design, *, wide: bool) -> tuple[int, ...]:
    """Return the cells of the columns after an arm's name: its boots, then its figures."""
    if design.measures_start:
        return (_BOOTS, *(_START for _ in list_figures(design)))
    return _WIDE if wide else _TIGHT


def _arm_name_width(design: Design) -> int:
    return min(20, max(len(name_arm(design, arm)) for arm in range(len(design.arms))))


def render_arms(design: Design, boots: Sequence[Boot], width: int) -> Content:
    """Return a row per arm: medians of its boots, and half their range where there are several."""
    wide, name_width = _has_room(design, width), _arm_name_width(design)
    widths, name_width = _choose_widths(design, wide=wide), name_width if wide else min(14, name_width)
    ends = accumulate(widths, initial=name_width + 2)
    count = sum(end <= width for end in ends) - 1  # a column that has no room falls away whole

    def columns(boots: str, figures: Sequence[str]) -> str:
        visible_figures = (figure for place, figure in enumerate(figures) if wide or place != TTFT)
        cells = list(zip((boots, *visible_figures), widths, strict=True))[:count]
        return "".join(f"{cell:>{cells_wide}}" for cell, cells_wide in cells)

    names = [_SHORT.get(name, name) for name in list_figures(design)]
    lines = [Content.assemble((f"{'arm':<{name_width + 2}}{columns('boots', names)}", MUTED))]
    for row in list_arm_rows(design, boots):
        failed = f"+{row.failed}✗" if row.failed else ""
        name = render_arm_name(design, row.arm, name_width - 2)
        cells = columns(f"{row.boots}{failed}", [cell.with_spread(spread=wide) for cell in row.figures])
        pad = " " * max(0, name_width + 2 - len(name.plain))
        lines.append(Content.assemble(name, pad, (cells, "$foreground")))
    return Content("\n").join(lines)


def render_compared_arms(report: ExperimentReport, width: int) -> Content:
    """Return a row per arm and below them why the ratio of a verdict is another than that of two of them."""
    note = "\n".join(textwrap.wrap(ABOUT_RATIOS, width)) if compares_prompts(report) else ""
    rows = render_arms(report.design, report.boots, width)
    return Content("\n").join([rows, Content.assemble((note, MUTED))]) if note else rows


def render_verdict(report: ExperimentReport, comparison: Comparison, width: int) -> Content:
    """Return the verdict in words: what a sweep comes to, the mark and the sentence, then what belongs to it."""
    lines = [
        _wrap_hanging(("  " if place else "★ ", "bold $accent"), clean_line(line), "" if place else "bold", width)
        for place, line in enumerate(verdict_text.describe_sweep(report))
    ]
    lines.append(render_headline(report, comparison, width))
    lines += [
        _wrap_hanging((f"{detail.mark:<2}", _DETAILS[detail.mark]), clean_line(detail.text), "", width)
        for detail in verdict_text.list_details(report, comparison, labelled=True, short=width < _ROOMY)
    ]
    return Content("\n").join(lines)


def render_headline(report: ExperimentReport, comparison: Comparison, width: int) -> Content:
    """Return the mark and the sentence of a verdict."""
    sign, color = _VERDICTS[comparison.word]
    headline = clean_line(verdict_text.format_headline(report, comparison))
    return _wrap_hanging((f"{sign} ", f"bold {color}"), headline, "bold", width)


def _wrap_hanging(head: tuple[str, str], text: str, style: str, width: int) -> Content:
    lines = textwrap.wrap(text, max(20, width - 2)) or [""]
    return Content.assemble(head, ("\n  ".join(lines), style))


def render_intervals(comparison: Comparison, width: int) -> Content:
    """Return a row per prompt with its interval drawn around 1, then all of them, and the axis."""
    rows = [(row, row.ratio) for row in list_prompt_rows(comparison) if row.ratio]
    if not rows:
        what = "start of both arms was measured" if comparison.measure == START else "prompt was answered in both arms"
        return Content.assemble((f"no {what}", MUTED))
    name = min(_PROMPT, max(len(row.name) for row, _ in rows))
    most = axis_scale(ratio for _, ratio in rows)
    room = max(9, width - name - 2 - max(len(format_ratio(ratio)) for _, ratio in rows))
    room -= 1 - room % 2  # so that 1 has a cell of its own in the middle
    lines = []
    for row, ratio in rows:
        style = "bold" if row.is_total else MUTED
        color = arm_color(comparison.b) if ratio.excludes_one else "$foreground 70%"
        drawn, cells = Content.styled(draw_interval(ratio, most, room), color), place_interval(ratio, most, room)
        if not cells.low <= cells.no_difference <= cells.high:
            drawn = drawn.stylize(MUTED, cells.no_difference, cells.no_difference + 1)
        head = f"{truncate_middle(row.name, name):<{name}} "
        lines.append(Content.assemble((head, style), drawn, (f" {format_ratio(ratio)}", style)))
    return Content("\n").join([*lines, Content.assemble((f"{'':{name}} {draw_axis(most, room)}", MUTED))])


def render_boots(report: ExperimentReport) -> Content:
    """Return a row per boot: how it started, and what it measured."""
    return _mute_header(experiment_text.tabulate_boots(report, name_arm))


def render_latency(report: ExperimentReport) -> Content:
    """Return the percentiles of latencies by arm, streams and prompt; nothing where none was measured."""
    rows = [[clean_line(cell) for cell in row] for row in list_latency_rows(report)]
    header = ("arm", "streams", "prompt", "", "#", "p50", "p90", "p95", "p99")
    return _mute_header(format_table(header, rows, (1, *range(4, 9)))) if rows else Content("")


def _mute_header(table: str) -> Content:
    header, end, rows = table.partition("\n")
    return Content.assemble((header.lower(), MUTED), end + rows)


def render_start_bars(report: ExperimentReport, arms: Sequence[int], width: int) -> Content:
    """Return bars of the starts and of the first requests, arm by arm on one scale."""
    room = max(4, width - 27)
    lines, before = [], ""
    for row in list_start_rows(report.design, report.boots, arms):
        title = row.what if row.what != before else ""
        before = row.what
        bar = (draw_bar(row.share, room) or "▏").ljust(room)
        mark = f"{arm_mark(row.arm)} {arm_letter(row.arm)} "
        drawn = ((mark, f"bold {arm_color(row.arm)}"), (bar, arm_color(row.arm)), f"{format_seconds(row.seconds):>8}")
        lines.append(Content.assemble((f"{title:<14}", MUTED), *drawn))
    lines += _render_phases(report, arms)
    return Content("\n").join(lines) if lines else Content.assemble(("no start was measured", MUTED))


def _render_phases(report: ExperimentReport, arms: Sequence[int]) -> list[Content]:
    """Return a line for each phase of the starts, with the median seconds of these arms; none of another experiment."""
    rows = start_phases.list_phase_rows(report.design, report.boots)
    if not rows:
        return []
    marks = [(f"{f'{arm_mark(arm)} {arm_letter(arm)}':>{_PHASE}}", f"bold {arm_color(arm)}") for arm in arms]
    lines = [Content(""), Content.assemble((f"{'phase':<{_PHASE_NAME}}", MUTED), *marks)]
    for name, *every in (row.cells() for row in rows):
        seconds = [every[arm] for arm in arms]
        style = "bold" if name == start_phases.WHOLE else ""
        cells = "".join(f"{cell:>{_PHASE}}" for cell in seconds)
        lines.append(Content.assemble((f"{name:<{_PHASE_NAME}}", style or MUTED), (cells, style)))
    return lines
