"""The run screen for a server that somebody else runs: its metrics only, and nothing to send or stop."""

from __future__ import annotations

import time
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content

from dflash_tui.common.formatting import truncate_middle
from dflash_tui.monitoring.foreign_server import ForeignServer
from dflash_tui.tui.screens.run import RunScreen
from dflash_tui.tui.widgets.basic import MUTED, Display, Requests

_MARKS = {"healthy": ("●", "$primary"), "unhealthy": ("✗", "$error"), "starting": ("◐", "$warning")}
_SHARED = {"window(-1)", "window(1)", "freeze", "chart", "alarms"}


class ForeignScreen(RunScreen, inherit_bindings=False):
    """Shows what `/metrics` of a foreign server says; there is no log, no memory, no start-up and no process."""

    BINDINGS: ClassVar = [
        *(b for b in RunScreen.BINDINGS if isinstance(b, Binding) and b.action in _SHARED),
        Binding("1", "app.show('launch')", "Launch", tooltip="The launch screen"),
        Binding("2", "app.show('live')", "Live", show=False, tooltip="The run that is watched"),
        Binding("question_mark", "app.keys", "Help", key_display="?"),
        Binding("q", "app.leave", "Leave", tooltip="Leave the panel; the server is not ours and stays as it is"),
    ]

    NO_GPU: ClassVar = "not told by /metrics"

    def __init__(self, server: ForeignServer) -> None:
        super().__init__(time.time)
        self.server = server

    def compose(self) -> ComposeResult:
        yield Display(id="player")
        yield from super().compose()

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one(Requests).hint = Content.assemble(("a foreign server's requests are not seen", MUTED))
        self.follow()

    @work(exclusive=True, group="foreign")
    async def follow(self) -> None:
        """Feed the screen with what the server answers."""
        async for event in self.server.events():
            self.take(event)

    @property
    def stage(self) -> str:
        """Always live: nothing is known of its start."""
        return "live"

    @property
    def has_server(self) -> bool:
        """None of ours."""
        return False

    def calm(self, now: float) -> str:  # noqa: ARG002 - as every run screen
        """Alarms of memory, GPUs and processes cannot be raised."""
        return "of what its counters tell"

    @property
    def drafted(self) -> int:
        """How many tokens are drafted per step, by the positions that the server counts."""
        return len(self.state.readings[-1].counters.per_position) if self.state.readings else 0

    def draw(self) -> None:
        super().draw()
        health = self.state.health.value
        mark, color = _MARKS.get(health, _MARKS["starting"])
        about = self.server.identity
        # What went wrong comes before what is only good to know: the line is cut from the right.
        detail = f"  {self.state.health_detail}" if self.state.health_detail else ""
        said = "ASKING" if health == "starting" else health.upper()
        frozen = "  FROZEN, space goes on" if self.frozen else ""
        self.query_one("#status", Display).show(
            Content.assemble(
                (f"{mark} ", color),
                (said, "bold"),
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
                (" · not ours: nothing is sent, stopped or recorded", MUTED),
            )
        )
