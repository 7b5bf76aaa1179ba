"""The list of runs (running servers are watched, finished runs replayed) and the history of starts."""

from __future__ import annotations

import asyncio
import textwrap
import time
from collections.abc import Callable, Collection, Sequence
from itertools import groupby
from typing import ClassVar, NamedTuple

from textual import work
from textual.binding import Binding
from textual.content import Content

from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import (
    UNKNOWN,
    format_duration,
    format_number,
    pluralize,
    shorten_names,
    truncate_middle,
)
from dflash_tui.events import Exited, Stopping
from dflash_tui.monitoring import recording, startup_history
from dflash_tui.monitoring.startup_history import RecordedStart, StartDifference, StartKind
from dflash_tui.presentation.startup_text import format_spread
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.basic import ListDialog, TextDialog, showing_errors
from dflash_tui.tui.render.plan import render_hung
from dflash_tui.tui.widgets.basic import MUTED, MUTED_ROW, list_broken_options, once_composed

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


# The most important first; later columns are dropped if there is no room.
_COLUMNS = (
    _Column("launched", _LAUNCHED),
    _Column("took", 9),
    _Column("port", 8),
    _Column("mode", 9),
    _Column("where", 11),
)


class RunRow(NamedTuple):
    """A run in the list: `status` is running, stopped, failed, exited (cause unknown) or sample."""

    run: Run
    status: str
    seconds: float


def list_run_rows(now: float) -> list[RunRow]:
    """Return the runs, newest first, and the sample last; the end of a run is read from its last samples."""
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
    """Return a line per run: status, recipe, launch time, mode, port, duration, GPU.

    The time has precedence because a recipe is launched repeatedly; the recipe's name comes next. ↻ marks a run that
    replaced a failed server.
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
    """Lists the runs; returns the selected one, or None."""

    HEADING: ClassVar = "runs"
    BINDINGS: ClassVar = [
        Binding("enter", "choose", "watch or replay", key_display="⏎", priority=True),
        Binding("x", "export", "export"),
        Binding("h", "history", "history"),
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
        """Read the runs in a thread."""
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

    @work(exclusive=True, group="export")
    async def action_export(self) -> None:
        """Export the highlighted run to a file in the current folder."""
        if self.runs and self.runs[self.place].status != "sample":
            with showing_errors(self.app):
                path = await asyncio.to_thread(recording.export_run, self.runs[self.place].run)
                self.notify(f"written to {path}, without tokens and prompts", markup=False)


_NAME = 20
_STARTS = 11
_EXACT = 10.0  # seconds; shorter durations are shown to a tenth
_FIRST = "first request"
# Each part has the same style in every bar; neighbours differ without colours.
STYLES = {
    name: ("█▓█▓█▓▒"[place], ("$series-a", "$series-b", "$series-c")[place % 3])
    for place, name in enumerate([*(name for name, _ in startup_history.STARTUP_PARTS), _FIRST])
}


class HistoryScreen(TextDialog[None]):
    """Compares the starts on this machine: number, median, spread and phases of each kind."""

    HEADING: ClassVar = "starts of this machine"
    starts: list[RecordedStart] | None = None

    @once_composed
    def on_mount(self) -> None:
        self.show_heading("reading …")
        self.load_starts()

    @work(exclusive=True)
    async def load_starts(self) -> None:
        """Read the starts in a thread; finished runs are cached."""
        self.starts = await asyncio.to_thread(startup_history.list_starts)
        self.show_heading(f"{pluralize(len(self.starts), 'start')} on this machine; medians until the first answer")
        self.draw()

    def render_text(self, width: int) -> Content:
        if self.starts:
            return render_kinds(startup_history.group_starts(self.starts), width)
        none = "" if self.starts is None else "no server has started on this machine yet"
        return Content.assemble((none, MUTED))


def render_kinds(kinds: Sequence[StartKind], width: int) -> Content:
    """Return the kinds in rows of `width` cells, grouped by pair and engine, with their differences."""
    blocks = []
    for pair, group in groupby(kinds, key=lambda kind: kind.group):
        alike = list(group)
        label = f"{pair.setup} · {pair.engine}"
        name = truncate_middle(pair.recipe, max(12, width - len(label) - 2))
        rows = [Content.assemble((name, "bold"), (f"  {label}", MUTED))]
        if synthetic := alike[-1].synthetic:
            warning = textwrap.fill(f"({synthetic}: the times are real, the model is not)", width)
            rows.append(Content.assemble((warning, "$warning")))
        longest = max((sum(seconds for _, seconds in list_parts(kind)) for kind in alike), default=0.0)
        rows += [row for kind in alike for row in render_kind(kind, longest, width)]
        rows += [_render_difference(difference, width) for difference in startup_history.compare_start_kinds(alike)]
        blocks.append(Content("\n").join(rows))
    return Content("\n\n").join(blocks)


def list_parts(kind: StartKind) -> list[tuple[str, float]]:
    """Return the median seconds of each part of a kind's starts, omitting zeros."""
    parts = [(name, kind.median_seconds(phases)) for name, phases in startup_history.STARTUP_PARTS]
    return [(name, seconds) for name, seconds in (*parts, (_FIRST, kind.first_request)) if seconds]


def render_kind(kind: StartKind, longest: float, width: int) -> list[Content]:
    """Return a kind's rows: its figures, a bar of its parts on the scale of `longest`, and a legend."""
    n, ready = len(kind.times_to_ready), f"ready in {format_duration(kind.ready)}"
    if not n:
        n, ready = len(kind.starts), "never answered"
    spread = format_spread(kind)
    range_text = f" ({spread})" if spread != UNKNOWN else ""
    starts = f"{pluralize(n, 'start'):<{_STARTS}}"
    head = Content.assemble((f"  {kind.name:<{_NAME}}", "bold"), (starts, MUTED), ready, (range_text, MUTED))
    if head.cell_length > width:  # drop the column alignment if it does not fit
        below = f"\n   {range_text}" if range_text else ""
        head = Content.assemble((f"  {kind.name}  ", "bold"), (f"{starts.rstrip()}  ", MUTED), ready, (below, MUTED))
    bar, drawn, seconds = Content("  "), 0, 0.0
    for name, took in list_parts(kind):
        seconds += took
        cells = round(seconds / longest * (width - 2)) - drawn if longest else 0
        drawn += cells
        shade, colour = STYLES[name]
        bar += Content.assemble((shade * cells, colour))
    return [head, bar, *_render_legend(kind, width)]


def _render_legend(kind: StartKind, width: int) -> list[Content]:
    rows, free = [Content("  ")], width - 2
    for name, took in list_parts(kind):
        label = f"{name} {format_number(took, 1, 's') if took < _EXACT else format_duration(took)}"
        if len(label) + 2 > free:
            rows.append(Content("  "))
            free = width - 2
        free -= len(label) + 4
        shade, colour = STYLES[name]
        rows[-1] += Content.assemble((f"{shade} ", colour), (f"{label}  ", MUTED))
    return [row.rstrip() for row in rows]


def _render_difference(difference: StartDifference, width: int) -> Content:
    first, second, seconds = difference
    more = "later" if seconds >= 0 else "sooner"
    text = f"{first.name} is ready {format_duration(abs(seconds))} {more} than {second.name}"
    return render_hung(("→ ", "$primary"), text, width)
