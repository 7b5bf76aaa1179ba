"""The dialog that lists the experiments of this machine and opens one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from dflash_tui.common.formatting import shorten_names, truncate
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.experiments import store
from dflash_tui.experiments.progress import Progress
from dflash_tui.presentation.experiment_tables import describe_variation
from dflash_tui.tui.composition import once_composed
from dflash_tui.tui.dialogs.basic import Dialog
from dflash_tui.tui.render.experiment import STATUS
from dflash_tui.tui.widgets.basic import MUTED_ROW, MarkedList, list_broken_options

_MOST = 100
_STATUS, _BEGAN, _BOOTS = 14, 12, 7
# Cells of the longest name where what is varied has fewer than so many, and the least that say what is varied.
_NAME, _ROOMY, _LEAST_VARIED = 44, 32, 14


def list_progress() -> list[Progress]:
    """Return how the experiments stand, the newest first."""
    return [
        store.read_progress(store.experiment_folder(design.id))
        for design in reversed(store.list_experiments()[-_MOST:])
    ]


def render_experiment_rows(rows: Sequence[Progress], width: int) -> list[Content]:
    """Return a line for each experiment: how it stands, its recipe, when it began, its boots, what is varied.

    When it began has the room first, since the same recipe is measured again and again, then the recipe's name.
    """
    most = max(_NAME, width - _STATUS - _BEGAN - _BOOTS - _ROOMY)
    most = max(1, min(most, width - _STATUS - _BEGAN))
    short_names = shorten_names((clean_line(row.design.recipe) for row in rows), most)
    name = max(map(len, short_names.values()), default=0)
    left = width - _STATUS - name
    return [_render_experiment_row(row, f"{short_names[clean_line(row.design.recipe)]:<{name}}", left) for row in rows]


def _render_experiment_row(progress: Progress, name: str, left: int) -> Content:
    design, (mark, color) = progress.design, STATUS[progress.status]
    began = time.strftime(" %m-%d %H:%M", time.gmtime(design.made_at)) if left >= _BEGAN else ""
    boots = f"  {f'{len(progress.boots)}/{len(design.order)}':>5}" if left >= _BEGAN + _BOOTS else ""
    room = left - len(began) - len(boots)
    variation = (truncate(f"  {describe_variation(design)}", room) if room >= _LEAST_VARIED else "", MUTED_ROW)
    return Content.assemble((f"{mark} ", color), (f"{progress.status:<12}", "bold"), name, began, boots, variation)


class ExperimentList(Dialog[str]):
    """Lists the experiments; closes with the name of the one that was chosen, or None."""

    HEADING: ClassVar = "A/Bs and tunes"
    ENTER: ClassVar = "open"
    BINDINGS: ClassVar = [Binding("escape,q,o", "dismiss", "close", key_display="esc")]

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Progress] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide -list"):
            yield Static(Content("reading …"), id="head-of-runs")
            yield MarkedList(id="runs", markup=False)

    @once_composed
    def on_mount(self) -> None:
        self.query_one(OptionList).focus()
        self.reload()

    @work(exclusive=True)
    async def reload(self) -> None:
        """Read how they stand, away from the screen's own thread."""
        self.rows = await asyncio.to_thread(list_progress)
        broken = await asyncio.to_thread(store.list_broken_experiments)
        note = f"{len(self.rows)}, the newest first" if self.rows else "none yet; a on the launch screen begins one"
        self.query_one("#head-of-runs", Static).update(Content(note))
        options = self.query_one(OptionList)
        width = options.scrollable_content_region.width - 2
        options.add_options(map(Option, render_experiment_rows(self.rows, width)))
        options.add_options(list_broken_options(broken, width))
        if self.rows:
            options.highlighted = 0

    @on(OptionList.OptionSelected)
    def _selected(self, message: OptionList.OptionSelected) -> None:
        self.dismiss(self.rows[message.option_index].design.id)
