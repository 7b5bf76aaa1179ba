"""An experiment as Textual content: the lines over its screens, its boots, the answer of its report. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from dflash_tui.common.formatting import format_duration, pluralize, truncate, truncate_middle
from dflash_tui.experiments.analysis.report import Comparison, ExperimentReport
from dflash_tui.experiments.design import Boot, Design
from dflash_tui.experiments.progress import Progress
from dflash_tui.presentation import verdict_text
from dflash_tui.presentation.experiment_report import (
    arm_letter,
    arm_mark,
    build_arms_table,
    count_requests,
    describe_certainty,
    describe_variation,
    name_arm,
)
from dflash_tui.presentation.experiment_text import STAGES
from dflash_tui.tui.render.report import arm_color, to_content
from dflash_tui.tui.widgets.basic import MUTED, join_fitting

STATUS = {
    "running": ("◐", "$warning"),
    "finished": ("✓", "$success"),
    "halted": ("■", "$foreground"),
    "interrupted": ("!", "$error"),
}
# Of a line over a screen: its padding, the most and the least cells of a name, and the least that say what is varied.
_PADDING, _NAME, _LEAST_NAME, _LEAST_VARIED = 2, 28, 12, 16


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
    facts = [describe_certainty(design), sent, engine]
    varied = _describe_in(design, width - _PADDING - head.cell_length)
    return join_fitting([head, varied, *(Content(f" · {fact}") for fact in facts if fact)], width - _PADDING)


def _describe_in(design: Design, room: int) -> Content:
    """Return what is varied, cut where it alone has no room, unless that would say nothing."""
    text = f"  {describe_variation(design)}"
    return Content(truncate(text, room) if room >= _LEAST_VARIED else text)


def shorten_recipe(design: Design, room: int) -> str:
    """Return the name of what is measured, in so many cells and no more than a line over a screen has for it."""
    return truncate_middle(design.recipe, max(_LEAST_NAME, min(_NAME, room)))


def render_progress(progress: Progress, now: float, width: int) -> Content:
    """Return the line over an A/B or a tune, as wide as the screen: how it stands, what it is as far as it fits."""
    design, word, done = progress.design, progress.status, len(progress.boots)
    sign, color = STATUS[word]
    boots = pluralize(done, "boot") if design.tuning else f"{done} of {pluralize(len(design.order), 'boot')}"
    head = Content.assemble(
        (f"{sign} ", color),
        (f"{'TUNE' if design.tuning else 'A/B'} {word.upper()}", "bold"),
        (" SYNTHETIC" if design.synthetic else "", "bold $accent"),
        f"  {boots}  ",
    )
    head += shorten_recipe(design, width - _PADDING - head.cell_length)
    if design.tuning:
        under_way = now - progress.current.began if progress.current and progress.driven else 0.0
        spent = format_duration(progress.spent + max(0.0, under_way))
        facts = [
            f"  {spent} of {format_duration(design.tuning.budget)}",
            f" · {pluralize(len(design.arms), 'setting')}",
        ]
    else:
        since = f" · for {format_duration(max(0.0, now - design.made_at))}" if word == "running" else ""
        varied = _describe_in(design, width - _PADDING - head.cell_length).plain
        facts = [varied, f" · {'honest' if design.honest else 'quick'}", since]
    return join_fitting([head, *(Content.assemble((fact, MUTED)) for fact in facts)], width - _PADDING)


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
        return head + Content.assemble(("✗ ", "$error"), (truncate(boot.error, room), "$error"))
    if boot:
        cache = f"{boot.cache} start, " if boot.cache else ""
        text = f"{format_duration(boot.took):>7}  {cache}ready in {format_duration(boot.ready)}, "
        text += f"{pluralize(len(boot.requests), 'request')}{again}"
        return head + Content.assemble(("✓ ", "$success"), truncate(text, room))
    if current and current.number == number:
        stage = STAGES.get(current.stage, current.stage)
        share = f" {current.requests} of {progress.due}" if current.stage == "round" and progress.due else ""
        attempt = f", attempt {current.attempt}" if current.attempt > 1 else ""
        text = f"{format_duration(max(0.0, now - current.began)):>7}  {stage}{share}{attempt}"
        mark = ("◐ ", "$warning") if progress.driven else ("! ", "$error")
        return head + Content.assemble(mark, (truncate(text, room), "bold"))
    return head + Content.assemble(("· ", MUTED), ("to come" + again, MUTED))


def _name_length(design: Design, arm: int) -> int:
    return len(name_arm(design, arm, 16))


def render_arms(design: Design, boots: Sequence[Boot], width: int) -> Content:
    """Return a row per arm: medians of its boots, and half their range where there are several."""
    return to_content([build_arms_table(design, boots)], width)


def render_headline(report: ExperimentReport, comparison: Comparison, width: int) -> Content:
    """Return the mark and the sentence of a verdict."""
    return to_content(verdict_text.list_answer(report, comparison)[:1], width)
