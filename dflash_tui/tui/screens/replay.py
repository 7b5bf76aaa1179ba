"""The run screen for a recording: the same view, fed by a player instead of a server."""

from __future__ import annotations

import asyncio
import math
import time
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widgets import Input

from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import draw_bar, format_duration, truncate_middle
from dflash_tui.monitoring import recording
from dflash_tui.monitoring.recording import PANEL_SPEED, Player
from dflash_tui.runs.run import Run
from dflash_tui.tui.composition import while_open
from dflash_tui.tui.keys import COMMON_KEYS
from dflash_tui.tui.screens.run import FAILURE_KEYS, FIGURE_KEYS, LOG_KEY, ViewScreen
from dflash_tui.tui.widgets.basic import MUTED, Display, Keys, TooSmall, join_fitting
from dflash_tui.tui.widgets.run_view import RunView, Source

# Seconds that reading may take before keys are handled, so that a key press is painted within 50 ms.
SLICE = 0.01
_BREATH, _PAUSE = 0.002, 0.05
_STEPS = 40
_LEAST_STEP = 2.0
_BAR = 24


class ReplayScreen(ViewScreen):
    """Shows the recording that a `Player` plays. It knows no server, so nothing on it can send or stop.

    One of a run of this machine can be launched again, as it was or with what helps.
    """

    BINDINGS: ClassVar = [
        *FAILURE_KEYS,
        Binding("space", "pause", "Pause", tooltip="Pause or resume; at the end start over"),
        Binding("left", "seek(-1)", "Back", key_display="←", priority=True, tooltip="Back by a 40th"),
        Binding("right", "seek(1)", "Forward", key_display="→", priority=True, tooltip="Forward by a 40th"),
        Binding("home", "to(0)", "To the launch", show=False, priority=True, tooltip="Jump to the launch"),
        Binding("end", "to(1)", "To the end", show=False, priority=True, tooltip="Jump to the end"),
        *COMMON_KEYS[2:],
        Binding("minus,less_than_sign", "speed(-1)", "Speed", key_display="- +", tooltip="Half or twice the speed"),
        Binding("plus,greater_than_sign,equals_sign", "speed(1)", "Faster", show=False),
        COMMON_KEYS[1],
        LOG_KEY,
        *FIGURE_KEYS,
        Binding("enter", "app.relaunch", "Launch again", tooltip="Launch again as it was; shows the command first"),
        COMMON_KEYS[0],
    ]

    def __init__(self) -> None:
        nothing = Content.assemble(("none so far", MUTED))
        super().__init__(RunView(self.read_clock, Source(no_gpu="not recorded", no_requests=nothing)))
        self.player: Player | None = None
        self._own: Run | None = None
        self._is_covered = False  # while another screen is shown

    def read_clock(self) -> float:
        """Return the time of what is shown."""
        return self.player.now() if self.player else time.time()

    def compose(self) -> ComposeResult:
        yield Display(id="player")
        yield self.view
        yield TooSmall()
        yield Keys()

    def on_mount(self) -> None:
        self.set_interval(0.25, self.show_position)
        self.read_due()

    def on_screen_suspend(self) -> None:
        if self.player and not self.player.paused:
            self._is_covered = True
            self.player.pause(True)

    def on_screen_resume(self) -> None:
        if self.player and self._is_covered and not self.player.finished:
            self.player.pause(False)
        self._is_covered = False

    def play(self, player: Player, own: Run | None = None) -> None:
        """Show the recording of `player` from where it stands; `own` is the run of this machine that it is of."""
        self.player, self._own = player, own
        self.view.begin(player.recording, own)

    @work(exclusive=True, group="play")
    async def read_due(self) -> None:
        """Take the events that are due, in slices short enough that keys are handled between them."""
        while True:
            behind = self.player is not None and self.player.behind
            self._take_due()
            if behind and self.player and not self.player.behind and self.is_active:
                self.view.draw()
            await asyncio.sleep(_BREATH if self.player and self.player.behind else _PAUSE)

    def _take_due(self) -> None:
        if self.player and self.view.error is None:
            try:
                for event in self.player.due_events(SLICE):
                    self.view.take(event)
            except DflashError as error:
                self.view.fail(error)
            self.view.catching_up = self.player.behind

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in {"seek", "to", "pause", "speed"}:
            return self.player is not None and not isinstance(self.focused, Input)
        return super().check_action(action, parameters)

    @while_open
    def show_position(self) -> None:
        """Show that this is a recording, its position and its speed."""
        if self.player:
            self.query_one("#player", Display).show(render_position(self.player, self.size.width))

    def action_pause(self) -> None:
        if self.player:
            over = self.player.finished
            self.player.pause(not (self.player.paused or over))
            if over:
                self.view.begin(self.player.recording, self._own)
            self._draw()

    def action_seek(self, steps: int) -> None:
        if self.player:
            self._go(self.player.position + steps * max(_LEAST_STEP, self.player.duration / _STEPS))

    def action_to(self, share: float) -> None:
        if self.player:
            self._go(self.player.duration * share)

    def _go(self, position: float) -> None:
        if self.player and self.player.seek(position):
            self.view.begin(self.player.recording, self._own)
        self._take_due()
        self._draw()

    def _draw(self) -> None:
        self.view.draw()
        self.show_position()

    def action_speed(self, steps: int) -> None:
        if self.player:
            self.player.change_speed(steps)
            self.show_position()


def build_player(run: Run) -> Player:
    """Return a player of `run`: a run is shown from its end, to look back, the sample from where something happens.

    Raises:
        DflashError: it cannot be read.
    """
    recorded = recording.open_recording(run)
    at = recorded.find_opening() if recorded.name == recording.SAMPLE else math.inf
    return Player(recorded, at=at, speed=PANEL_SPEED)


def render_position(player: Player, width: int) -> Content:
    """Return the line above a recording: playing or paused, the speed, the position and the name."""
    at, end = format_duration(player.position), format_duration(player.duration)
    state = "reading …" if player.behind else "end" if player.finished else "paused" if player.paused else "playing"
    mark = "■" if player.finished else "‖" if player.paused else "▶"
    share = player.position / player.duration if player.duration else 1.0
    head = Content.assemble(
        (f" {mark} REPLAY ", "bold reverse $accent"),
        (f" {state:<9} ×{player.speed:g}  {at} of {end} ", "bold"),
        (f" {draw_bar(share, _BAR).ljust(_BAR, '░')} " if width >= 100 else "", "$accent"),
    )
    width -= 2  # the padding
    name = truncate_middle(player.recording.name, max(1, width - head.cell_length - 1))
    note = Content.assemble((" · recorded, not a live server", MUTED))
    return join_fitting([head, Content.assemble((f" {name}", "$foreground 80%")), note], width)
