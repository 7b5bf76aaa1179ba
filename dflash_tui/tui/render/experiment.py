"""An A/B as the screens write it: its boots, its arms, its verdict, ranges around 1, start-up bars. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from textual.content import Content

from dflash_tui.common.formatting import UNKNOWN, format_duration, pluralize, truncate, truncate_middle
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.experiments.analysis import arm_summary
from dflash_tui.experiments.analysis.arm_summary import MedianFigure
from dflash_tui.experiments.analysis.report import Comparison, ExperimentReport, Verdict
from dflash_tui.experiments.design import Boot, Design
from dflash_tui.experiments.progress import Progress
from dflash_tui.presentation import verdict_text
from dflash_tui.presentation.experiment_tables import (
    arm_letter,
    arm_mark,
    axis_scale,
    describe_variation,
    draw_axis,
    draw_interval,
    format_ratio,
    list_other_details,
    list_start_bars,
    name_arm,
    name_prompt,
)
from dflash_tui.tui.widgets.basic import MUTED, draw_bar

_COLOURS = ("$series-a", "$series-b", "$series-c")
_WORDS = {
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
_MARKED = {"✗ ": "bold $error", "! ": "bold $warning"}
_STAGES = {"starting": "starting", "cold": "first request", "warm-up": "warming up", "round": "measuring"}
_PROMPT = 14
_WIDE = (6, 12, 12, 12, 13, 13, 13, 13)
_TIGHT = (6, 8, 8, 6, 8, 8, 8)


def arm_color(arm: int) -> str:
    """Return the theme variable of an arm; letter and mark go with it."""
    return _COLOURS[arm % len(_COLOURS)]


def render_arm_name(design: Design, arm: int, width: int = 20) -> Content:
    """Return an arm as `● A eager`."""
    return Content.assemble(
        (f"{arm_mark(arm)} ", arm_color(arm)),
        (name_arm(design, arm, width), "bold"),
    )


def render_progress(progress: Progress, now: float, width: int) -> Content:
    """Return the line over an experiment: how it stands, what it is; cut from the right."""
    design, word = progress.design, progress.status
    sign, color = STATUS[word]
    done = len(progress.boots)
    facts = f"  {done} of {pluralize(len(design.order), 'boot')}  {truncate_middle(clean_line(design.recipe), 28)}"
    synthetic = [(" SYNTHETIC", "bold $accent")] if design.synthetic else []
    rest = f"  {describe_variation(design)} · {'honest' if design.honest else 'quick'}"
    since = f" · for {format_duration(max(0.0, now - design.made_at))}" if word == "running" else ""
    return Content.assemble(
        (f"{sign} ", color),
        (f"A/B {word.upper()}", "bold"),
        *synthetic,
        facts,
        (truncate(rest + since, width), MUTED),
    )


def render_timeline(progress: Progress, now: float, width: int, rows: int) -> Content:
    """Return the order with a mark for each boot, and at most `rows` boots around the one that runs."""
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
    shown = range(first, min(len(design.order), first + rows))
    lines += [_boot(progress, number, over.get(number), now, width) for number in shown]
    return Content("\n").join(lines)


def _boot(progress: Progress, number: int, boot: Boot | None, now: float, width: int) -> Content:
    design, current = progress.design, progress.current
    arm = design.order[number]
    head = Content.assemble(
        (f"{number + 1:>3}  ", MUTED), render_arm_name(design, arm, 16), " " * max(0, 18 - _length(design, arm))
    )
    tried = sum(one.number == number for one in progress.tries)
    again = f", attempt {tried + 1}" if tried else ""
    room = max(0, width - 32)
    if boot and boot.error:
        return head + Content.assemble(("✗ ", "$error"), (truncate(clean_line(boot.error), room), "$error"))
    if boot:
        cache = f"{boot.cache} start, " if boot.cache else ""
        said = f"{format_duration(boot.took):>7}  {cache}ready in {format_duration(boot.ready)}, "
        said += f"{pluralize(len(boot.requests), 'request')}{again}"
        return head + Content.assemble(("✓ ", "$success"), truncate(said, room))
    if current and current.number == number:
        stage = _STAGES.get(current.stage, current.stage)
        share = f" {current.requests} of {progress.due}" if current.stage == "round" and progress.due else ""
        attempt = f", attempt {current.attempt}" if current.attempt > 1 else ""
        said = f"{format_duration(max(0.0, now - current.began)):>7}  {stage}{share}{attempt}"
        mark = ("◐ ", "$warning") if progress.driven else ("! ", "$error")
        return head + Content.assemble(mark, (truncate(said, room), "bold"))
    return head + Content.assemble(("· ", MUTED), ("to come" + again, MUTED))


def _length(design: Design, arm: int) -> int:
    return len(name_arm(design, arm, 16))


def render_remaining(progress: Progress, width: int) -> Content:
    """Return when it will be over, or how it goes on."""
    if progress.status == "finished":
        said = "all boots are over"
    elif progress.status == "running":
        left = progress.left
        boots = pluralize(sum(boot.took is not None for boot in progress.boots), "boot")
        said = f"about {format_duration(left)} left (estimate from {boots})" if left is not None else \
            "no boot is over yet, so there is no estimate"  # fmt: skip
        said += "; q leaves it running"
    else:
        why = f": {clean_line(progress.halted)}" if progress.halted else ": its driver ended without a word"
        said = f"{progress.status}{why}; r goes on where it stopped"
    return Content.assemble(("→ ", "$primary"), (truncate(said, width - 2), "bold"))


def render_arms(design: Design, boots: Sequence[Boot], width: int) -> Content:
    """Return a row per arm: medians of its boots, and half their range where there are several."""
    longest = min(20, max(len(name_arm(design, arm)) for arm in range(len(design.arms))))
    wide = width >= longest + 2 + sum(_WIDE)
    names = ["arm", "boots", "steps/s", "tok/s", "AL", *(["TTFT"] if wide else []), "cold", "cached", "first"]
    name_width = longest if wide else min(14, longest)
    lines = [_columns(names, name_width + 2, wide, MUTED)]
    for arm in range(len(design.arms)):
        found = arm_summary.summarize_arm(boots, arm)
        bad = f"+{found.failed}✗" if found.failed else ""
        cells = [
            f"{found.boots}{bad}",
            _cell(found.steps_s, 1, wide),
            _cell(found.tok_s, 1, wide),
            _cell(found.al, 2, wide),
        ]
        cells += [_cell(found.ttft, 2, wide, " s")] if wide else []
        cells += [_time(found.cold, wide), _time(found.cached, wide), _time(found.first, wide)]
        name = render_arm_name(design, arm, name_width - 2)
        pad = " " * max(0, name_width + 2 - len(name.plain))
        lines.append(name + Content(pad) + _columns(cells, 0, wide, "$foreground"))
    return Content("\n").join(lines)


def _columns(cells: Sequence[str], first: int, wide: bool, style: str) -> Content:
    widths = _WIDE if wide else _TIGHT
    head = [f"{cells[0]:<{first}}"] if first else []
    rest = cells[1:] if first else cells
    return Content.assemble(
        (("".join([*head, *(f"{cell:>{w}}" for cell, w in zip(rest, widths, strict=True))])), style)
    )


def _cell(figure: MedianFigure | None, digits: int, wide: bool, unit: str = "") -> str:
    if figure is None:
        return UNKNOWN
    return f"{figure.median:.{digits}f}{unit}{_spread(figure) if wide else ''}"


def _time(figure: MedianFigure | None, wide: bool) -> str:
    if figure is None:
        return UNKNOWN
    shown = f"{figure.median:.1f} s" if figure.median < 60 else format_duration(figure.median)
    return shown + (_spread(figure) if wide else "")


def _spread(figure: MedianFigure) -> str:
    half = (figure.high - figure.low) / 2
    share = half / figure.median * 100 if figure.median else 0.0
    return f" ±{share:.{0 if share >= 1 else 1}f}%" if figure.n > 1 else ""


def render_verdict(report: ExperimentReport, one: Comparison, width: int) -> Content:
    """Return the verdict in words: what a sweep comes to, the mark and the sentence, then what belongs to it."""
    sign, color = _WORDS[one.word]
    swept, details = verdict_text.describe_sweep(report), list_other_details(report, one)
    lines = [
        _hung(("  " if place else "★ ", "bold $accent"), clean_line(line), "" if place else "bold", width)
        for place, line in enumerate(swept)
    ]
    lines.append(
        _hung((f"{sign} ", f"bold {color}"), clean_line(verdict_text.format_headline(report, one)), "bold", width)
    )
    for line in map(clean_line, details):
        mark = line[:2] if line[:2] in _MARKED else ""
        lines.append(_hung((mark or "  ", _MARKED.get(mark, "")), line.removeprefix(mark), "", width))
    return Content("\n").join(lines)


def _hung(head: tuple[str, str], said: str, style: str, width: int) -> Content:
    lines = textwrap.wrap(said, max(20, width - 2)) or [""]
    return Content.assemble(head, ("\n  ".join(lines), style))


def render_intervals(one: Comparison, width: int) -> Content:
    """Return a row per prompt with its interval drawn around 1, then all of them, and the axis."""
    rows = [(name_prompt(row), row.ratio, MUTED) for row in one.prompts]
    rows += [("all", one.ratio, "bold")] if one.ratio else []
    if not rows:
        return Content.assemble(("no prompt was answered in both arms", MUTED))
    name = min(_PROMPT, max(len(kind) for kind, _, _ in rows))
    most = axis_scale([ratio for _, ratio, _ in rows])
    figures = {kind: format_ratio(ratio) for kind, ratio, _ in rows}
    room = max(9, width - name - 2 - max(len(said) for said in figures.values()))
    room -= 1 - room % 2  # so that 1 has a cell of its own in the middle
    lines = []
    for kind, ratio, style in rows:
        color = arm_color(one.b) if ratio.excludes_one else "$foreground 70%"
        drawn = draw_interval(ratio, most, room)
        head = f"{truncate_middle(kind, name):<{name}} "
        parts = [(part, MUTED if part == "│" else color) for part in re.split("(│)", drawn)]
        lines.append(Content.assemble((head, style), *parts, (f" {figures[kind]}", style)))
    return Content("\n").join([*lines, Content.assemble((f"{'':{name}} {draw_axis(most, room)}", MUTED))])


def render_start_bars(report: ExperimentReport, shown: Sequence[int], width: int) -> Content:
    """Return bars of the starts and of the first requests, arm by arm on one scale."""
    bars = list_start_bars(report.boots, shown)
    if not bars:
        return Content.assemble(("no start was measured", MUTED))
    longest = max(row.seconds for row in bars) or 1.0
    room = max(4, width - 27)
    lines, before = [], ""
    for row in bars:
        said = f"{row.seconds:.1f} s" if row.seconds < 60 else format_duration(row.seconds)
        title = row.what if row.what != before else ""
        before = row.what
        drawn = (draw_bar(row.seconds / longest, room) or "▏").ljust(room)
        mark = f"{arm_mark(row.arm)} {arm_letter(row.arm)} "
        lines.append(
            Content.assemble(
                (f"{title:<14}", MUTED), (mark, f"bold {arm_color(row.arm)}"), (drawn, arm_color(row.arm)), f"{said:>8}"
            )
        )
    return Content("\n").join(lines)
