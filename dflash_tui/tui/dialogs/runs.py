"""The list of runs: running servers are watched, finished runs are replayed; and the sample recording."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, NamedTuple

from textual import work
from textual.binding import Binding
from textual.content import Content

from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import format_duration, pluralize, shorten_names, truncate_middle
from dflash_tui.events import Exited, Stopping
from dflash_tui.monitoring import recording
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.basic import ErrorDialog
from dflash_tui.tui.dialogs.list import ListDialog
from dflash_tui.tui.screens.startup_history import HistoryScreen
from dflash_tui.tui.widgets.basic import MUTED_ROW, list_broken_options

_MARKS = {
    "running": ("●", "$success"),
    "stopped": ("■", "$foreground"),
    "failed": ("✗", "$error"),
    "exited": ("■", MUTED_ROW),
    "sample": ("▶", "$accent"),
}
_MOST = 200
_STATUS, _LAUNCHED = 11, 12


class _Column(NamedTuple):
    name: str
    width: int


# The most important first: what follows falls away where there is too little room.
_COLUMNS = (
    _Column("launched", _LAUNCHED),
    _Column("took", 9),
    _Column("port", 8),
    _Column("mode", 9),
    _Column("where", 11),
)


class RunRow(NamedTuple):
    """A run as it is listed: `status` is running, stopped, failed, exited (cause unknown) or sample."""

    run: Run
    status: str
    seconds: float


def list_run_rows(now: float) -> list[RunRow]:
    """Return the runs, the newest first, and the sample last; how a run ended is read from its last samples."""
    rows = [_read_row(run, now) for run in reversed(registry.list_runs())][:_MOST]
    sample = recording.read_recording(paths.sample_folder())
    return [*rows, RunRow(sample, "sample", sample.last_event_time() - sample.started_at)]


def _read_row(run: Run, now: float) -> RunRow:
    if server_process.is_alive(run):
        return RunRow(run, "running", server_process.measure_age(run, now))
    try:
        recorded = recording.open_recording(run)
        last_events, seconds = recorded.last_recorded_events(), recorded.last_event_time() - run.started_at
    except DflashError:
        return RunRow(run, "exited", 0.0)
    stopped = any(isinstance(event, Stopping) for event in last_events)
    exited = any(isinstance(event, Exited) for event in last_events)
    return RunRow(run, "stopped" if stopped else "failed" if exited else "exited", seconds)


def render_run_rows(rows: Sequence[RunRow], width: int) -> list[Content]:
    """Return a line for each run: status, recipe, time of the launch, mode, port, duration, GPU.

    The time has the room first, since the same recipe is launched again and again, then the recipe's name. ↻ marks a
    run that was launched to replace a server that had failed.
    """
    names = [f"{'↻ ' if row.run.restarted_from else ''}{row.run.plan.recipe}" for row in rows]
    short_names = shorten_names(names, max(1, width - _STATUS - _LAUNCHED))
    name = max(map(len, short_names.values()), default=0)
    columns: list[str] = []
    left = width - _STATUS - name
    for column in _COLUMNS:
        if column.width <= left:
            columns, left = [*columns, column.name], left - column.width
    return [
        _render_run_row(row, f"{short_names[text]:<{name}}", columns) for row, text in zip(rows, names, strict=True)
    ]


def _render_run_row(row: RunRow, name: str, columns: Collection[str]) -> Content:
    run, plan, (mark, color) = row.run, row.run.plan, _MARKS[row.status]
    where = "CPU" if plan.on_cpu else pluralize(len(plan.gpus), "GPU") if len(plan.gpus) > 1 else plan.hardware.value
    cells = {
        "launched": time.strftime(" %m-%d %H:%M", time.gmtime(run.started_at + run.utc_offset)),
        "mode": f"  {plan.mode.value:<7}",
        "port": f"  {f':{plan.port}':<6}",
        "took": f" {format_duration(row.seconds):>8}",
        "where": f"  {truncate_middle(where, 9)}",
    }
    cell_text = "".join(cell for column, cell in cells.items() if column in columns)
    return Content.assemble((f"{mark} ", color), (f"{row.status:<9}", "bold"), name, cell_text)


class RunList(ListDialog[Run]):
    """Lists the runs; closes with the selected one, or None."""

    HEADING: ClassVar = "runs"
    BINDINGS: ClassVar = [
        Binding("enter", "choose", "watch or replay", key_display="⏎", priority=True),
        Binding("x", "export", "export"),
        Binding("h", "history", "history"),
        Binding("escape,q,r", "leave", "close", key_display="esc"),
    ]

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        super().__init__()
        self.now = now
        self.runs: list[RunRow] = []

    def on_mount(self) -> None:
        self.show_heading("reading …")
        self.load_rows()

    @work(exclusive=True)
    async def load_rows(self) -> None:
        """Read the status of the runs in a thread."""
        self.runs = await asyncio.to_thread(list_run_rows, self.now())
        broken = await asyncio.to_thread(registry.list_broken_runs)
        running = sum(row.status == "running" for row in self.runs)
        self.show_heading(f"{running} running, {len(self.runs) - 1 - running} finished, and the sample")
        width = self.row_width
        self.show_rows([*render_run_rows(self.runs, width), *list_broken_options(broken, width)])

    def action_choose(self) -> None:
        self.dismiss(self.runs[self.place].run)

    def action_history(self) -> None:
        self.app.push_screen(HistoryScreen())

    def action_export(self) -> None:
        if self.runs and self.runs[self.place].status != "sample":
            self.export(self.runs[self.place].run)

    @work(exclusive=True, group="export")
    async def export(self, run: Run) -> None:
        """Write `run` into a file in the current folder."""
        try:
            path = await asyncio.to_thread(recording.export_run, run)
        except DflashError as error:
            self.app.push_screen(ErrorDialog(error))
            return
        self.notify(f"written to {path}, without tokens and prompts", markup=False)
