"""The screen of a server that dflash-tui did not start: its metrics only, nothing to send or stop."""

from __future__ import annotations

import time
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.content import Content

from dflash_tui.common.formatting import truncate_middle
from dflash_tui.monitoring.foreign_server import ForeignServer
from dflash_tui.tui.keys import COMMON_KEYS
from dflash_tui.tui.screens.run import FIGURE_KEYS, FREEZE_KEY, ViewScreen
from dflash_tui.tui.widgets.basic import MUTED, Display, Keys, TooSmall, join_fitting
from dflash_tui.tui.widgets.run_view import RunView, Source


class ForeignScreen(ViewScreen):
    """Shows the figures of `/metrics` of a foreign server; it has no log, memory, start-up or process to show."""

    BINDINGS: ClassVar = [*COMMON_KEYS, FREEZE_KEY, *FIGURE_KEYS]

    def __init__(self, server: ForeignServer) -> None:
        nothing = Content.assemble(("not known of a foreign server", MUTED))
        # /metrics says nothing of memory and GPUs.
        source = Source(foreign=server, charts=("tok_s", "acceptance"), no_requests=nothing)
        super().__init__(RunView(time.time, source))
        self.server = server

    def compose(self) -> ComposeResult:
        yield Display(id="player")
        yield self.view
        yield TooSmall()
        yield Keys()

    def on_mount(self) -> None:
        self.follow()

    @work(exclusive=True, group="foreign")
    async def follow(self) -> None:
        """Feed the view with the events of the server."""
        async for event in self.server.events():
            self.view.take(event)

    def on_resize(self) -> None:
        width = self.size.width - 2
        label = Content.assemble((" ○ FOREIGN: metrics only ", "bold reverse $accent"))
        url = Content.assemble((f" {truncate_middle(self.server.url, max(1, width - label.cell_length - 1))}", "bold"))
        notes = (" · not started by dflash-tui", ": nothing is sent, stopped or recorded")
        parts = [label, url, *(Content.assemble((note, MUTED)) for note in notes)]
        self.query_one("#player", Display).show(join_fitting(parts, width))
