"""The run screen for a server that dflash-tui did not start: its metrics only, nothing to send or stop."""

from __future__ import annotations

import time
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content

from dflash_tui.common.formatting import truncate_middle
from dflash_tui.monitoring.foreign_server import ForeignServer
from dflash_tui.tui.composition import once_composed, while_open
from dflash_tui.tui.screens.run import RunScreen
from dflash_tui.tui.widgets.basic import MUTED, Display, Requests

_MARKS = {"healthy": ("●", "$primary"), "unhealthy": ("✗", "$error"), "starting": ("◐", "$warning")}
_SHARED = {"window(-1)", "window(1)", "freeze", "chart", "alarms"}


class ForeignScreen(RunScreen, inherit_bindings=False):
    """Shows the figures of `/metrics` of a foreign server; it has no log, memory, start-up or process to show."""

    BINDINGS: ClassVar = [
        *(b for b in RunScreen.BINDINGS if isinstance(b, Binding) and b.action in _SHARED),
        Binding("1", "app.show('launch')", "Launch", tooltip="The launch screen"),
        Binding("2", "app.show('live')", "Live", show=False, tooltip="The run being watched"),
        Binding("question_mark", "app.keys", "Help", key_display="?"),
        Binding("q", "app.leave", "Quit", tooltip="Quit the panel; the server is not affected"),
    ]

    NO_GPU: ClassVar = "/metrics says nothing about GPUs"

    def __init__(self, server: ForeignServer) -> None:
        super().__init__(time.time)
        self.server = server

    def compose(self) -> ComposeResult:
        yield Display(id="player")
        yield from super().compose()

    @once_composed
    def on_mount(self) -> None:
        super().on_mount()
        self.query_one(Requests).hint = Content.assemble(("single requests of a foreign server are not known", MUTED))
        self.follow()

    @work(exclusive=True, group="foreign")
    async def follow(self) -> None:
        """Feed the screen with the events of the server."""
        async for event in self.server.events():
            self.take(event)

    @property
    def stage(self) -> str:
        """Always live: nothing is known of its start."""
        return "live"

    @property
    def has_server(self) -> bool:
        """None that dflash-tui could send to or stop."""
        return False

    def describe_calm(self, now: float) -> str:  # noqa: ARG002 - as every run screen
        """Alarms of memory, GPUs and processes cannot be raised."""
        return "judged by its metrics only"

    @property
    def drafted(self) -> int:
        """How many tokens are drafted per step, by the positions that the server counts."""
        return len(self.state.readings[-1].counters.per_position) if self.state.readings else 0

    @while_open
    def draw(self) -> None:
        super().draw()
        health = self.state.health.value
        mark, color = _MARKS.get(health, _MARKS["starting"])
        about = self.server.identity
        # What went wrong comes before what is only good to know: the line is cut from the right.
        detail = f"  {self.state.health_detail}" if self.state.health_detail else ""
        word = "CONNECTING" if health == "starting" else health.upper()
        frozen = "  FROZEN, space resumes" if self.frozen else ""
        self.query_one("#status", Display).show(
            Content.assemble(
                (f"{mark} ", color),
                (word, "bold"),
                (frozen, "bold $accent"),
                (detail, "$error"),
                f"  {truncate_middle(about.model, 48)}" if about.model else "",
                (f" · vLLM {about.version}" if about.version else "", MUTED),
            )
        )
        self.query_one("#player", Display).show(
            Content.assemble(
                (" ○ FOREIGN: metrics only ", "bold reverse $accent"),
                (f" {truncate_middle(self.server.url, 48)}", "bold"),
                (" · not started by dflash-tui: nothing is sent, stopped or recorded", MUTED),
            )
        )
