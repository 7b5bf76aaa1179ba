"""A running experiment as Textual content: how much is left, what is measured now, the speeds until now. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from textual.content import Content

from dflash_tui.common.formatting import draw_bar, format_duration, format_number, pluralize, truncate
from dflash_tui.events import RequestDone
from dflash_tui.experiments.analysis.measures import median_speed
from dflash_tui.experiments.builder import BootEstimate
from dflash_tui.experiments.progress import Progress, estimate_left
from dflash_tui.monitoring.startup_history import RecordedStart
from dflash_tui.presentation.experiment_report import arm_letter, arm_mark, name_arm
from dflash_tui.presentation.experiment_text import STAGES
from dflash_tui.presentation.report import Bar, Bars, Note, Span
from dflash_tui.tui.render.report import arm_color, to_content
from dflash_tui.tui.widgets.chart import ChartLine

_ROOMY = 100
_LEAST_SPAN = 60.0
# Of seconds that are left while a boot goes on: fewer say that what was known of it is used up.
_LEAST_LEFT = 1.0
# Under these names a boot shows requests that do not count.
UNCOUNTED = frozenset({"cold", "warm-up"})


class Outlook(NamedTuple):
    """What is known of an experiment before its first boot is over."""

    boots: BootEstimate
    """How long its boots take."""
    kinds: tuple[str, ...] = ()
    """The kinds of prompts that it measures, none when it measures starts or its suite is gone."""
    starts: tuple[tuple[RecordedStart, ...], ...] = ()
    """The earlier starts on this machine of what each arm launches."""


class MeasuredSpeed(NamedTuple):
    """A request that counts, and the arm that answered it."""

    arm: int
    request: RequestDone


def list_speeds(progress: Progress, current: Sequence[RequestDone]) -> list[MeasuredSpeed]:
    """Return the requests that count, of boots that are over and those of the `current` one."""
    over = [MeasuredSpeed(boot.arm, done) for boot in progress.boots for done in boot.requests]
    here = [MeasuredSpeed(progress.current.arm, done) for done in current] if progress.current else []
    return [speed for speed in (*over, *here) if not speed.request.error and speed.request.decode_tok_s is not None]


def describe_stage(progress: Progress) -> str:
    """Return what the current boot does now; empty between two boots."""
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
    """Return what each boot does, for who waits for the next one."""
    design = progress.design
    start = "launches a server of its own and waits until it is ready"
    if design.measures_start:
        return f"each boot {start}, and stops it"
    counted = f"{pluralize(progress.due, 'request')} that count" if progress.due else "the requests that count"
    return f"each boot {start}, sends one request alone, a warm-up and {counted}, and stops it"


def render_left(progress: Progress, outlook: Outlook | None, now: float, width: int) -> Content:
    """Return how far an experiment is, when it will be over, or how it goes on."""
    if progress.status == "finished":
        return _join_left(1.0, ["all boots are over"], width)
    if progress.status != "running":
        why = f": {progress.halted}" if progress.halted else ": the driver exited without logging an error"
        return _join_left(None, [f"{progress.status}{why}; r resumes it"], width)
    left, source, whole = _find_left(progress, outlook, now)
    under_way = max(0.0, now - progress.current.began) if progress.current else 0.0
    spent = progress.spent + under_way
    share = len(progress.boots) / max(1, len(progress.design.order))
    if left is None or left < _LEAST_LEFT:
        late = progress.current is not None and bool(source) and whole
        parts = [_explain_no_estimate(progress, late=late)]
    elif whole:
        share = spent / (spent + left) if spent + left else 0.0
        parts = [f"about {format_duration(left)} left", f" ({source})"]
    else:
        parts = [f"at least {format_duration(left)} left", ", the answers not counted", f" ({source})"]
    return _join_left(share, [*parts, "; q leaves it running"], width)


def _explain_no_estimate(progress: Progress, *, late: bool) -> str:
    """Return why nobody knows how much is left; `late` is whether the boot takes longer than what was known of it."""
    if late and progress.current:
        return f"no estimate: boot {progress.current.number + 1} takes longer than expected"
    return "no estimate" if progress.boots else "no estimate until the first boot is over"


def _find_left(progress: Progress, outlook: Outlook | None, now: float) -> tuple[float | None, str, bool]:
    """Return the seconds that are left, by what that is known, empty for nothing, and whether answers are counted."""
    measured = [boot for boot in progress.boots if boot.took is not None and not boot.error]
    expected = outlook.boots if outlook else None
    unseen = set(progress.design.order) - {boot.arm for boot in measured}
    from_here = f"estimate from {pluralize(len(measured), 'boot')}" if measured else ""
    if expected is None or not unseen or (measured and not expected.whole):
        return estimate_left(progress, now), from_here, True
    if not expected.source:
        return estimate_left(progress, now), from_here, True
    before = expected.seconds if expected.whole else [seconds or 0.0 for seconds in expected.seconds]
    left = estimate_left(progress, now, before, whole=expected.whole)
    source = f"{from_here}, and {expected.source}" if measured else f"estimate {expected.source}"
    return left, source, expected.whole


def _join_left(share: float | None, parts: Sequence[str], width: int) -> Content:
    """Return a bar and the first part, with those of the others that fit beside it whole."""
    cells = 20 if width >= _ROOMY else 8
    drawn = "" if share is None else f"{draw_bar(share, cells).ljust(cells, '░')} {share * 100:.0f} %  "
    room, text = max(0, width - 2 - len(drawn)), parts[0]
    for part in parts[1:]:
        text += part if len(text) + len(part) <= room else ""
    return Content.assemble(("→ ", "$primary"), (drawn, "$series-a"), (truncate(text, room), "bold"))


def render_budget(progress: Progress, parts: Sequence[str], now: float, width: int) -> Content:
    """Return how much of a tune's budget is spent, as a bar before those of `parts` that fit."""
    budget = progress.design.tuning.budget if progress.design.tuning else 0.0
    under_way = max(0.0, now - progress.current.began) if progress.current and progress.driven else 0.0
    spent = 1.0 if progress.finished else min(1.0, (progress.spent + under_way) / budget) if budget else None
    return _join_left(spent, parts, width)


def render_prompts(
    progress: Progress, speeds: Sequence[MeasuredSpeed], kinds: Sequence[str], width: int, rows: int
) -> Content:
    """Return the median tok/s of each kind of prompt and each arm until now, as bars on one scale.

    Args:
        progress: how far it is.
        speeds: the requests that count.
        kinds: the kinds of prompts that are going to be measured, those of `speeds` besides.
        width: of the lines.
        rows: how many lines at most.
    """
    by_kind: dict[str, dict[int, list[float]]] = {kind: {} for kind in kinds}
    for arm, done in speeds:
        kind = done.kind + (f" ×{done.streams}" if done.streams != 1 else "")
        by_kind.setdefault(kind, {}).setdefault(arm, []).append(done.decode_tok_s or 0.0)
    # A kind that was asked at several numbers of streams is named by these, and by itself no longer.
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


def build_speed_lines(
    progress: Progress, speeds: Sequence[MeasuredSpeed], now: float, columns: int
) -> tuple[list[ChartLine], float]:
    """Return the tok/s of the requests over the time that they took, a line for each arm, and the seconds covered."""
    began = [boot.began for boot in progress.boots if boot.began]
    began += [progress.current.began] if progress.current else []
    end = now if progress.driven else max((speed.request.at for speed in speeds), default=now)
    span = max(_LEAST_SPAN, end - min(began, default=end))
    lines = []
    for arm in range(len(progress.design.arms)):
        values = [math.nan] * columns
        for _, done in (speed for speed in speeds if speed.arm == arm):
            first, last = (int((at - end + span) / span * columns) for at in (done.at - (done.total or 0.0), done.at))
            for place in range(max(0, first), min(columns - 1, last) + 1):
                values[place] = done.decode_tok_s or 0.0
        lines.append(ChartLine(values, arm_color(arm).lstrip("$"), name_arm(progress.design, arm, 16)))
    return lines, span


def build_search_lines(progress: Progress) -> tuple[list[ChartLine], list[str]]:
    """Return the median tok/s of each boot of a tune and the best until then, and the numbers of the boots."""
    speeds = [
        (boot.number + 1, math.nan if (speed := median_speed(boot)) is None else speed) for boot in progress.boots
    ]
    best, highest = [], math.nan
    for _, speed in speeds:
        highest = speed if math.isnan(highest) else highest if math.isnan(speed) else max(highest, speed)
        best.append(highest)
    lines = [
        ChartLine([speed for _, speed in speeds], "series-a", "this boot"),
        ChartLine(best, "series-dim", "fastest boot so far"),
    ]
    return lines, [str(number) for number, _ in speeds]
