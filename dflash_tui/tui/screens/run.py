"""The screens of a run, of a recording and of a foreign server."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import ActiveBinding, Binding
from textual.content import Content
from textual.widgets import Input
from textual.worker import Worker

from dflash_tui.benchmark import client, suites
from dflash_tui.benchmark.prompts import Sampling
from dflash_tui.benchmark.server import Server
from dflash_tui.benchmark.summary import LevelSummary
from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import draw_bar, format_duration, truncate_middle
from dflash_tui.diagnosis import postmortem
from dflash_tui.events import RequestDone
from dflash_tui.experiments import run_report
from dflash_tui.monitoring import recording, step_history
from dflash_tui.monitoring.foreign_server import ForeignServer
from dflash_tui.monitoring.recording import PANEL_SPEED, Player
from dflash_tui.presentation.benchmark_text import render_run
from dflash_tui.presentation.client_text import ClientProgram, format_endpoint, format_wiring
from dflash_tui.presentation.startup_text import GLOSSES
from dflash_tui.run_state.alarms import find_alarms
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.basic import TextDialog, render_alarm_list, showing_errors
from dflash_tui.tui.sharing import share_report
from dflash_tui.tui.widgets.basic import (
    CHAT_KEY,
    COMMON_KEYS,
    HELP_KEY,
    MUTED,
    QUIT_KEY,
    Display,
    Keys,
    SizedScreen,
    TooSmall,
    join_fitting,
    while_open,
)
from dflash_tui.tui.widgets.log_pane import LogPane
from dflash_tui.tui.widgets.run_view import ANSWERING, WINDOWS, RunView, Source

FAILURE_KEYS = (
    Binding("f", "app.fix", "Fix", tooltip="Launch again with a suggested fix; shows the command first"),
    Binding("u", "report", "Report", tooltip="Write a bug report for vLLM's issue tracker"),
)
SHARE_KEY = Binding("s", "share", "Share", tooltip="Copy a report of the run, and write it with a picture (SVG)")
LOG_KEY = Binding("l", "log", "Log", tooltip="Full-screen log, and back")
FREEZE_KEY = Binding("space", "freeze", "Pause", tooltip="Freeze the display; nothing is lost")
FIGURE_KEYS = (
    Binding("c", "chart", "Chart", tooltip="Next chart, if not all fit"),
    Binding("left_square_bracket", "window(-1)", "Time", key_display="[ ]",
            tooltip="Shorter or longer window: 2, 10, 60 min"),
    Binding("right_square_bracket", "window(1)", "Longer window", show=False),
    Binding("exclamation_mark", "alarms", "Alarms", key_display="!", show=False, tooltip="All alarms in full"),
)  # fmt: skip


_UNSHOWN = {"N", "g", "escape"}  # keys of the log that only the help lists


class ViewScreen(SizedScreen[None]):
    """A screen with a view of one run."""

    CSS_PATH = "screens.tcss"
    GLOSSES: ClassVar = {"the phases of a start": GLOSSES}
    HAS_HEAD: ClassVar = True
    """Whether a line above the view says what it shows."""

    def __init__(self, view: RunView) -> None:
        super().__init__()
        self.view = view

    def compose(self) -> ComposeResult:
        if self.HAS_HEAD:
            yield Display(id="player")
        yield self.view
        yield TooSmall()
        yield Keys()

    def on_screen_resume(self) -> None:
        self.view.redraw()

    @property
    def active_bindings(self) -> dict[str, ActiveBinding]:
        """The active keys; while the log fills the screen, the footer shows the keys of the log."""
        active = super().active_bindings
        if not self.view.has_class("-log"):
            return active
        shown = {"l", "question_mark", "q"} | {
            key
            for key, each in active.items()
            if isinstance(each.node, LogPane) and each.binding.tooltip and key not in _UNSHOWN
        }
        return {
            key: each._replace(binding=replace(each.binding, show=key in shown))
            for key, each in sorted(active.items(), key=lambda item: not isinstance(item[1].node, LogPane))
        }

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        return self.view.allows(action)

    def action_alarms(self) -> None:
        now = self.view.now()
        alarms = find_alarms(self.view.state, now)
        self.app.push_screen(TextDialog("alarms", partial(render_alarm_list, alarms, now)))

    def action_freeze(self) -> None:
        self.view.frozen = not self.view.frozen
        self.view.draw()

    def action_window(self, step: int) -> None:
        self.view.window = max(0, min(len(WINDOWS) - 1, self.view.window + step))
        self.notify(f"charts and means over the last {WINDOWS[self.view.window] / 60:.0f} min", timeout=2)
        self.view.draw()

    def action_chart(self) -> None:
        self.view.show_next_chart()

    def action_log(self) -> None:
        self.view.toggle_log()

    def action_report(self) -> None:
        """Write a bug report into the run's folder, and copy it."""
        if (run := self.view.own) and (failure := self.view.failure):
            text = postmortem.build_bug_report(run, self.view.state, failure.diagnosis)
            share_report(self, text, run.folder, has_picture=False)

    @work(exclusive=True, group="share")
    async def action_share(self) -> None:
        """Copy a report of the run, and write it with a picture into the run's folder."""
        from dflash_tui.presentation import submission

        if run := self.view.own:
            with showing_errors(self.app):
                report, _ = await asyncio.to_thread(run_report.build_run_report, recording.open_recording(run))
                share_report(self, render_run(report), run.folder, more=submission.list_possible_files(report))


class RunScreen(ViewScreen):
    """Shows a run that is launched or watched, with keys to send prompts and to stop it."""

    BINDINGS: ClassVar = [
        *FAILURE_KEYS,
        Binding("b", "send_prompts", "Send prompts", tooltip="Send the five test prompts"),
        Binding("a", "app.try_drafts", "Try it", tooltip="Plan the A/B or tune of the drafts that are named after b"),
        CHAT_KEY,
        Binding("y", "copy_curl", "Curl", tooltip="Copy a curl command for this server"),
        LOG_KEY,
        Binding("S", "app.stop", "Stop", key_display="S", tooltip="Stop the server; asks first"),
        HELP_KEY,
        QUIT_KEY,
        SHARE_KEY,
        *COMMON_KEYS,
        FREEZE_KEY,
        *FIGURE_KEYS,
    ]

    HAS_HEAD: ClassVar = False

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(RunView(now, Source(is_live=True)))
        self._sending: Worker[None] | None = None

    def action_send_prompts(self) -> None:
        view = self.view
        if self._sending and self._sending.is_running:
            self.notify("the five prompts are already being sent", severity="warning")
        elif not view.has_server or view.run is None or view.state.status not in ANSWERING:
            self.notify("no server answers yet", severity="warning")
        else:
            self._sending = self.send_prompts(view.run)

    @work(group="prompts")
    async def send_prompts(self, run: Run) -> None:
        """Send the five prompts, record each result for every observer of the run, and forecast fewer drafts."""
        server, suite, ended = Server.from_run(run), suites.load_suite("quick"), list[RequestDone]()
        kinds = [*(prompt.kind for prompt, _ in client.order_requests(suite)), ""]
        try:
            self.view.show_sending(run, kinds.pop(0))
            sampling = Sampling.from_plan(run.plan).suit_to(self.view.state.startup.samplers)
            before = await client.read_counters(server)
            requests = client.send_suite(server, suite, sampling)
            async with aclosing(requests):
                async for done in requests:
                    run.record(done)
                    ended.append(done)
                    if done.error:  # the row shows only its beginning
                        self.notify(f"{done.kind}: {done.error}", severity="error", markup=False)
                    self.view.show_sending(run, kinds.pop(0))
        finally:
            self.view.show_sending(run, "")
        measured = LevelSummary.from_requests(server, ended, before, await client.read_counters(server), suite)
        shares, steps = measured.per_position, measured.steps or 0.0
        forecast = await asyncio.to_thread(step_history.forecast_from_history, run.plan, ended, shares, steps)
        self.view.show_forecast(run, forecast)

    def action_copy_curl(self) -> None:
        """Copy a curl command that sends the server a request."""
        if endpoint := self.view.endpoint:
            self.app.copy_to_clipboard(format_wiring(endpoint, ClientProgram.CURL))
            self.notify(f"a curl to {format_endpoint(endpoint)} is copied, if the terminal allows OSC 52", markup=False)
        else:
            self.notify("no server answers yet", severity="warning")


# Seconds of reading before keys are handled, so that a key press is drawn within 50 ms.
SLICE = 0.01
_BREATH, _PAUSE = 0.002, 0.05
_STEPS = 40
_LEAST_STEP = 2.0
_BAR = 24


class ReplayScreen(ViewScreen):
    """Shows the recording of a `Player`; there is no server to stop or to send prompts to.

    A run of this machine can be launched again, unchanged or with a suggested fix.
    """

    BINDINGS: ClassVar = [
        *FAILURE_KEYS,
        Binding("space", "pause", "Pause", tooltip="Pause or resume; at the end start over"),
        Binding("left", "seek(-1)", "Back", key_display="←", priority=True, tooltip="Back by a 40th"),
        Binding("right", "seek(1)", "Forward", key_display="→", priority=True, tooltip="Forward by a 40th"),
        Binding("home", "to(0)", "To the launch", show=False, priority=True, tooltip="Jump to the launch"),
        Binding("end", "to(1)", "To the end", show=False, priority=True, tooltip="Jump to the end"),
        HELP_KEY,
        QUIT_KEY,
        Binding("minus,less_than_sign", "speed(-1)", "Speed", key_display="- +", tooltip="Half or twice the speed"),
        Binding("plus,greater_than_sign,equals_sign", "speed(1)", "Faster", show=False),
        LOG_KEY,
        SHARE_KEY,
        *COMMON_KEYS[1:],
        *FIGURE_KEYS,
        Binding("enter", "app.relaunch", "Launch again", tooltip="Launch again as it was; shows the command first"),
    ]

    def __init__(self) -> None:
        nothing = Content.assemble(("none so far", MUTED))
        super().__init__(RunView(self.read_clock, Source(no_gpu="not recorded", no_requests=nothing)))
        self.player: Player | None = None
        self._own: Run | None = None
        self._is_covered = False  # while another screen is shown

    def read_clock(self) -> float:
        """Return the recorded time that is shown."""
        return self.player.now() if self.player else time.time()

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
        """Show the recording of `player` from its position; `own` is its run if that is of this machine."""
        self.player, self._own = player, own
        self.view.begin(player.recording, own)

    @work(exclusive=True, group="play")
    async def read_due(self) -> None:
        """Take the events that are due, in slices short enough to handle keys between them."""
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
        """Show the position and speed of the recording."""
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
    """Return a player of `run`, which begins at its end; the sample begins at its opening.

    Raises:
        DflashError: The recording cannot be read.
    """
    recorded = recording.open_recording(run)
    at = recorded.find_opening() if recorded.name == recording.SAMPLE else math.inf
    return Player(recorded, at=at, speed=PANEL_SPEED)


def render_position(player: Player, width: int) -> Content:
    """Return the line above a recording: its state, speed, position and name."""
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


class ForeignScreen(ViewScreen):
    """Shows the `/metrics` of a foreign server, of which no log, memory, startup or process is known."""

    BINDINGS: ClassVar = [
        *COMMON_KEYS[1:],
        FREEZE_KEY,
        *FIGURE_KEYS,
        Binding("4,b,S,s", "explain", show=False),
    ]

    def __init__(self, server: ForeignServer) -> None:
        # /metrics has no figures of memory, GPUs or single requests.
        super().__init__(RunView(time.time, Source(foreign=server, charts=("tok_s", "acceptance"))))
        self.server = server

    def on_screen_resume(self) -> None:
        self.follow()

    def on_screen_suspend(self) -> None:
        if self.app.current_mode != self.server.url:  # a dialog above the screen does not stop it
            self.workers.cancel_group(self, "foreign")

    def action_explain(self) -> None:
        """Notify that a foreign server cannot be stopped or sent prompts."""
        url = self.server.url
        self.notify(f"dflash-tui did not start {url}: it is watched only, no prompt is sent, nothing stopped")

    @work(exclusive=True, group="foreign")
    async def follow(self) -> None:
        """Pass the events of the server to the view."""
        async for event in self.server.events():
            self.view.take(event)

    def on_resize(self) -> None:
        width = self.size.width - 2
        label = Content.assemble((" ○ FOREIGN: metrics only ", "bold reverse $accent"))
        url = Content.assemble((f" {truncate_middle(self.server.url, max(1, width - label.cell_length - 1))}", "bold"))
        notes = (" · not started by dflash-tui", ": nothing is sent, stopped or recorded")
        parts = [label, url, *(Content.assemble((note, MUTED)) for note in notes)]
        self.query_one("#player", Display).show(join_fitting(parts, width))
