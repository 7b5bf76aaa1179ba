"""Alarms on the run screen, a line for each, and the dialog that shows all of them in full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from dflash_tui.common.formatting import format_duration, name_commands, truncate
from dflash_tui.run_state.alarms import Alarm
from dflash_tui.tui.dialogs.basic import Dialog
from dflash_tui.tui.widgets.basic import MUTED

NONE = "no alarms"


def render_alarms(alarms: Sequence[Alarm], now: float, width: int, rows: int, calm: str = "") -> Content:
    """Return the worst alarms in `rows` lines, the last of which says how many more there are.

    `calm` is written beside "no alarms".
    """
    if not alarms:
        return Content.assemble(("✓ ", "$success"), NONE, (f" · {calm}" if calm else "", MUTED))
    lines = []
    for place, alarm in enumerate(alarms[:rows]):
        more = len(alarms) - rows if place == rows - 1 else 0
        since = f" {format_duration(max(0.0, now - alarm.since))}"
        tail = f"  {alarm.evidence} → {name_commands(alarm.hint)}"
        is_cut = len(alarm.what) + 2 + len(since) + len(tail) > width
        overflow = f"  +{more} more: !" if more > 0 else "  in full: !" if is_cut else ""
        head = truncate(f"! {alarm.what}", max(10, width - len(since) - len(overflow)))
        tail = truncate(tail, max(0, width - len(head) - len(since) - len(overflow)))
        lines.append(Content.assemble((head, "bold $error"), (since, "bold"), tail, (overflow, "bold")))
    return Content("\n").join(lines)


class AlarmDialog(Dialog[None]):
    """Lists the alarms with their evidence and what to do."""

    HEADING: ClassVar = "alarms"
    BINDINGS: ClassVar = [Binding("escape,enter,exclamation_mark,q", "dismiss", "close", key_display="esc")]

    def __init__(self, alarms: Sequence[Alarm], now: float) -> None:
        super().__init__()
        self.alarms, self.now = alarms, now

    def compose(self) -> ComposeResult:
        rows = []
        for alarm in self.alarms:
            since = f"{format_duration(max(0.0, self.now - alarm.since))}, {alarm.kind}"
            rows += [
                Content.assemble(("! ", "bold $error"), (alarm.what, "bold"), (f"\n  for {since}", MUTED)),
                Content(f"  {alarm.evidence}"),
                Content.assemble(("  → ", "bold $primary"), f"{name_commands(alarm.hint)}\n"),
            ]
        with VerticalScroll(classes="dialog"):
            yield Static(Content("\n").join(rows or [Content(NONE)]), markup=False)
