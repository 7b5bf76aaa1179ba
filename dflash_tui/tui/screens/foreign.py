"""The run screen for a server that dflash-tui did not start: its metrics only, nothing to send or stop."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content

from dflash_tui.common.formatting import truncate_middle
from dflash_tui.events import Health
from dflash_tui.monitoring.foreign_server import ForeignServer
from dflash_tui.tui.composition import once_composed, while_open
from dflash_tui.tui.screens.run import RunScreen
from dflash_tui.tui.widgets.basic import MUTED, Display, Requests, join_fitting

_MARKS = {"healthy": ("●", "$primary"), "unhealthy": ("✗", "$error"), "starting": ("◐", "$warning")}
# Cells that a model's name has at least, and those of the release beside it.
_LEAST_NAME, _VERSION = 16, 20
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

    CHARTS: ClassVar[Sequence[str]] = ("tok_s", "acceptance")  # /metrics says nothing of memory and GPUs

    def __init__(self, server: ForeignServer) -> None:
        super().__init__(time.time)
        self.server = server

    def compose(self) -> ComposeResult:
        yield Display(id="player")
        yield from super().compose()

    @once_composed
    def on_mount(self) -> None:
        super().on_mount()
        self.query_one(Requests).hint = Content.assemble(("not known of a foreign server", MUTED))
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
        word = "CONNECTING" if health == "starting" else health.upper()
        width = self.size.width - 2
        head = Content.assemble(
            (f"{mark} ", color), (word, "bold"), ("  FROZEN, space resumes" if self.frozen else "", "bold $accent")
        )
        model = truncate_middle(about.model, max(_LEAST_NAME, width - head.cell_length - _VERSION))
        parts = [head, Content(f"  {model}" if model else "")]
        parts += [Content.assemble((f" · vLLM {about.version}", MUTED))] if about.version else []
        self.query_one("#status", Display).show(join_fitting(parts, width))
        label = Content.assemble((" ○ FOREIGN: metrics only ", "bold reverse $accent"))
        url = Content.assemble((f" {truncate_middle(self.server.url, max(1, width - label.cell_length - 1))}", "bold"))
        notes = (" · not started by dflash-tui", ": nothing is sent, stopped or recorded")
        parts = [label, url, *(Content.assemble((note, MUTED)) for note in notes)]
        self.query_one("#player", Display).show(join_fitting(parts, width))

    def _draw_alarms(self, now: float) -> None:
        if self.state.health is not Health.UNHEALTHY:
            super()._draw_alarms(now)
            return
        display, width = (
            self.query_one("#alarms", Display),
            max(20, self.size.width - 4),
        )  # which has no alarms to judge
        lines = textwrap.wrap(self.state.health_detail or "it does not answer", width)
        display.show(Content.assemble(("! ", "bold $error"), "\n  ".join(lines)))
        display.add_class("-raised")
