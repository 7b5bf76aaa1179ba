"""Earlier starts side by side: eager and compile, cold and cached, each with the phases that took its time."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from dflash_tui.common.formatting import UNKNOWN, format_duration, format_number, pluralize, truncate_middle
from dflash_tui.monitoring import startup_history
from dflash_tui.monitoring.startup_history import StartDifference, StartKind
from dflash_tui.presentation.startup_text import format_spread
from dflash_tui.tui.composition import once_composed
from dflash_tui.tui.dialogs.basic import Dialog, measure_text
from dflash_tui.tui.render.plan import render_hung
from dflash_tui.tui.widgets.basic import MUTED

_NAME = 20
_STARTS = 11
_EXACT = 10.0  # seconds; shorter durations are shown to a tenth
_FIRST = "first request"
# A part has a style of its own, the same in every bar; neighbours differ without colours, too.
STYLES = {
    name: ("█▓█▓█▓▒"[place], ("$series-a", "$series-b", "$series-c")[place % 3])
    for place, name in enumerate([*(name for name, _ in startup_history.STARTUP_PARTS), _FIRST])
}


class HistoryScreen(Dialog[None]):
    """Compares the starts of this machine: the number, median, spread and phases of each kind."""

    HEADING: ClassVar = "starts of this machine"
    BINDINGS: ClassVar = [Binding("escape,q,h", "dismiss", "close", key_display="esc")]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide"):
            yield Static(Content("reading …"), id="head-of-starts")
            with VerticalScroll(id="checks"):
                yield Static(id="compared", markup=False)

    @once_composed
    def on_mount(self) -> None:
        self.query_one("#checks").focus()
        self.load_starts()

    @work(exclusive=True)
    async def load_starts(self) -> None:
        """Read the starts in a thread; those of finished runs are read once."""
        starts = await asyncio.to_thread(startup_history.list_starts)
        head = f"{pluralize(len(starts), 'start')} on this machine; medians until the first answer"
        self.query_one("#head-of-starts", Static).update(Content(head))
        comparison, width = self.query_one("#compared", Static), measure_text(self.query_one("#checks"))
        none = Content.assemble(("no server has started on this machine yet", MUTED))
        comparison.update(render_kinds(startup_history.group_starts(starts), width) if starts else none)


def render_kinds(kinds: Sequence[StartKind], width: int) -> Content:
    """Return all kinds in rows of `width` cells, those of a pair and engine together, and how they differ."""
    blocks = []
    for pair, group in groupby(kinds, key=lambda kind: kind.group):
        alike = list(group)
        label = f"{pair.setup} · {pair.engine}"
        name = truncate_middle(pair.recipe, max(12, width - len(label) - 2))
        rows = [Content.assemble((name, "bold"), (f"  {label}", MUTED))]
        if synthetic := alike[-1].synthetic:
            warning = textwrap.fill(f"({synthetic}: the times are real, the model is not)", width)
            rows.append(Content.assemble((warning, "$warning")))
        longest = max((sum_parts(kind) for kind in alike), default=0.0)
        rows += [row for kind in alike for row in render_kind(kind, longest, width)]
        rows += [_render_difference(difference, width) for difference in startup_history.compare_start_kinds(alike)]
        blocks.append(Content("\n").join(rows))
    return Content("\n\n").join(blocks)


def list_parts(kind: StartKind) -> list[tuple[str, float]]:
    """Return the median seconds of each part of a kind's starts, without parts that took none."""
    parts = [(name, kind.median_seconds(phases)) for name, phases in startup_history.STARTUP_PARTS]
    return [(name, seconds) for name, seconds in (*parts, (_FIRST, kind.first_request)) if seconds]


def sum_parts(kind: StartKind) -> float:
    """Return the seconds of all parts of a kind."""
    return sum(seconds for _, seconds in list_parts(kind))


def render_kind(kind: StartKind, longest: float, width: int) -> list[Content]:
    """Return a kind in rows: its figures, a bar of its parts against the `longest`, and their names."""
    n, ready = len(kind.times_to_ready), f"ready in {format_duration(kind.ready)}"
    if not n:
        n, ready = len(kind.starts), "never answered"
    spread = format_spread(kind)
    range_text = f" ({spread})" if spread != UNKNOWN else ""
    starts = f"{pluralize(n, 'start'):<{_STARTS}}"
    head = Content.assemble((f"  {kind.name:<{_NAME}}", "bold"), (starts, MUTED), ready, (range_text, MUTED))
    if head.cell_length > width:  # where its columns have no room, without them
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
    """Return the legend of a kind's bar, in as many rows as it needs."""
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
