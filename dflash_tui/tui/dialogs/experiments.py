"""The dialog that lists the experiments of this machine and opens one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import ClassVar

from textual import work
from textual.binding import Binding
from textual.content import Content

from dflash_tui.common.formatting import shorten_names, truncate
from dflash_tui.experiments import store
from dflash_tui.experiments.progress import Progress
from dflash_tui.presentation.experiment_report import describe_variation
from dflash_tui.tui.dialogs.list import ListDialog
from dflash_tui.tui.render.experiment import STATUS
from dflash_tui.tui.widgets.basic import MUTED_ROW, list_broken_options

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
    short_names = shorten_names((row.design.recipe for row in rows), most)
    name = max(map(len, short_names.values()), default=0)
    left = width - _STATUS - name
    return [_render_experiment_row(row, f"{short_names[row.design.recipe]:<{name}}", left) for row in rows]


def _render_experiment_row(progress: Progress, name: str, left: int) -> Content:
    design, (mark, color) = progress.design, STATUS[progress.status]
    began = time.strftime(" %m-%d %H:%M", time.gmtime(design.made_at)) if left >= _BEGAN else ""
    boots = f"  {f'{len(progress.boots)}/{len(design.order)}':>5}" if left >= _BEGAN + _BOOTS else ""
    room = left - len(began) - len(boots)
    variation = (truncate(f"  {describe_variation(design)}", room) if room >= _LEAST_VARIED else "", MUTED_ROW)
    return Content.assemble((f"{mark} ", color), (f"{progress.status:<12}", "bold"), name, began, boots, variation)


class ExperimentList(ListDialog[str]):
    """Lists the experiments; closes with the name of the one that was chosen, or None."""

    HEADING: ClassVar = "A/Bs and tunes"
    BINDINGS: ClassVar = [
        Binding("enter", "choose", "open", key_display="⏎", priority=True),
        Binding("escape,q,o", "leave", "close", key_display="esc"),
    ]

    def on_mount(self) -> None:
        self.experiments: list[Progress] = []
        self.show_heading("reading …")
        self.reload()

    @work(exclusive=True)
    async def reload(self) -> None:
        """Read how they stand, away from the screen's own thread."""
        self.experiments = await asyncio.to_thread(list_progress)
        broken = await asyncio.to_thread(store.list_broken_experiments)
        none = "none yet; a on the launch screen begins one"
        self.show_heading(f"{len(self.experiments)}, the newest first" if self.experiments else none)
        width = self.row_width
        self.show_rows([*render_experiment_rows(self.experiments, width), *list_broken_options(broken, width)])

    def action_choose(self) -> None:
        if self.experiments:
            self.dismiss(self.experiments[self.place].design.id)
