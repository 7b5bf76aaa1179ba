"""The dialog that lists the experiments of this machine and opens one."""

from __future__ import annotations

import asyncio
import time
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from dflash_tui.common.formatting import truncate, truncate_middle
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.experiments import store
from dflash_tui.experiments.progress import Progress
from dflash_tui.presentation.experiment_tables import describe_variation
from dflash_tui.tui.render.experiment import STATUS
from dflash_tui.tui.widgets.basic import MUTED, list_broken_options

_MOST = 100


def list_progress() -> list[Progress]:
    """Return how the experiments stand, the newest first."""
    return [
        store.read_progress(store.experiment_folder(design.id))
        for design in reversed(store.list_experiments()[-_MOST:])
    ]


def render_experiment_row(progress: Progress, width: int) -> Content:
    """Return an experiment in a line: how it stands, its recipe, when it began, its boots, what is varied."""
    design, (mark, color) = progress.design, STATUS[progress.status]
    room = max(10, (width - 45) // 2)
    began = time.strftime("%m-%d %H:%M", time.gmtime(design.made_at))
    boots = f"{len(progress.boots)}/{len(design.order)}"
    return Content.assemble(
        (f"{mark} ", color),
        (f"{progress.status:<12}", "bold"),
        f"{truncate_middle(clean_line(design.recipe), room):<{room}} {began}  {boots:>5}  ",
        (truncate(describe_variation(design), max(0, width - room - 36)), MUTED),
    )


class ExperimentList(ModalScreen[str]):
    """Lists the experiments; closes with the name of the one that was chosen, or None."""

    BINDINGS: ClassVar = [Binding("escape,q,o", "dismiss", "close")]

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Progress] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide"):
            yield Static(Content.assemble(("experiments", "bold"), "  looking …"), id="head-of-runs")
            yield OptionList(id="runs", markup=False)
            yield Static(Content("\nenter  its boots, or its verdict when it is over   esc  close"), classes="muted")

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()
        self.reload()

    @work(exclusive=True)
    async def reload(self) -> None:
        """Read how they stand, away from the screen's own thread."""
        self.rows = await asyncio.to_thread(list_progress)
        broken = await asyncio.to_thread(store.list_broken_experiments)
        note = f"  {len(self.rows)}" if self.rows else "  none yet; a on the launch screen begins one"
        self.query_one("#head-of-runs", Static).update(Content.assemble(("experiments", "bold"), note))
        options = self.query_one(OptionList)
        width = options.scrollable_content_region.width - 2
        options.add_options([Option(render_experiment_row(row, width)) for row in self.rows])
        options.add_options(list_broken_options(broken, width))
        if self.rows:
            options.highlighted = 0

    @on(OptionList.OptionSelected)
    def _selected(self, message: OptionList.OptionSelected) -> None:
        self.dismiss(self.rows[message.option_index].design.id)
