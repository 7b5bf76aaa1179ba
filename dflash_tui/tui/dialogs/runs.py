"""The runs of this machine, to switch between: living ones are attached, ended ones are played; and the sample."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import ClassVar, NamedTuple

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import format_duration, pluralize, truncate_middle
from dflash_tui.events import Exited, Stopping
from dflash_tui.monitoring import export, recording
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.basic import ErrorDialog
from dflash_tui.tui.screens.startup_history import HistoryScreen
from dflash_tui.tui.widgets.basic import MUTED

_MARKS = {
    "running": ("●", "$success"),
    "stopped": ("■", "$foreground"),
    "died": ("✗", "$error"),
    "ended": ("■", MUTED),
    "sample": ("▶", "$accent"),
}
_MOST = 200


class RunRow(NamedTuple):
    """A run as it is listed: `how` is running, stopped, died, ended (nobody saw how) or sample."""

    run: Run
    how: str
    seconds: float


def list_run_rows(now: float) -> list[RunRow]:
    """Return the runs, the newest first, and the sample at the end; what ended is known by the end of its samples."""
    rows = [_row(run, now) for run in reversed(registry.list_runs())][:_MOST]
    sample = recording.read_recording(paths.sample_folder())
    return [*rows, RunRow(sample, "sample", sample.last_event_time() - sample.started_at)]


def _row(run: Run, now: float) -> RunRow:
    if server_process.is_alive(run):
        return RunRow(run, "running", now - run.started_at)
    try:
        found = recording.open_recording(run)
        last, lasted = found.last_recorded_events(), found.last_event_time() - run.started_at
    except DflashError:
        return RunRow(run, "ended", 0.0)
    stopped = any(isinstance(event, Stopping) for event in last)
    seen = any(isinstance(event, Exited) for event in last)
    return RunRow(run, "stopped" if stopped else "died" if seen else "ended", lasted)


def render_run_row(row: RunRow, width: int) -> Content:
    """Return a run in a line: how it is, its recipe, when it was launched, mode, port, how long it lasted, where.

    ↻ is one that was launched in place of a server that had died.
    """
    run, plan, (mark, color) = row.run, row.run.plan, _MARKS[row.how]
    where = "CPU" if plan.on_cpu else pluralize(len(plan.gpus), "GPU") if len(plan.gpus) > 1 else plan.hardware.value
    room = max(12, width - 57)
    recipe = f"{'↻ ' if run.restarted_from else ''}{plan.recipe}"
    launched = time.strftime("%m-%d %H:%M", time.gmtime(run.started_at + run.utc_offset))
    return Content.assemble(
        (f"{mark} ", color),
        (f"{row.how:<9}", "bold"),
        f"{truncate_middle(recipe, room):<{room}} {launched}  {plan.mode.value:<8}:{plan.port:<6}",
        f"{format_duration(row.seconds):>8}  {truncate_middle(where, 9)}",
    )


class RunList(ModalScreen[Run]):
    """Lists the runs; closes with the one that was chosen, or None."""

    BINDINGS: ClassVar = [
        Binding("escape,q,r", "dismiss", "close"),
        Binding("x", "export", "export"),
        Binding("h", "history", "history"),
    ]

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        super().__init__()
        self.now = now
        self.rows: list[RunRow] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide"):
            yield Static(Content.assemble(("runs", "bold"), "  looking …"), id="head-of-runs")
            yield OptionList(id="runs", markup=False)
            keys = "\nenter  watch or play   x  export   h  compare starts   esc  close"
            yield Static(Content(keys), classes="muted")

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()
        self.look()

    @work(exclusive=True)
    async def look(self) -> None:
        """Read how the runs stand, away from the screen's own thread."""
        self.rows = await asyncio.to_thread(list_run_rows, self.now())
        living = sum(row.how == "running" for row in self.rows)
        said = f"  {living} running, {len(self.rows) - 1 - living} ended, and the sample"
        self.query_one("#head-of-runs", Static).update(Content.assemble(("runs", "bold"), said))
        options = self.query_one(OptionList)
        width = options.scrollable_content_region.width - 2
        options.add_options([Option(render_run_row(row, width)) for row in self.rows])
        options.highlighted = 0

    @on(OptionList.OptionSelected)
    def _selected(self, message: OptionList.OptionSelected) -> None:
        self.dismiss(self.rows[message.option_index].run)

    def action_history(self) -> None:
        self.app.push_screen(HistoryScreen())

    def action_export(self) -> None:
        index = self.query_one(OptionList).highlighted
        if index is not None and self.rows[index].how != "sample":
            self.export(self.rows[index].run)

    @work(exclusive=True, group="export")
    async def export(self, run: Run) -> None:
        """Write `run` into a file in the folder that we were started in."""
        try:
            path = await asyncio.to_thread(export.export_run, run)
        except DflashError as error:
            self.app.push_screen(ErrorDialog(error))
            return
        self.notify(f"written to {path}, without tokens and prompts", markup=False)
