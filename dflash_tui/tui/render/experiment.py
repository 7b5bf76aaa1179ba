"""Experiments as Textual content: state, measurements and outcome of an A/B or a tune. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from textual.content import Content

from dflash_tui.common.formatting import draw_bar, format_duration, pluralize, truncate, truncate_middle
from dflash_tui.experiments.analysis.report import ExperimentReport, TuneOutcome
from dflash_tui.experiments.builder import BootEstimate
from dflash_tui.experiments.design import Design
from dflash_tui.experiments.progress import Progress, estimate_left
from dflash_tui.monitoring.startup_history import RecordedStart
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.presentation.experiment_report import count_requests, describe_certainty, describe_variation
from dflash_tui.presentation.experiment_text import build_boots_table, format_best
from dflash_tui.presentation.report import Part, Section, lay_out
from dflash_tui.presentation.verdict_text import letter_arm, mark_arm, name_arm
from dflash_tui.tui.widgets.basic import MUTED, join_fitting

STATUS = {
    "running": ("◐", "$warning"),
    "finished": ("✓", "$success"),
    "halted": ("■", "$foreground"),
    "interrupted": ("!", "$error"),
}
# For the status line: its padding, the maximum and minimum cells of a name, the minimum for what is varied.
_PADDING, _NAME, _LEAST_NAME, _LEAST_VARIED = 2, 28, 12, 16


def render_arm_name(design: Design, arm: int, width: int = 20) -> Content:
    """Return an arm as `● A eager`."""
    mark, name = mark_arm(arm), name_arm(design, arm, width)
    return Content.assemble((mark.text[:2], _find_style(mark.style)), (name, "bold"))


def render_report_head(report: ExperimentReport, width: int, place: int = 0) -> Content:
    """Return the status line of a verdict: what was compared, and the details that fit in `width`."""
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
    """Return what is varied, truncated unless too little would be left."""
    text = f"  {describe_variation(design)}"
    return Content(truncate(text, room) if room >= _LEAST_VARIED else text)


def shorten_recipe(design: Design, room: int) -> str:
    """Return the recipe's name truncated to `room` cells, within the status line's limits."""
    return truncate_middle(design.recipe, max(_LEAST_NAME, min(_NAME, room)))


def render_progress(progress: Progress, now: float, width: int) -> Content:
    """Return the status line of an A/B or tune: its status, and the details that fit in `width`."""
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
        facts = [
            f"  {format_duration(measure_spent(progress, now))} of {format_duration(design.tuning.budget)}",
            f" · {pluralize(len(design.arms), 'setting')}",
        ]
    else:
        since = f" · for {format_duration(measure_running(progress, now))}" if word == "running" else ""
        varied = _describe_in(design, width - _PADDING - head.cell_length).plain
        facts = [varied, f" · {'honest' if design.honest else 'quick'}", since]
    return join_fitting([head, *(Content.assemble((fact, MUTED)) for fact in facts)], width - _PADDING)


def measure_spent(progress: Progress, now: float) -> float:
    """Return the seconds of all boots, including the current one."""
    under_way = now - progress.current.began if progress.current and progress.driven else 0.0
    return progress.spent + max(0.0, under_way)


def measure_running(progress: Progress, now: float) -> float:
    """Return the seconds since the first boot began, which can be long after the design was made."""
    began = [boot.began for boot in (*progress.boots, *progress.tries) if boot.began]
    began += [progress.current.began] if progress.current else []
    return max(0.0, now - min(began, default=now))


def render_timeline(progress: Progress, now: float, width: int, rows: int) -> Content:
    """Return the order of the boots with their marks, and the boots around the current one below."""
    design, over = progress.design, {boot.number: boot for boot in progress.boots}
    current = progress.current
    here = current.number if current else progress.next[0] if progress.next else len(design.order) - 1
    live = "◐" if progress.driven else "!"
    signs: list[str | tuple[str, str]] = []
    for number, arm in enumerate(design.order):
        boot = over.get(number)
        sign = ("✗" if boot.error else "✓") if boot else live if current and number == here else "·"
        style = "bold reverse" if current and number == here else arm_color(arm) if boot else MUTED
        signs += [(f" {letter_arm(arm)}{sign} ", style), " "]
    first = max(0, min(here - rows // 2, len(design.order) - rows))
    head, *boots = to_content([build_boots_table(progress, now)], width).split("\n")[: 1 + len(design.order)]
    order = Content.assemble(("order  ", MUTED), *signs)
    return Content("\n").join([order, head, *boots[first : first + rows]])


_SERIES = ("$series-a", "$series-b", "$series-c")
_STYLES = {
    "bold": "bold",
    **dict.fromkeys(("dim", "head", "·", "▾"), MUTED),
    "✗": "bold $error",
    "!": "bold $warning",
    "◐": "bold $warning",
    "✓": "$success",
    "●": "$primary",
    "→": "bold $primary",
    "★": "bold $accent",
    "▲": "bold $success",
    "▼": "bold $accent",
    "=": "bold $primary",
}


def arm_color(arm: int) -> str:
    """Return the theme variable of an arm's colour; letter and mark tell arms apart as well."""
    return _SERIES[arm % len(_SERIES)]


def _find_style(name: str) -> str:
    return arm_color(int(name.removeprefix("arm "))) if name.startswith("arm ") else _STYLES.get(name, "")


def to_content(parts: Iterable[Part], width: int) -> Content:
    """Return parts stacked vertically, in lines of at most `width` cells."""
    return Content("\n").join(
        Content.assemble(*((span.text, _find_style(span.style)) for span in line))
        for part in parts
        for line in lay_out(part, width)
    )


def render_sections(sections: Iterable[Section], width: int) -> Content:
    """Return sections stacked vertically, each below a line with its title."""
    blocks = []
    for section in sections:
        title = f"─{section.title}─" if section.title else ""
        blocks += [Content.assemble((f"{truncate(title, width):─<{width}}", MUTED))] if title else []
        blocks.append(to_content(section.parts, width))
    return Content("\n").join(blocks)


_ROOMY = 100
# Seconds left; a lower estimate means that the boot has exceeded its expected time.
_LEAST_LEFT = 1.0
_ANSWERS = "the answers not counted"


class Outlook(NamedTuple):
    """Estimates for an experiment that do not come from its own boots."""

    boots: BootEstimate
    """The expected duration of its boots."""
    kinds: tuple[str, ...] = ()
    """The kinds of its prompts; empty if it measures starts or its suite is missing."""
    starts: tuple[tuple[RecordedStart, ...], ...] = ()
    """Earlier starts on this machine, per arm."""


def list_boot_stages(progress: Progress) -> str:
    """Return the stages of a boot, shown while waiting for the next one."""
    design = progress.design
    start = "launches a server of its own and waits until it is ready"
    if design.measures_start:
        return f"each boot {start}, and stops it"
    counted = f"{pluralize(progress.due, 'request')} that count" if progress.due else "the requests that count"
    return f"each boot {start}, sends one request alone, a warm-up and {counted}, and stops it"


def render_left(progress: Progress, outlook: Outlook | None, now: float, width: int) -> Content:
    """Return progress and the estimated time left, or how to resume."""
    if progress.status == "finished":
        return _join_left(1.0, ["all boots are over"], width)
    if progress.status != "running":
        why = f": {progress.halted}" if progress.halted else ": the driver exited without logging an error"
        return _join_left(None, [f"{progress.status}{why}; enter resumes it"], width)
    left, source, uncounted = _find_left(progress, outlook, now)
    spent = measure_spent(progress, now)
    share = len(progress.boots) / max(1, len(progress.design.order))
    if left is None or left < _LEAST_LEFT:
        parts = ["no estimate" if progress.boots else "no estimate until the first boot is over"]
        if progress.current and source and uncounted != _ANSWERS:
            parts = [f"no estimate: boot {progress.current.number + 1} takes longer than expected"]
    elif not uncounted:
        share = spent / (spent + left) if spent + left else 0.0
        parts = [f"about {format_duration(left)} left", f" ({source})"]
    else:
        parts = [f"at least {format_duration(left)} left", f", {uncounted}", f" ({source})"]
    return _join_left(share, [*parts, "; q leaves it running"], width)


def _find_left(progress: Progress, outlook: Outlook | None, now: float) -> tuple[float | None, str, str]:
    """Return the seconds left (None if unknown), the source of the estimate, and what it excludes."""
    measured = [boot for boot in progress.boots if boot.took is not None and not boot.error]
    expected = outlook.boots if outlook else None
    seen = {boot.arm for boot in measured}
    unseen = set(progress.design.order) - seen
    from_here = f"estimate from {pluralize(len(measured), 'boot')}" if measured else ""
    if expected is None or not unseen:
        return estimate_left(progress, now), from_here, ""
    if measured and not expected.whole:  # the arms then differ in their starts, not in their answers
        rest = statistics.median((boot.took or 0.0) - (boot.ready or 0.0) for boot in measured)
        boots = [None if start is None else rest + start for start in expected.seconds]
        modes = [arm.plan.mode for arm in progress.design.arms]
        slower = {modes[arm].value for arm in unseen if boots[arm] is None} - {Mode.EAGER.value}
        known = all(modes[arm] is Mode.EAGER for arm in seen) and slower
        new = f"a longer start with {' and '.join(sorted(slower))} not counted" if known else ""
        return estimate_left(progress, now, boots), from_here, new
    if not expected.source:
        return estimate_left(progress, now), from_here, ""
    before = expected.seconds if expected.whole else [seconds or 0.0 for seconds in expected.seconds]
    left = estimate_left(progress, now, before, whole=expected.whole)
    source = f"{from_here}, and {expected.source}" if measured else f"estimate {expected.source}"
    return left, source, "" if expected.whole else _ANSWERS


def _join_left(share: float | None, parts: Sequence[str], width: int) -> Content:
    """Return a progress bar and the first part, followed by the other parts that fit whole."""
    cells = 20 if width >= _ROOMY else 8
    drawn = "" if share is None else f"{draw_bar(share, cells).ljust(cells, '░')} {share * 100:.0f} %  "
    room, text = max(0, width - 2 - len(drawn)), parts[0]
    for part in parts[1:]:
        text += part if len(text) + len(part) <= room else ""
    return Content.assemble(("→ ", "$primary"), (drawn, "$series-a"), (truncate(text, room), "bold"))


def render_tune_remaining(progress: Progress, outcome: TuneOutcome, now: float, width: int) -> Content:
    """Return the spent budget, the best candidate so far, and the time left or how to resume."""
    best = format_best(progress.design, outcome)
    if progress.status == "finished":
        parts = ["all boots are over"]
    elif progress.status == "running":
        parts = [f"at most {format_duration(progress.left)} left", f"; {best}", "; q leaves it running"]
    else:
        parts = [f"{progress.status}; enter resumes it, k keeps the best", f"; {best}"]
    budget = progress.design.tuning.budget if progress.design.tuning else 0.0
    spent = 1.0 if progress.finished else min(1.0, measure_spent(progress, now) / budget) if budget else None
    return _join_left(spent, parts, width)
