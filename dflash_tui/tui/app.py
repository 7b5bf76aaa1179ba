"""The panel: its screens, the switching between them, and how it exits."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, partial
from signal import SIGHUP
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import structs
from textual import on, work
from textual.app import App
from textual.binding import Binding
from textual.screen import Screen
from textual.theme import Theme
from textual.worker import Worker, WorkerError, get_current_worker

from dflash_tui.common.errors import DflashError, ServerFailed, explain_resource_limit
from dflash_tui.common.formatting import (
    describe_attach_and_stop,
    format_duration,
    format_host_and_port,
    name_program,
    read_called_name,
)
from dflash_tui.events import Preparing
from dflash_tui.launch import planner
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.presentation.plan_text import format_restart_limit
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.basic import Confirm, KeysDialog, ask, confirm_trust, list_keys, showing_errors
from dflash_tui.tui.screens.launch import LaunchScreen
from dflash_tui.tui.terminal import TerminalApp, leave_on_signals, start_threads
from dflash_tui.tui.widgets.basic import NEEDS
from dflash_tui.tui.widgets.recipe_list import Entries, load_recipes

if TYPE_CHECKING:  # imported where a screen is opened: the first frame does not need it
    from textual.command import Provider

    from dflash_tui.diagnosis.postmortem import Postmortem
    from dflash_tui.experiments.progress import Progress
    from dflash_tui.launch.session import LaunchEvent, LaunchQuestion
    from dflash_tui.monitoring.foreign_server import ForeignServer
    from dflash_tui.monitoring.recording import Player
    from dflash_tui.run_state.state import RunState
    from dflash_tui.tui.palette import Panel
    from dflash_tui.tui.screens.chat import ChatScreen
    from dflash_tui.tui.screens.experiment import ExperimentScreen
    from dflash_tui.tui.screens.playback import PlaybackScreen
    from dflash_tui.tui.screens.run import ForeignScreen, ReplayScreen, RunScreen
    from dflash_tui.tui.screens.verdict import VerdictScreen
    from dflash_tui.tui.widgets.run_view import RunView


class _Front:
    """Connects a launch to the panel: asks its questions, shows its events and watches its server."""

    def __init__(self, panel: DflashApp, worker: Worker[None]) -> None:
        self._panel, self.worker = panel, worker
        self.is_preparing = False
        self.crashed: Run | None = None
        """The failed run whose restart is pending."""

    async def confirm(self, question: LaunchQuestion) -> bool:
        """Ask the question in a dialog."""
        from dflash_tui.launch import session

        match question:
            case session.TrustQuestion(recipe, plans):
                return await confirm_trust(self._panel, recipe, plans)
            case session.BesideQuestion(plan, others):
                names = ", ".join(f"{run.plan.recipe} on :{run.plan.port}" for run in others)
                detail = f"{names} and this one would share memory and processor, so the figures of each suffer."
                confirm = Confirm(
                    "Launch next to a running server?", detail, f"launch {plan.recipe} on :{plan.port} as well"
                )
                return await self._panel.push_screen_wait(confirm)

    def show(self, event: LaunchEvent) -> None:
        """Show a launch event on the run screen and as a notification."""
        from dflash_tui.launch import session

        screen, notify = self._panel.run_screen.view, partial(self._panel.notify, markup=False)
        match event:
            case session.LaunchBegun(planned):
                self.is_preparing, self.crashed = True, None
                self._panel.begin_watching(self)
                screen.prepare(planned.plan)
                self._show_screen(planned)
            case session.LaunchPlanned(planned):
                if planned.plan is not screen.plan:
                    screen.prepare(planned.plan)
                if text := _describe_moved_port(planned):
                    notify(text)
            case Preparing():
                screen.take(event)
            case session.ServerLaunched(_, planned):
                self.is_preparing = False
                self._show_screen(planned)
            case session.RestartDue(run, number, seconds, policy):
                self.crashed = run
                self._panel.screen.refresh_bindings()
                text = f"launching again in {seconds:.0f} s: restart {number}, {format_restart_limit(policy)}"
                notify(text, severity="warning", timeout=max(seconds, 5))
            case session.RestartRefused(_, why):
                self.crashed = None
                notify(f"not launched again: {why}", severity="error", timeout=60)
            case session.LaunchNote(text):
                notify(text)

    def _show_screen(self, planned: PlannedLaunch) -> None:
        if not planned.replaces:  # a restart does not interrupt the user
            self._panel.switch_mode("live")

    async def watch(self, run: Run, state: RunState) -> None:
        """Feed the run screen with the events of `run` until its server ends.

        Raises:
            ServerFailed: the server failed.
        """
        from dflash_tui.diagnosis import postmortem
        from dflash_tui.monitoring.observer import observe_run

        self._panel.run_screen.view.begin(run)
        self._panel.run_screen.view.state = state
        async with observe_run(run) as events:
            async for event in events:
                self._panel.run_screen.view.take(event)
        if failure := postmortem.build_postmortem(run, state):
            raise postmortem.build_failure(failure)


def _describe_moved_port(planned: PlannedLaunch) -> str:
    """Return a notice if the recipe's port is taken and the user asked for none, else ""."""
    plan, port = planned.plan, planned.resolved.recipe.port
    is_moved = plan.port != port and not plan.relaunch_request.port
    return f"port {port} is taken, so it gets {plan.port}" if is_moved else ""


_SCREENS = {
    "live": "run_screen", "replay": "replay_screen",
    "ab": "ab_screen", "compare": "compare_screen", "chat": "chat_screen",
}  # fmt: skip
# Themes from the palette lack these variables and get these values.
SERIES = {"series-a": "#56B4E9", "series-b": "#E69F00", "series-c": "#CC79A7", "series-dim": "#3F6E8C"}

DARK = Theme(
    "dflash-dark",
    primary="#56B4E9",
    secondary="#4C7A99",
    accent="#E69F00",
    success="#2CC59B",
    warning="#F0E442",
    error="#E8743B",
    background="#101418",
    surface="#161B21",
    panel="#1E252D",
    foreground="#D5DAE0",
    variables={
        **SERIES,
        "border": "#3A4550",
        "border-blurred": "#33404B",
        "footer-background": "#161B21",
        "footer-key-foreground": "#56B4E9",
        "block-cursor-foreground": "#101418",
        "block-cursor-blurred-background": "#274357",
    },
)

LIGHT = Theme(
    "dflash-light",
    primary="#0072B2",
    secondary="#4C7A99",
    accent="#B34700",
    success="#00785A",
    warning="#7A5C00",
    error="#B34700",
    background="#F5F5F2",
    surface="#ECECE8",
    panel="#E2E2DD",
    foreground="#20262C",
    dark=False,
    variables={
        "series-a": "#0072B2",
        "series-b": "#D55E00",
        "series-c": "#A3477F",
        "series-dim": "#5C8AA8",
        "border": "#A9AEB2",
        "border-blurred": "#C2C6C9",
        "footer-key-foreground": "#0072B2",
        "block-cursor-foreground": "#FFFFFF",
        "block-cursor-blurred-background": "#BCD6E6",
    },
)


def build_farewell() -> str:
    """Return the text to print on exit: the running servers and experiments, or ""."""
    from dflash_tui.experiments import store

    folders = [store.experiment_folder(design.id) for design in store.list_experiments()]
    driven = [store.read_progress(folder) for folder in folders if store.find_driver(folder)]
    return format_farewell(registry.list_living_servers(), driven)


def format_farewell(runs: list[Run], driven: Sequence[Progress] = ()) -> str:
    """Return the text to print on exit: what keeps running, how to attach to it and how to stop it."""
    from dflash_tui.presentation import experiment_text

    measured = {progress.current.run for progress in driven if progress.current}
    paragraphs = [_describe_running(run) for run in runs if run.id not in measured]
    paragraphs += [
        f"the {'tune' if progress.design.tuning else 'A/B'} of {progress.design.recipe} continues in the background\n"
        + experiment_text.describe_experiment_commands(progress.design, name_program())
        for progress in driven
    ]
    return "\n".join(paragraphs)


def _describe_running(run: Run) -> str:
    from dflash_tui.presentation.client_text import Endpoint, describe_use

    commands = describe_attach_and_stop(run.id)
    if run.plan.rank:
        return f"rank {run.plan.rank} of {run.plan.recipe} keeps running\n{commands}"
    where = format_host_and_port(run.plan.host, run.plan.port)
    use = describe_use(Endpoint.from_run(run), read_called_name())
    return f"{run.plan.recipe} keeps running on {where}\n{commands}\n{use}"


def _load_palette() -> type[Provider]:
    from dflash_tui.tui.palette import PanelCommands

    return PanelCommands


class DflashApp(TerminalApp):
    """The panel; its result is the text to print on exit.

    Args:
        run: The run to open.
        player: The recording to open.
        foreign: The foreign server to open.
        playback: The playback of an A/B to open.
        now: The clock.
        probe: Reads the GPUs.
        load: Loads the recipes.
        pool: The threads for slow work.
    """

    TITLE = "dflash-tui"
    COMMANDS: ClassVar = {_load_palette}
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
        load: Callable[[], Entries] = load_recipes,
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        self._at_launch = not (run or player or foreign or playback)
        super().__init__()
        self._read_time = now
        self._front: _Front | None = None
        self._stopping: Worker[None] | None = None
        for theme in (DARK, LIGHT):
            self.register_theme(theme)
        self.set_reactive(App.theme, DARK.name)  # assigning the theme would parse and apply all styles again
        self.stylesheet.set_variables(self.get_css_variables())
        self._pool = pool
        self._attach_to, self._player, self._foreign, self._playback = run, player, foreign, playback
        self.launch_screen = LaunchScreen(now, probe, load)
        for mode, screen in _SCREENS.items():
            self.add_mode(mode, partial(getattr, self, screen))
        self._last_experiment_mode = ""
        self._mode_before_chat = "live"
        self._foreign_screens: dict[str, ForeignScreen] = {}

    @cached_property
    def run_screen(self) -> RunScreen:
        """The screen of the watched run."""
        from dflash_tui.tui.screens.run import RunScreen

        return RunScreen(self._read_time)

    @cached_property
    def replay_screen(self) -> ReplayScreen:
        """The screen of a recording."""
        from dflash_tui.tui.screens.run import ReplayScreen

        return ReplayScreen()

    @cached_property
    def ab_screen(self) -> ExperimentScreen:
        """The screen of a running A/B or tune."""
        from dflash_tui.tui.screens.experiment import ExperimentScreen

        return ExperimentScreen(self._read_time)

    @cached_property
    def compare_screen(self) -> VerdictScreen:
        """The screen of a verdict."""
        from dflash_tui.tui.screens.verdict import VerdictScreen

        return VerdictScreen()

    @cached_property
    def chat_screen(self) -> ChatScreen:
        """The chat screen."""
        from dflash_tui.tui.screens.chat import ChatScreen

        return ChatScreen()

    @property
    def DEFAULT_MODE(self) -> str:  # type: ignore[override]  # noqa: N802 - Textual's name; it asks an instance only
        """The mode to start in."""
        return "launch" if self._at_launch else App.DEFAULT_MODE

    def get_default_screen(self) -> Screen[Any]:
        """Return the first screen; a mode's screen would make Textual parse the style sheet twice."""
        return self.launch_screen if self._at_launch else super().get_default_screen()

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return SERIES

    async def on_load(self) -> None:
        """Use the given threads as the default executor, and prepare the first screen."""
        if self._pool:
            asyncio.get_running_loop().set_default_executor(self._pool)
        if self._at_launch:
            await self.launch_screen.prepare()

    async def on_mount(self) -> None:
        self.add_mode("launch", lambda: self.launch_screen)
        if not self.is_headless:
            leave_on_signals(self._end)
        if self._foreign:
            self.watch_foreign(self._foreign)
        elif self._player:
            self.play(self._player)
        elif self._playback:
            self.show_experiment(self._playback.report.design.id)
            await self.push_screen(self._playback)
        elif self._attach_to:
            self.attach(self._attach_to)

    def watch_foreign(self, server: ForeignServer) -> None:
        """Show a foreign server; each has its own screen."""
        from dflash_tui.tui.screens.run import ForeignScreen

        if server.url not in self._foreign_screens:
            self._foreign_screens[server.url] = screen = ForeignScreen(server)
            self.add_mode(server.url, lambda: screen)
        self._foreign = server
        self.switch_mode(server.url)

    def play(self, player: Player, own: Run | None = None) -> None:
        """Show a recording on the replay screen; `own` is its run if it was made on this machine."""
        self.replay_screen.play(player, own)
        self.switch_mode("replay")

    @on(LaunchScreen.Attach)
    def _on_attach_wanted(self, message: LaunchScreen.Attach) -> None:
        if isinstance(message.server, Run):
            self.open_run(message.server)
        else:
            from dflash_tui.monitoring.foreign_server import ForeignServer

            self.watch_foreign(ForeignServer(message.server.url))

    def open_run(self, run: Run) -> None:
        """Watch `run` if its server is running, otherwise replay it."""
        from dflash_tui.monitoring.recording import Recording
        from dflash_tui.tui.screens.run import build_player

        current = self.run_screen.view.run
        if current and current.id == run.id:
            self.switch_mode("live")
        elif not server_process.is_alive(run):
            with showing_errors(self):
                self.play(build_player(run), own=None if isinstance(run, Recording) else run)
        elif self.preparing:
            self.notify("a launch is being prepared; 2 shows it", severity="warning")
        else:
            self.attach(run)

    def show_experiment(self, identity: str, *, boots: bool = False) -> None:
        """Show the report of an experiment, or its boots if there is no report or `boots` is set."""
        from dflash_tui.experiments import store

        report = None if boots else store.read_report(store.experiment_folder(identity))
        if report and not report.tune:  # a tune's own screen shows its outcome
            self.compare_screen.begin(report)
            self._last_experiment_mode = "compare"
        else:
            self.ab_screen.begin(identity, stay=boots)
            self._last_experiment_mode = "ab"
        self.switch_mode(self._last_experiment_mode)

    @on(LaunchScreen.Begun)
    def _on_experiment_begun(self, message: LaunchScreen.Begun) -> None:
        self.show_experiment(message.identity)

    def on_verdict_screen_boots(self, message: VerdictScreen.Boots) -> None:
        self.show_experiment(message.identity, boots=True)

    def on_experiment_screen_over(self, message: ExperimentScreen.Over) -> None:
        from dflash_tui.experiments import store

        if store.read_report(store.experiment_folder(message.identity)):
            self.show_experiment(message.identity)
        else:
            self.notify("the report is not written yet, or cannot be read", severity="warning")

    def action_experiments(self) -> None:
        from dflash_tui.tui.dialogs.experiments import ExperimentList

        self.push_screen(ExperimentList(), self._show_returned)

    def choose(self, name: str) -> None:
        """Show the launch screen with the recipe called `name`."""
        self.launch_screen.choose(name)
        self.switch_mode("launch")

    def action_chat(self) -> None:
        """Chat with the server on screen, otherwise with the newest one; boots of an A/B come last."""
        if self.current_mode == "replay":
            self.notify("a recording cannot answer; 2 shows the watched server", severity="warning")
            return
        watched = self.run_screen.view.run if self.has_server else None
        run = watched or registry.choose_newest(registry.list_living_servers())
        if run is None:
            self.notify("no server is running", severity="warning")
            return
        self.chat_screen.begin(run)
        self._mode_before_chat = self.current_mode
        self.switch_mode("chat")

    def action_leave_chat(self) -> None:
        """Return to the screen that was open before the chat."""
        self.switch_mode(self._mode_before_chat)

    def action_runs(self) -> None:
        from dflash_tui.tui.dialogs.runs import RunList

        self.push_screen(RunList(), lambda run: self.open_run(run) if run else None)

    def action_show(self, mode: str) -> None:
        if mode == "live" and self.run_screen.view.plan is None:  # no run: show the foreign server or the recording
            mode = self._foreign.url if self._foreign else "replay" if self.replay_screen.player else mode
            if mode == "live" and (newest := registry.choose_newest(self.launch_screen.running)):
                self.open_run(newest)
                return
        if mode == "ab":
            self._show_last_experiment()
        else:
            self.switch_mode(mode)

    def _show_last_experiment(self) -> None:
        from dflash_tui.experiments import store

        if self._last_experiment_mode:
            self.switch_mode(self._last_experiment_mode)
        elif designs := store.list_experiments():
            self.show_experiment(designs[-1].id)
        else:
            self.notify("no A/B yet; press a on the launch screen to start one")

    def action_keys(self) -> None:
        self.push_screen(KeysDialog(list_keys(self.screen)))

    def action_theme(self) -> None:
        self.theme = LIGHT.name if self.theme == DARK.name else DARK.name

    def action_leave(self) -> None:
        if self._stopping and self._stopping.is_running:
            self.notify("a server is being stopped; please wait", severity="warning")
        elif self.preparing:
            question = Confirm("Quit now?", "A launch is being prepared; quitting cancels it.", "quit", "stay")
            ask(self, question, partial(self._end, 0))
        else:
            self._end(0)

    @work(exclusive=True, group="end")
    async def _end(self, code: int) -> None:
        """Cancel a launch in preparation, then exit with the farewell (none after SIGHUP).

        The launch comes first: exiting may block on a closed terminal and leave unfinished work behind.
        """
        if self._front and not self._front.worker.is_finished:
            self._front.worker.cancel()
            with suppress(WorkerError):
                await self._front.worker.wait()
        farewell = ""
        if code != 128 + SIGHUP:
            farewell = build_farewell()
        self.exit(farewell, return_code=code)

    @property
    def has_server(self) -> bool:
        """Whether the watched run's server is running or being launched."""
        return "run_screen" in vars(self) and self.run_screen.view.has_server

    @work(exclusive=True, group="observe")
    async def follow(self, run: Run) -> None:
        """Feed the run screen with the events of `run`."""
        from dflash_tui.monitoring.observer import observe_run

        try:
            async with observe_run(run) as events:
                async for event in events:
                    self.run_screen.view.take(event)
        except DflashError as error:
            self.run_screen.view.fail(error)

    @work(group="launch")
    async def bring_up(self, planned: PlannedLaunch) -> None:
        """Launch a server and supervise it, after asking for confirmation where needed."""
        from dflash_tui.launch import session
        from dflash_tui.peers import cluster_launch

        front = _Front(self, get_current_worker())
        try:
            await session.run_server(planned, front, cluster_launch.reach_hosts, planned.plan.restart)
        except (DflashError, OSError, RuntimeError) as error:
            if isinstance(error, ServerFailed) and not front.is_preparing:
                return  # the run screen already shows why a watched server failed
            explained = explain_resource_limit(error) or error
            if isinstance(explained, RuntimeError):
                raise
            self.run_screen.view.fail(explained if isinstance(explained, DflashError) else DflashError(str(explained)))

    def attach(self, run: Run) -> None:
        """Watch `run` on the run screen."""
        self.begin_watching(None)
        self.run_screen.view.begin(run)
        self.switch_mode("live")
        self.follow(run)

    def begin_watching(self, front: _Front | None) -> None:
        """Assign the run screen to `front`'s launch, or to an attached run if None; cancel any other launch."""
        if self._front and self._front is not front:
            self._front.worker.cancel()
        self._front = front
        self.workers.cancel_group(self, "observe")

    @on(LaunchScreen.Launch)
    def _on_launch_wanted(self, message: LaunchScreen.Launch) -> None:
        if self.preparing:
            self.notify("another launch is being prepared; 2 shows it", severity="warning")
        else:
            self.bring_up(message.planned)

    @property
    def preparing(self) -> bool:
        """Whether a launch is being prepared; quitting would cancel it."""
        return self._front is not None and self._front.is_preparing and self._front.worker.is_running

    @property
    def restarting(self) -> Run | None:
        """The failed run whose restart is pending."""
        return self._front.crashed if self._front and self._front.worker.is_running else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        if action == "fix":
            return self._shown.own is not None and bool(self._shown.failure and self._shown.failure.remedies)
        if action == "relaunch":
            return self._shown.own is not None
        if action == "try_drafts":
            return self._shown.forecast is not None
        return self.has_server or self.restarting is not None if action == "stop" else True

    @property
    def _shown(self) -> RunView:
        from dflash_tui.tui.screens.run import ViewScreen

        shown = self.screen if self.screen_stack else None
        return shown.view if isinstance(shown, ViewScreen) else self.run_screen.view

    def action_stop(self) -> None:
        if self.preparing:
            question = Confirm("Cancel the launch?", "Anything incomplete is removed.", "cancel it", "continue")
            ask(self, question, self._cancel_launch)
            return
        if crashed := self.restarting:
            from dflash_tui.launch import session

            question = Confirm("Cancel the restart?", f"{crashed.id} has failed.", "cancel it", "continue")
            ask(self, question, partial(session.cancel_restarts, crashed))
            return
        run = self.run_screen.view.run
        if run is None or not server_process.is_alive(run):
            self.notify("no server is running", severity="warning")
            return
        detail = f"{run.plan.recipe} on :{run.plan.port}, {run.id}. Running requests are aborted."
        ask(self, Confirm("Stop the server?", detail, "stop it", "let it run"), partial(self._stop, run))

    def _stop(self, run: Run) -> None:
        self._stopping = self.stop(run)

    def _cancel_launch(self) -> None:
        self.begin_watching(None)
        self.run_screen.view.clear()
        self.switch_mode("launch")

    @work(exclusive=True, group="stop")
    async def stop(self, run: Run) -> None:
        """Stop the server of `run`, wait until its memory is free, and return to the launch screen."""
        from dflash_tui.launch import shutdown
        from dflash_tui.peers import keeper

        with showing_errors(self):
            seconds, stayed = await shutdown.stop_and_release_memory(run, lambda line: self.notify(line, timeout=2))
            for far in await keeper.wait_until_stopped(run) if run.far_ranks else ():
                left = far.state in server_process.THERE
                self.notify(str(far), severity="warning" if left else "information", markup=False)
            self.notify(f"{run.plan.recipe} has stopped, in {format_duration(seconds)}", markup=False)
            if stayed:
                self.notify(stayed, severity="warning", markup=False, timeout=20)
            if self.current_mode == "live" and self.run_screen.view.run is run:
                self.switch_mode("launch")

    def action_fix(self) -> None:
        self._launch_again(self._shown.failure)

    def action_try_drafts(self) -> None:
        """Open the A/B, or the tune, that tries the drafts that the last prompts predict to be faster."""
        from dflash_tui.monitoring import step_history
        from dflash_tui.tui.dialogs.experiments import NewExperiment, NewTune

        plan, forecast = self._shown.plan, self._shown.forecast
        if plan and forecast and self.launch_screen.is_alone(plan):
            request, vary = step_history.build_trial(plan, forecast)
            dialog = (NewExperiment if forecast.step_ratio else NewTune)(structs.replace(plan, request=request))
            dialog.vary = vary
            self.push_screen(dialog, self._show_returned)

    def _show_returned(self, identity: str | None) -> None:
        if identity:
            self.show_experiment(identity)

    def action_relaunch(self) -> None:
        self._launch_again(None)

    def _launch_again(self, failure: Postmortem | None) -> None:
        """Offer to launch the shown run again: as it was, or with a remedy for its failure."""
        from dflash_tui.tui.dialogs.doctor import RemedyDialog

        def launch(chosen: PlannedLaunch | None) -> None:
            if chosen:
                self.post_message(LaunchScreen.Launch(chosen))

        if run := self._shown.own:
            self.push_screen(RemedyDialog(run, failure), launch)


if TYPE_CHECKING:
    _: type[Panel] = DflashApp  # checks that the app satisfies the palette's protocol


def run_panel(
    run: Run | None = None,
    *,
    player: Player | None = None,
    foreign: ForeignServer | None = None,
    playback: PlaybackScreen | None = None,
) -> tuple[str, int]:
    """Run the panel and return its farewell and exit code.

    The exit code is 0, or 128 plus the number of the signal that ended the panel.

    Raises:
        RuntimeError: the system allows no more threads.
    """
    for name in ("COLUMNS", "LINES"):  # Textual would use them as the terminal's size even if they are stale
        os.environ.pop(name, None)
    panel = DflashApp(run, player=player, foreign=foreign, playback=playback, pool=start_threads())
    return panel.run() or "", panel.return_code or 0
