"""Earlier starts side by side: eager and compile, cold and cached, with what each spent its time on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import groupby
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from dflash_tui.common.formatting import UNKNOWN, format_duration, format_number, pluralize, truncate_middle
from dflash_tui.monitoring import startup_history
from dflash_tui.presentation.startup_text import format_spread
from dflash_tui.run_state import startup_comparison
from dflash_tui.run_state.startup_comparison import StartDifference, StartKind
from dflash_tui.tui.widgets.basic import MUTED

_NAME = 20
_EXACT = 10.0  # seconds; what took less is told to a tenth
_FIRST = "first request"
# A part looks the same in every bar; neighbours differ without colours, too.
_LOOKS = {
    name: ("█▓"[place % 2], ("$series-a", "$series-b", "$series-c")[place % 3])
    for place, name in enumerate([*(name for name, _ in startup_comparison.STARTUP_PARTS), _FIRST])
}


class HistoryScreen(ModalScreen[None]):
    """Compares the starts of this machine: of each kind the number, the median, the spread and its parts."""

    BINDINGS: ClassVar = [Binding("escape,q,h", "dismiss", "close")]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide"):
            yield Static(Content.assemble(("starts", "bold"), "  looking …"), id="head-of-starts")
            with VerticalScroll(id="checks"):
                yield Static(id="compared", markup=False)
            yield Static(Content("\nesc  close   ↑ ↓  scroll"), classes="muted")

    def on_mount(self) -> None:
        self.query_one("#checks").focus()
        self.look()

    @work(exclusive=True)
    async def look(self) -> None:
        """Read the starts, away from the screen's own thread: those of ended runs are read once."""
        found = await asyncio.to_thread(startup_history.list_starts)
        head = f"  {pluralize(len(found), 'start')} that came up here, medians to the first answer"
        self.query_one("#head-of-starts", Static).update(Content.assemble(("starts", "bold"), head))
        shown, width = self.query_one("#compared", Static), self.query_one("#checks").size.width - 2
        none = Content.assemble(("no server has started on this machine yet", MUTED))
        shown.update(render_table(startup_comparison.group_starts(found), width) if found else none)


def render_table(known: Sequence[StartKind], width: int) -> Content:
    """Return all kinds in rows of `width` cells, those of a pair and engine together, and how they differ."""
    blocks = []
    for pair, group in groupby(known, key=lambda kind: kind.group):
        alike = list(group)
        label = f"{pair.setup} · {pair.engine}"
        name = truncate_middle(pair.recipe, max(12, width - len(label) - 2))
        rows = [Content.assemble((name, "bold"), (f"  {label}", MUTED))]
        if said := alike[-1].synthetic:
            rows.append(Content.assemble((f"({said}: the times are real, the model is not)", "$warning")))
        longest = max((total_seconds(kind) for kind in alike), default=0.0)
        rows += [row for kind in alike for row in render_kind(kind, longest, width)]
        rows += [_difference(difference) for difference in startup_comparison.compare_start_kinds(alike)]
        blocks.append(Content("\n").join(rows))
    return Content("\n\n").join(blocks)


def list_parts(kind: StartKind) -> list[tuple[str, float]]:
    """Return what the starts of a kind spent their time on, in seconds; what they had nothing of is left out."""
    found = [(name, kind.median_seconds(phases)) for name, phases in startup_comparison.STARTUP_PARTS]
    return [(name, seconds) for name, seconds in (*found, (_FIRST, kind.first_request)) if seconds]


def total_seconds(kind: StartKind) -> float:
    """Return the seconds that the bar of a kind stands for."""
    return sum(seconds for _, seconds in list_parts(kind))


def render_kind(kind: StartKind, longest: float, width: int) -> list[Content]:
    """Return a kind in rows: its figures, a bar of its parts against the `longest`, and their names."""
    n, ready = len(kind.times_to_ready), f"ready in {format_duration(kind.ready)}"
    if not n:
        n, ready = len(kind.starts), "never answered a request"
    spread = format_spread(kind)
    said = f" ({spread})" if spread != UNKNOWN else ""
    head = Content.assemble((f"  {kind.name:<{_NAME}}", "bold"), (f"n={n:<4}", MUTED), ready, (said, MUTED))
    bar, drawn, seconds = Content("  "), 0, 0.0
    for name, took in list_parts(kind):
        seconds += took
        cells = round(seconds / longest * (width - 2)) - drawn if longest else 0
        drawn += cells
        shade, colour = _LOOKS[name]
        bar += Content.assemble((shade * cells, colour))
    return [head, bar, *_names(kind, width)]


def _names(kind: StartKind, width: int) -> list[Content]:
    """Return the parts of a kind by name, each after the look that it has in the bar, in as many rows as they need."""
    rows, free = [Content("  ")], width - 2
    for name, took in list_parts(kind):
        label = f"{name} {format_number(took, 1, 's') if took < _EXACT else format_duration(took)}"
        if len(label) + 2 > free:
            rows.append(Content("  "))
            free = width - 2
        free -= len(label) + 4
        shade, colour = _LOOKS[name]
        rows[-1] += Content.assemble((f"{shade} ", colour), (f"{label}  ", MUTED))
    return [row.rstrip() for row in rows]


def _difference(difference: StartDifference) -> Content:
    one, other, seconds = difference
    more = "later" if seconds >= 0 else "sooner"
    said = f"{one.name} (n={len(one.times_to_ready)}) is ready {format_duration(abs(seconds))} {more} than {other.name}"
    return Content.assemble(("→ ", "$primary"), f"{said} (n={len(other.times_to_ready)})")
