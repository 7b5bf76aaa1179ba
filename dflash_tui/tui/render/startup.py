"""What is seen until a server is ready: steps and phases."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from msgspec.structs import replace
from textual.content import Content

from dflash_tui.common.formatting import draw_bar, format_duration, format_percent, truncate
from dflash_tui.events import Preparing, Step
from dflash_tui.monitoring.startup_history import _MIN_STEP_SECONDS, ExpectedStart, MedianSeconds, list_coming_steps
from dflash_tui.presentation.startup_text import (
    RowMark,
    Saved,
    StartupRow,
    build_startup_rows,
    find_silence,
    format_expected,
    format_ready_in,
    format_silence,
    list_facts,
)
from dflash_tui.run_state.state import RunState
from dflash_tui.tui.widgets.basic import MUTED

_NAME = 12
_BAR = 24
_SHARE = 16
_EXPECTED = 20
_TALL = 16  # fewer lines hold one line of facts
_COLOURS = {
    RowMark.DONE: "$success",
    RowMark.RUNNING: "$warning",
    RowMark.STALLED: "bold $warning",
    RowMark.FAILED: "$error",
    RowMark.TO_COME: MUTED,
}


def render_startup(
    state: RunState,
    now: float,
    width: int,
    height: int = 99,
    expected: ExpectedStart | None = None,
    *,
    usual: Mapping[Step, MedianSeconds] | None = None,
    saved: Saved | None = None,
    ahead: bool = True,
) -> Content:
    """Return the start in at most `height` lines: its steps and phases, what the server uses, and when it is ready.

    What is over is folded first, then what is to come; the running phase always has its row. `usual` says what the
    steps took in earlier runs, `saved` what measures saved in a phase; nothing is estimated unless it is `ahead`.
    """
    steps = _steps(state, now, width, usual or {})
    rows = build_startup_rows(state, now, expected, saved)
    if not rows:
        when = format_ready_in(state, now, expected, usual)
        below = [Content.assemble(("→ ", "$primary"), (truncate(when, width - 2), "bold"))] if when else []
        return Content("\n").join([*(steps or [Content.assemble(("preparing …", MUTED))]), *below])
    below = [*_facts(state, width, 1 if height < _TALL else 3)]
    if quiet := None if state.exit else find_silence(state, now, expected):
        colour = "$warning" if quiet.warning else MUTED
        lines = textwrap.wrap(format_silence(quiet), max(20, width - 2))[:3]
        below += [
            Content.assemble(("! " if not i else "  ", f"bold {colour}"), (line, colour))
            for i, line in enumerate(lines)
        ]
    if ahead and (when := format_ready_in(state, now, expected)):
        below.append(Content.assemble(("→ ", "$primary"), (truncate(when, width - 2), "bold")))
    room = max(3, height - len(below))
    longest = max((row.seconds or 0.0 for row in rows), default=0.0)
    timed = any(row.expected for row in rows)  # a column that would stay empty has no room
    drawn = [_row(row, longest, width, timed=timed) for row in rows]
    if height >= _TALL and len(steps) + len(rows) < room:
        title = "  expected here" if timed else ""
        steps.append(Content.assemble((f"  {'phase'.ljust(_NAME)}{'took':>7}{title}", MUTED)))
    drawn = steps + drawn if len(steps) + len(rows) <= room else _fold(rows, drawn, room, width)
    return Content("\n").join(drawn + below)


def _fold(rows: list[StartupRow], drawn: list[Content], room: int, width: int) -> list[Content]:
    """Return at most `room` lines: rows that are over become one line, then those to come another."""
    first = next((i for i, row in enumerate(rows) if row.mark not in {RowMark.DONE, RowMark.TO_COME}), len(rows) - 1)
    skipped = min(first, len(rows) - room + 1)
    took = sum(row.seconds or 0.0 for row in rows[:skipped])
    head = Content.assemble((f"✓ {skipped} phases".ljust(_NAME + 2), "$success"), f"{format_duration(took):>7}")
    lines = [head, *drawn[skipped:]] if skipped > 1 else drawn
    if len(lines) <= room:
        return lines
    left = len(lines) - room + 1
    expected = sum(row.expected.seconds for row in rows[-left:] if row.expected)
    about = f", ≈ {format_duration(expected)}" if expected else ""
    return [*lines[: room - 1], Content.assemble((truncate(f"· {left} more to come{about}", width), MUTED))]


def _facts(state: RunState, width: int, most: int) -> list[Content]:
    """Return what the server uses, as many facts per line as fit."""
    lines: list[list[tuple[str, str]]] = [[]]
    free = width
    for label, value in list_facts(state):
        needed = len(label) + len(value) + 4
        if needed > free and lines[-1]:
            lines.append([])
            free = width
        lines[-1].append((label, value))
        free -= needed
    drawn = []
    for facts in lines[:most] if lines[0] else []:
        parts = [part for label, value in facts for part in ((f"{label} ", MUTED), (f"{value}   ", "$foreground"))]
        drawn.append(Content.assemble(*parts).rstrip())
    return drawn


def _mark(over: bool) -> tuple[str, str]:
    return ("✓ ", "$success") if over else ("◐ ", "$warning")


def _steps(state: RunState, now: float, width: int, usual: Mapping[Step, MedianSeconds]) -> list[Content]:
    """Return a row for each step before the launch, and for those that are known to come."""
    took = {step: event.at - state.step_began[step] for step, event in state.preparing.items()}
    busy = {step for step, event in state.preparing.items() if not event.done or took[step] >= _MIN_STEP_SECONDS}
    expected_times = {step: format_expected(guess) for step, guess in usual.items() if step in busy}
    to_come = list_coming_steps(state.preparing, state.step_began, usual) if state.started_at is None else []
    timed = bool(expected_times or to_come)  # a column that would stay empty has no room
    rows = [
        _step(event, state.step_began[step], now, width, expected_times.get(step, ""), timed=timed)
        for step, event in state.preparing.items()
    ]
    rows += [
        _step(replace(event, text=f"{event.host}: {event.text}"), event.at, now, width, "", timed=timed)
        for event in state.far_steps.values()
    ]
    later = [f"· {step.value:<{_NAME}}{'':7}  {format_expected(usual[step])}" for step in to_come]
    return [*rows, *(Content.assemble((row, MUTED)) for row in later)]


def _step(event: Preparing, began: float, now: float, width: int, usual: str, *, timed: bool) -> Content:
    """Return a step's row with the time it took; one that had nothing to do took none.

    While it is silent the seconds since its last word go on, so that it never looks dead; beside what it usually takes
    they are those since it began.
    """
    since = format_duration(max(0.0, now - (began if usual else event.at)))
    if event.done:
        since = format_duration(event.at - began) if event.at > began else ""
    room, drawn = width - _NAME - 11 - (_EXPECTED if timed else 0), ""
    if event.fraction and not event.done:
        cells = _BAR if room >= 2 * _BAR else _BAR // 3 if room >= _BAR else 0  # before the text it falls away
        drawn = f"{draw_bar(event.fraction, cells).ljust(cells, '░')} {format_percent(event.fraction)} ".lstrip()
    return Content.assemble(
        _mark(event.done),
        (event.step.value.ljust(_NAME), "bold"),
        f"{since:>7}  ",
        (usual.ljust(_EXPECTED) if timed else "", MUTED),
        (drawn, "$series-a"),
        (truncate(event.text, max(10, room - len(drawn))), MUTED),
    )


def _row(row: StartupRow, longest: float, width: int, *, timed: bool) -> Content:
    """Return a phase: mark, name, seconds, what was expected, a bar where there is room, and the remark."""
    room = width - _NAME - 12 - (_EXPECTED if timed else 0)
    cells = _SHARE if room >= 4 * _SHARE else 0
    running = row.mark in {RowMark.RUNNING, RowMark.STALLED}
    drawn = draw_bar((row.seconds or 0.0) / longest if longest else 0.0, cells).ljust(cells)
    stalled = row.mark is RowMark.STALLED
    return Content.assemble(
        (f"{row.mark.value} ", _COLOURS[row.mark]),
        (row.name.ljust(_NAME), MUTED if row.mark is RowMark.TO_COME else "bold"),
        f"{'' if row.seconds is None else format_duration(row.seconds):>7}  ",
        (format_expected(row.expected).ljust(_EXPECTED) if timed else "", MUTED),
        (drawn + "  " if cells else "", "$series-a" if running else "$series-dim"),
        (
            truncate(row.note, room - (cells + 2 if cells else 0)),
            "$warning" if stalled else "$foreground" if running else MUTED,
        ),
    )
