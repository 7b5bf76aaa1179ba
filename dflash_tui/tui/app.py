"""The panel: its screens, what opens which, and how it is left."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from signal import SIGHUP
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.app import App
from textual.binding import Binding
from textual.worker import WorkerError

from dflash_tui.common.errors import DflashError
from dflash_tui.experiments import store
from dflash_tui.launch import planner
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.monitoring.foreign_server import ForeignServer
from dflash_tui.monitoring.recording import Player, Recording
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.basic import Confirm, ErrorDialog, Help, list_keys
from dflash_tui.tui.dialogs.experiments import ExperimentList
from dflash_tui.tui.dialogs.runs import RunList
from dflash_tui.tui.farewell import build_farewell
from dflash_tui.tui.palette import Panel, PanelCommands
from dflash_tui.tui.screens.chat import ChatScreen
from dflash_tui.tui.screens.experiment import ExperimentScreen
from dflash_tui.tui.screens.foreign import ForeignScreen
from dflash_tui.tui.screens.launch import LaunchScreen
from dflash_tui.tui.screens.playback import PlaybackScreen
from dflash_tui.tui.screens.replay import ReplayScreen, build_player
from dflash_tui.tui.screens.verdict import VerdictScreen
from dflash_tui.tui.server_app import ServerApp
from dflash_tui.tui.terminal import leave_on_signals, start_threads
from dflash_tui.tui.theme import DARK, LIGHT, SERIES
from dflash_tui.tui.widgets.basic import NEEDS
from dflash_tui.tui.widgets.recipe_list import Entries, load_entries


class DflashApp(ServerApp):
    """The panel; it exits with the text to print afterwards.

    Args:
        run: A run to open the panel on.
        player: A recording to open it on.
        foreign: A foreign server to open it on.
        playback: Two arms of an A/B to open it on.
        now: The clock.
        probe: Reads the GPUs.
        load: Loads the recipes.
        pool: The threads for work that may take long.
    """

    TITLE = "dflash-tui"
    COMMANDS: ClassVar = {PanelCommands}
    CSS_PATH = "app.tcss"
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (NEEDS[0], "-narrow"), (100, "-wide")]  # noqa: RUF012 - Textual's type
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (NEEDS[1], "-short"), (30, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar = [
        Binding("ctrl+q", "leave", "Quit", show=False, priority=True),
        Binding("t", "theme", "Light or dark", show=False, tooltip="Light or dark theme"),
    ]

    def __init__(
        self,
        run: Run | None = None,
        *,
        player: Player | None = None,
        foreign: ForeignServer | None = None,
        playback: PlaybackScreen | None = None,
        now: Callable[[], float] = time.time,
        probe: Callable[[], GpuProbe] = planner.probe_launchable_gpus,
        load: Callable[[], Entries] = load_entries,
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        self._at_launch = not (run or player or foreign or playback)
        super().__init__(now)
        for theme in (DARK, LIGHT):
            self.register_theme(theme)
        self.set_reactive(App.theme, DARK.name)  # a change would parse and apply all styles once more
        self.stylesheet.set_variables(self.get_css_variables())
        self._pool = pool
        self._attach_to, self._player, self._foreign, self._playback = run, player, foreign, playback
        self.launch_screen = LaunchScreen(now, probe, load)
        self.replay_screen, self.ab_screen, self.compare_screen = ReplayScreen(), ExperimentScreen(now), VerdictScreen()
        self.chat_screen = ChatScreen()
        self.add_mode("launch", lambda: self.launch_screen)
        self.add_mode("live", lambda: self.run_screen)
        self.add_mode("replay", lambda: self.replay_screen)
        self.add_mode("ab", lambda: self.ab_screen)
        self.add_mode("compare", lambda: self.compare_screen)
        self.add_mode("chat", lambda: self.chat_screen)
        self._last_experiment_mode = ""
        self._mode_before_chat = "live"

    @property
    def DEFAULT_MODE(self) -> str:  # type: ignore[override]  # noqa: N802 - Textual's name; it asks an instance only
        """The mode to begin in; without one of ours Textual makes a screen, and lays it out, that nobody sees."""
        return "launch" if self._at_launch else App.DEFAULT_MODE

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return SERIES

    async def on_load(self) -> None:
        """Take the threads that were started for work of the first screen, too, which begins before `on_mount`."""
        if self._pool:
            asyncio.get_running_loop().set_default_executor(self._pool)

    async def on_mount(self) -> None:
        if not self.is_headless:
            leave_on_signals(self._end)
        if self._foreign:
            screen = ForeignScreen(self._foreign)
            self.add_mode("foreign", lambda: screen)
            await self.switch_mode("foreign")
        elif self._player:
            self.play(self._player)
        elif self._playback:
            self.show_experiment(self._playback.report.design.id)
            await self.push_screen(self._playback)
        elif self._attach_to:
            self.attach(self._attach_to)

    def play(self, player: Player, own: Run | None = None) -> None:
        """Show a recording on its own screen, which knows no server; `own` is the run of this machine that it is of."""
        self.replay_screen.play(player, own)
        self.switch_mode("replay")

    @on(LaunchScreen.Attach)
    def _on_attach_wanted(self, message: LaunchScreen.Attach) -> None:
        self.open_run(message.run)

    def open_run(self, run: Run) -> None:
        """Watch `run` if its server is running, else replay it."""
        current = self.run_screen.view.run
        if current and current.id == run.id:
            self.switch_mode("live")
        elif not server_process.is_alive(run):
            try:
                self.play(build_player(run), own=None if isinstance(run, Recording) else run)
            except DflashError as error:
                self.push_screen(ErrorDialog(error))
        elif self.preparing:
            self.notify("a launch is being prepared; 2 shows it", severity="warning")
        else:
            self.attach(run)

    def show_experiment(self, identity: str, *, boots: bool = False) -> None:
        """Show the report of an experiment, or its boots if there is none yet or with `boots`."""
        report = None if boots else store.read_report(store.experiment_folder(identity))
        if report and not report.tune:  # the screen of a tune shows what it has found, too
            self.compare_screen.begin(report)
            self._last_experiment_mode = "compare"
        else:
            self.ab_screen.begin(identity, stay=boots)
            self._last_experiment_mode = "ab"
        self.switch_mode(self._last_experiment_mode)

    @on(LaunchScreen.Begun)
    def _on_experiment_begun(self, message: LaunchScreen.Begun) -> None:
        self.show_experiment(message.identity)

    @on(VerdictScreen.Boots)
    def _on_boots_wanted(self, message: VerdictScreen.Boots) -> None:
        self.show_experiment(message.identity, boots=True)

    @on(ExperimentScreen.Over)
    def _on_experiment_over(self, message: ExperimentScreen.Over) -> None:
        if store.read_report(store.experiment_folder(message.identity)):
            self.show_experiment(message.identity)
        else:
            self.notify("the report is not written yet, or cannot be read", severity="warning")

    def action_experiments(self) -> None:
        self.push_screen(ExperimentList(), lambda identity: self.show_experiment(identity) if identity else None)

    def choose(self, name: str) -> None:
        """Show the launch screen with the recipe called `name`."""
        self.launch_screen.choose(name)
        self.switch_mode("launch")

    def action_chat(self) -> None:
        """Talk with the server that is watched, else with the newest, a boot of an A/B where there is no other."""
        watched = self.run_screen.view.run if self.has_server else None
        run = watched or registry.choose_newest(registry.list_living_servers())
        if run is None:
            self.notify("no server is running", severity="warning")
            return
        self.chat_screen.begin(run)
        self._mode_before_chat = self.current_mode
        self.switch_mode("chat")

    def action_leave_chat(self) -> None:
        """Go back to where somebody came from to talk."""
        self.switch_mode(self._mode_before_chat)

    def action_runs(self) -> None:
        self.push_screen(RunList(), lambda run: self.open_run(run) if run else None)

    def action_show(self, mode: str) -> None:
        if mode == "live" and self.run_screen.view.plan is None:  # what is shown instead of a run
            mode = "foreign" if self._foreign else "replay" if self.replay_screen.player else mode
            if mode == "live" and (newest := registry.choose_newest(self.launch_screen.running)):
                self.open_run(newest)
                return
        if mode == "ab":
            self._show_last_experiment()
        else:
            self.switch_mode(mode)

    def _show_last_experiment(self) -> None:
        if self._last_experiment_mode:
            self.switch_mode(self._last_experiment_mode)
        elif designs := store.list_experiments():
            self.show_experiment(designs[-1].id)
        else:
            self.notify("no A/B yet; press a on the launch screen to start one")

    def action_keys(self) -> None:
        self.push_screen(Help(list_keys(self.screen)))

    def action_theme(self) -> None:
        self.theme = LIGHT.name if self.theme == DARK.name else DARK.name

    def action_leave(self) -> None:
        if self._stopping and self._stopping.is_running:
            self.notify("a server is being stopped; please wait", severity="warning")
        elif self.preparing:
            question = Confirm("Quit now?", "A launch is being prepared; quitting cancels it.", "quit", "stay")
            self.push_screen(question, self._leave)
        else:
            self._leave(True)

    def _leave(self, yes: bool | None) -> None:
        if yes:
            self._end(0)

    @work(exclusive=True, group="end")
    async def _end(self, code: int) -> None:
        """Exit with the farewell, unless the connection is lost; a launch that is being prepared is cancelled first.

        Textual may wait for a terminal that is gone, and what is unfinished would stay.
        """
        if self._front and not self._front.worker.is_finished:
            self._front.worker.cancel()
            with suppress(WorkerError):
                await self._front.worker.wait()
        farewell = ""
        if code != 128 + SIGHUP:
            farewell = build_farewell()
        self.exit(farewell, return_code=code)


if TYPE_CHECKING:
    _: type[Panel] = DflashApp  # the palette takes it for one


def run_panel(
    run: Run | None = None,
    *,
    player: Player | None = None,
    foreign: ForeignServer | None = None,
    playback: PlaybackScreen | None = None,
) -> tuple[str, int]:
    """Run the panel on the launch screen, or with a run, a recording, a foreign server or an A/B; return its farewell.

    The number is the exit code: 0, or 128 plus the number of the signal that ended it.

    Raises:
        RuntimeError: no more threads may be started.
    """
    for name in ("COLUMNS", "LINES"):  # Textual takes them for the terminal's size, whatever they say
        os.environ.pop(name, None)
    panel = DflashApp(run, player=player, foreign=foreign, playback=playback, pool=start_threads())
    return panel.run() or "", panel.return_code or 0
