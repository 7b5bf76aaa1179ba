"""What is seen until a server is ready: steps and phases."""

from __future__ import annotations

from textual.content import Content

from dflash_tui.core.events import Preparing
from dflash_tui.core.startup import PhaseSpan
from dflash_tui.core.state import RunState
from dflash_tui.text import cut, duration, percent
from dflash_tui.tui.widgets import MUTED, bar

_NAME = 9
_BAR = 24


def startup(state: RunState, now: float, width: int) -> Content:
    """Return one row per preparing step and per phase: mark, name, time or share, a bar or the text."""
    rows = [_step(event, now, width) for event in state.preparing.values()]
    spans = state.spans(now)
    longest = max((span.seconds for span in spans), default=0.0)
    rows += [_phase(state, span, longest, width) for span in spans]
    return Content("\n").join(rows or [Content.assemble(("preparing …", MUTED))])


def _mark(over: bool, failed: bool = False) -> tuple[str, str]:
    return ("✗ ", "$error") if failed else ("✓ ", "$success") if over else ("◐ ", "$warning")


def _step(event: Preparing, now: float, width: int) -> Content:
    """Return a step's row; while it is silent the seconds since its last word go on, so that it never looks dead."""
    since = "" if event.done else duration(max(0.0, now - event.at))
    drawn = ""
    if event.fraction and not event.done:
        drawn = f"{bar(event.fraction, _BAR).ljust(_BAR, '░')} {percent(event.fraction)} "
    text = cut(event.text, max(10, width - _NAME - 10 - len(drawn)))
    return Content.assemble(
        _mark(event.done),
        (event.step.value.ljust(_NAME), "bold"),
        f"{since:>6}  ",
        (drawn, "$series-a"),
        (text, MUTED),
    )


def _phase(state: RunState, span: PhaseSpan, longest: float, width: int) -> Content:
    failed = state.exit is not None and state.ready_at is None and span.phase is list(state.phases)[-1]
    note = ""
    if state.progress and state.progress.phase is span.phase and not span.over:
        note = f"{state.progress.done}/{state.progress.total} "
    room = max(0, width - _NAME - 10 - len(note))
    drawn = bar(span.seconds / longest if longest else 0.0, room)
    return Content.assemble(
        _mark(span.over, failed),
        (span.phase.value.ljust(_NAME), "bold"),
        f"{duration(span.seconds):>6}  ",
        (note, "bold"),
        (drawn, "$series-dim" if span.over else "$series-a"),
    )
