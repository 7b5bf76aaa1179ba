"""Experiments as Textual content: state, measurements and outcome of an A/B or a tune. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from textual.content import Content

from dflash_tui.common.formatting import (
    draw_bar,
    format_duration,
    format_number,
    pluralize,
    shorten_names,
    truncate,
    truncate_middle,
)
from dflash_tui.events import RequestDone
from dflash_tui.experiments.analysis.report import ExperimentReport, TuneOutcome
from dflash_tui.experiments.builder import BootEstimate
from dflash_tui.experiments.design import CONFIRM, PUBLISHED, Boot, Design, RoundBegan
from dflash_tui.experiments.progress import Progress, estimate_left
from dflash_tui.experiments.tune_schedule import is_faster
from dflash_tui.monitoring.startup_history import RecordedStart
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.presentation import experiment_text
from dflash_tui.presentation.experiment_report import (
    arm_letter,
    arm_mark,
    count_requests,
    describe_certainty,
    describe_variation,
    name_arm,
)
from dflash_tui.presentation.experiment_text import STAGES, CandidateRow
from dflash_tui.presentation.report import Bar, Bars, Note, Part, Span, lay_out
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
    return Content.assemble(
        (f"{arm_mark(arm)} ", arm_color(arm)),
        (name_arm(design, arm, width), "bold"),
    )


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
        under_way = now - progress.current.began if progress.current and progress.driven else 0.0
        spent = format_duration(progress.spent + max(0.0, under_way))
        facts = [
            f"  {spent} of {format_duration(design.tuning.budget)}",
            f" · {pluralize(len(design.arms), 'setting')}",
        ]
    else:
        since = f" · for {format_duration(measure_running(progress, now))}" if word == "running" else ""
        varied = _describe_in(design, width - _PADDING - head.cell_length).plain
        facts = [varied, f" · {'honest' if design.honest else 'quick'}", since]
    return join_fitting([head, *(Content.assemble((fact, MUTED)) for fact in facts)], width - _PADDING)


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
        signs += [(f" {arm_letter(arm)}{sign} ", style), " "]
    first = max(0, min(here - rows // 2, len(design.order) - rows))
    lines = [Content.assemble(("order  ", MUTED), *signs)]
    numbers = range(first, min(len(design.order), first + rows))
    lines += [_render_boot(progress, number, over.get(number), now, width) for number in numbers]
    return Content("\n").join(lines)


def _render_boot(progress: Progress, number: int, boot: Boot | None, now: float, width: int) -> Content:
    design, current = progress.design, progress.current
    arm = design.order[number]
    lengths = [len(name_arm(design, place, 16)) for place in range(len(design.arms))]
    pad = " " * (max(lengths) - lengths[arm] + 2)
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


_SERIES = ("$series-a", "$series-b", "$series-c")
_STYLES = {
    "": "",
    "bold": "bold",
    "dim": MUTED,
    "head": MUTED,
    "✗": "bold $error",
    "!": "bold $warning",
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


_ROOMY = 100
# Seconds left; a lower estimate means that the boot has exceeded its expected time.
_LEAST_LEFT = 1.0
# The names of requests that are not counted.
UNCOUNTED = frozenset({"cold", "warm-up"})
_ANSWERS = "the answers not counted"


class Outlook(NamedTuple):
    """Estimates for an experiment that do not come from its own boots."""

    boots: BootEstimate
    """The expected duration of its boots."""
    kinds: tuple[str, ...] = ()
    """The kinds of its prompts; empty if it measures starts or its suite is missing."""
    starts: tuple[tuple[RecordedStart, ...], ...] = ()
    """Earlier starts on this machine, per arm."""


class MeasuredSpeed(NamedTuple):
    """A counted request and its arm."""

    arm: int
    request: RequestDone


def list_speeds(progress: Progress, current: Sequence[RequestDone]) -> list[MeasuredSpeed]:
    """Return the counted requests of finished boots and of the `current` one."""
    over = [MeasuredSpeed(boot.arm, done) for boot in progress.boots for done in boot.requests]
    here = [MeasuredSpeed(progress.current.arm, done) for done in current] if progress.current else []
    return [speed for speed in (*over, *here) if not speed.request.error and speed.request.decode_tok_s is not None]


def describe_stage(progress: Progress) -> str:
    """Return the current boot's stage, or "" between boots."""
    current = progress.current
    if current is None:
        return ""
    if current.stage != "round":
        return STAGES.get(current.stage, current.stage)
    if not progress.due:
        return f"measuring, {pluralize(current.requests, 'request')} answered"
    if current.requests >= progress.due:
        return f"all {pluralize(progress.due, 'request')} answered"
    return f"measuring, request {current.requests + 1} of {progress.due}"


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
    under_way = max(0.0, now - progress.current.began) if progress.current else 0.0
    spent = progress.spent + under_way
    share = len(progress.boots) / max(1, len(progress.design.order))
    if left is None or left < _LEAST_LEFT:
        late = progress.current is not None and bool(source) and uncounted != _ANSWERS
        parts = [_explain_no_estimate(progress, late=late)]
    elif not uncounted:
        share = spent / (spent + left) if spent + left else 0.0
        parts = [f"about {format_duration(left)} left", f" ({source})"]
    else:
        parts = [f"at least {format_duration(left)} left", f", {uncounted}", f" ({source})"]
    return _join_left(share, [*parts, "; q leaves it running"], width)


def _explain_no_estimate(progress: Progress, *, late: bool) -> str:
    """Return why there is no estimate; `late` is True if the boot exceeds its expected time."""
    if late and progress.current:
        return f"no estimate: boot {progress.current.number + 1} takes longer than expected"
    return "no estimate" if progress.boots else "no estimate until the first boot is over"


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


def render_budget(progress: Progress, parts: Sequence[str], now: float, width: int) -> Content:
    """Return the spent share of a tune's budget as a bar, followed by the `parts` that fit."""
    budget = progress.design.tuning.budget if progress.design.tuning else 0.0
    under_way = max(0.0, now - progress.current.began) if progress.current and progress.driven else 0.0
    spent = 1.0 if progress.finished else min(1.0, (progress.spent + under_way) / budget) if budget else None
    return _join_left(spent, parts, width)


def render_prompts(
    progress: Progress, speeds: Sequence[MeasuredSpeed], kinds: Sequence[str], width: int, rows: int
) -> Content:
    """Return the median tok/s so far per kind of prompt and arm, as bars on one scale."""
    by_kind: dict[str, dict[int, list[float]]] = {kind: {} for kind in kinds}
    for arm, done in speeds:
        kind = done.kind + (f" ×{done.streams}" if done.streams != 1 else "")
        by_kind.setdefault(kind, {}).setdefault(arm, []).append(done.decode_tok_s or 0.0)
    # A kind measured at several numbers of streams is listed once per number, not under its plain name.
    measured = {name.partition(" ×")[0] for name, arms in by_kind.items() if arms}
    named = {kind: arms for kind, arms in by_kind.items() if arms or kind not in measured}
    arms = range(len(progress.design.arms))
    medians = {(kind, arm): statistics.median(values) for kind, by in named.items() for arm, values in by.items()}
    most = max(medians.values(), default=0.0) or 1.0
    bars = [
        Bar(
            kind,
            Span(f"{arm_mark(arm)} {arm_letter(arm)}", f"arm {arm}"),
            medians[kind, arm] / most if (kind, arm) in medians else None,
            f"{format_number(medians.get((kind, arm)))} {_count(len(named[kind].get(arm, ()))):<12}",
        )
        for kind in named
        for arm in arms
    ]
    if len(bars) <= rows:
        return to_content([Bars(tuple(bars))], width)
    kind_count = max(1, (rows - 1) // max(1, len(arms)))
    hidden = Note(f"… and {pluralize(len(named) - kind_count, 'kind')} of prompts", style="dim")
    return Content("\n").join(
        to_content([Bars(tuple(bars[: kind_count * len(arms)])), hidden], width).split("\n")[:rows]
    )


def _count(requests: int) -> str:
    return pluralize(requests, "request") if requests else ""


_MARKS = {
    "ahead": ("▲", "$success"),
    "in the field": ("●", "$primary"),
    "to come": ("·", MUTED),
    "no figures": ("?", "$accent"),
    "out": ("▾", MUTED),
    "failed": ("✗", "$error"),
}
_PLACES = list(_MARKS)
# The cells of the figures behind a bar, and of the word behind those.
_FIGURES, _WORD = 25, 13


def render_rounds(progress: Progress, width: int, rows: int) -> Content:
    """Return a line per varied setting: the number of candidates in each round, and the best."""
    stages = [
        list(search_round) for _, search_round in groupby(progress.rounds, key=lambda search_round: search_round.key)
    ]
    if not stages:
        return Content.assemble(("the published setting first; what is tried follows from it", MUTED))
    lines = [
        _render_stage(progress, stage, width, live=place == len(stages) - 1 and not progress.finished)
        for place, stage in enumerate(stages)
    ]
    return Content("\n").join(lines[-rows:])


def _render_stage(progress: Progress, rounds: Sequence[RoundBegan], width: int, *, live: bool) -> Content:
    last, arms = rounds[-1], progress.design.arms
    name = {CONFIRM: "to be sure", PUBLISHED: "once more"}.get(last.key, last.key)
    sizes = " → ".join(str(len(search_round.field)) for search_round in rounds)
    if last.key == CONFIRM:
        sizes = pluralize(sum(len(search_round.order) for search_round in rounds), "boot")
    names = [arms[arm].name for arm in last.field]
    mark = ("◐ ", "$warning") if live and progress.driven else ("! ", "$error") if live else ("✓ ", "$success")
    head = f"{truncate_middle(name, 26):<26} {sizes:<12} "
    return Content.assemble(mark, (head, "bold" if live else ""), (_join_names(names, width - len(head) - 2), MUTED))


def _join_names(names: Sequence[str], room: int) -> str:
    """Return the names that fit and the number of the others; a single name is truncated."""
    for count in range(len(names), 0, -1):
        others = f", +{len(names) - count}" if count < len(names) else ""
        text = ", ".join(names[:count]) + others
        if len(text) <= room:
            return text
    text = names[0] if len(names) == 1 else pluralize(len(names), "setting")
    return truncate_middle(text, max(0, room))


def render_field(progress: Progress, width: int, rows: int) -> Content:
    """Return a line per candidate: bar, tok/s, boots, standing; the relevant ones first, the rest counted."""
    candidates = experiment_text.list_candidates(progress)
    most = max((candidate.tok_s for candidate in candidates if candidate.tok_s), default=0.0)
    ranked = sorted(candidates, key=lambda candidate: (_PLACES.index(candidate.standing), candidate.arm != 0))
    visible, hidden = (ranked, []) if len(ranked) <= rows else (ranked[: rows - 1], ranked[rows - 1 :])
    name = max(12, min(44, max(len(candidate.name) for candidate in candidates), width // 2 - 4))
    here = progress.current.arm if progress.current and progress.driven else None
    short_names = shorten_names((candidate.name for candidate in ranked), name)
    lines = [
        _render_candidate(candidate, most, f"{short_names[candidate.name]:<{name}}", width, here=candidate.arm == here)
        for candidate in visible
    ]
    if hidden:
        lines.append(Content.assemble((f"  … and {pluralize(len(hidden), 'setting')} that are out or failed", MUTED)))
    return Content("\n").join(lines)


def _render_candidate(candidate: CandidateRow, most: float, label: str, width: int, *, here: bool) -> Content:
    mark, color = _MARKS[candidate.standing]
    style = MUTED if candidate.standing in {"out", "failed", "to come"} and not here else "$foreground"
    head = Content.assemble((f"{mark} ", color), (f"{label} ", style))
    if candidate.standing == "failed":
        return head + Content.assemble((truncate(candidate.why, max(0, width - len(head))), "$error"))
    room = width - len(head) - _FIGURES - _WORD
    # They are dropped before the standing is truncated.
    boots = f"  {pluralize(candidate.boots, 'boot'):<9}" if room >= 0 else ""
    figures, room = f"{format_number(candidate.tok_s, 1):>8} tok/s{boots}", max(0, room)
    bar = draw_bar(candidate.tok_s / most, room) if candidate.tok_s and most and room > 3 else ""
    word = "measuring" if here else candidate.standing
    return head + Content.assemble(
        (f"{bar:<{room}}" if room > 3 else "", color), (figures, style), (f" {word}", "bold" if here else color)
    )


def render_tune_remaining(progress: Progress, outcome: TuneOutcome, now: float, width: int) -> Content:
    """Return the spent budget, the best candidate so far, and the time left or how to resume."""
    best = experiment_text.format_best(progress.design, outcome)
    if progress.status == "finished":
        parts = ["all boots are over"]
    elif progress.status == "running":
        parts = [f"at most {format_duration(progress.left)} left", f"; {best}", "; q leaves it running"]
    else:
        parts = [f"{progress.status}; enter resumes it, k keeps the best", f"; {best}"]
    return render_budget(progress, parts, now, width)


def list_outcome_notes(design: Design, boots: Sequence[Boot], outcome: TuneOutcome) -> list[Note]:
    """Return the outcome of a tune: the best first, with a star if it is shown to be faster."""
    first, *details = experiment_text.list_outcome_lines(design, boots, outcome)
    return [Note(first, "★" if is_faster(outcome) else "=", "bold"), *(Note(line, " ", "dim") for line in details)]
