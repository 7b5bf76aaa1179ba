"""The panel: its screens, the worker that watches a run, and the one that launches a server."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from signal import SIGHUP
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.binding import Binding
from textual.worker import Worker, WorkerError

from dflash_tui.common.errors import DflashError, explain_resource_limit
from dflash_tui.common.formatting import describe_attach_and_stop, format_duration, format_host_and_port
from dflash_tui.experiments import store
from dflash_tui.experiments.progress import Progress
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.monitoring.observer import observe_run
from dflash_tui.monitoring.player import Player
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.resolution import ResolvedRecipe
from dflash_tui.presentation import experiment_text
from dflash_tui.runs import server_process
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.basic import Confirm, ErrorDialog, Help, list_keys
from dflash_tui.tui.dialogs.experiments import ExperimentList
from dflash_tui.tui.dialogs.remedies import Launch, RemedyDialog
from dflash_tui.tui.dialogs.runs import RunList
from dflash_tui.tui.dialogs.trust import ask_trust
from dflash_tui.tui.palette import PanelCommands
from dflash_tui.tui.screens.experiment import ExperimentScreen
from dflash_tui.tui.screens.launch import LaunchScreen, list_living_runs, load_recipes, probe_machine
from dflash_tui.tui.screens.replay import ReplayScreen, build_player
from dflash_tui.tui.screens.run import RunScreen
from dflash_tui.tui.screens.verdict import VerdictScreen
from dflash_tui.tui.terminal import TerminalApp, leave_on_signals, start_threads
from dflash_tui.tui.theme import DARK, LIGHT, SERIES
from dflash_tui.tui.widgets.basic import NEEDS
from dflash_tui.tui.widgets.recipe_list import Entries

if TYPE_CHECKING:  # pynvml costs 80 ms that the first paint is spared
    from dflash_tui.machine.gpus import GpuProbe
    from dflash_tui.monitoring.foreign_server import ForeignServer
    from dflash_tui.tui.palette import Panel


class DflashApp(TerminalApp):
    """The panel; it exits with the text to print afterwards.

    Args:
        run: A run to open the panel on.
        player: A recording to open it on.
        foreign: A foreign server to open it on.
        now: The clock.
        probe: Reads the GPUs.
        load: Loads the recipes.
        pool: The threads for work that may take long.
    """

    TITLE = "dflash-tui"
    COMMANDS = TerminalApp.COMMANDS | {PanelCommands}
    CSS_PATH = "app.tcss"
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (NEEDS[0], "-narrow"), (100, "-wide")]  # noqa: RUF012 - Textual's type
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (NEEDS[1], "-short"), (30, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar = [
        Binding("ctrl+q", "leave", "Quit", show=False, priority=True),
        Binding("t", "theme", "Light or dark", show=False, tooltip="Light or dark theme"),
        Binding("3", "show('ab')", "A/B", show=False, tooltip="The A/B viewed last, or the newest"),
        Binding("r", "runs", "Runs", show=False, tooltip="Runs: watch, replay or export one"),
    ]

    def __init__(
        self,
        run: Run | None = None,
        *,
        player: Player | None = None,
        foreign: ForeignServer | None = None,
        now: Callable[[], float] = time.time,
        probe: Callable[[], GpuProbe] = probe_machine,
        load: Callable[[], Entries] = load_recipes,
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        super().__init__()
        self._pool = pool
        self._attach_to, self._player, self._foreign = run, player, foreign
        self.launch_screen, self.run_screen = LaunchScreen(now, probe, load), RunScreen(now)
        self.replay_screen = ReplayScreen()
        self.ab_screen, self.compare_screen = ExperimentScreen(now), VerdictScreen()
        self.add_mode("ab", lambda: self.ab_screen)
        self.add_mode("compare", lambda: self.compare_screen)
        self.add_mode("launch", lambda: self.launch_screen)
        self.add_mode("live", lambda: self.run_screen)
        self.add_mode("replay", lambda: self.replay_screen)
        self._last_experiment_mode = ""
        self._launching: Worker[None] | None = None
        self._stopping: Worker[None] | None = None

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return SERIES

    async def on_mount(self) -> None:
        if self._pool:
            asyncio.get_running_loop().set_default_executor(self._pool)
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = DARK.name
        if not self.is_headless:
            leave_on_signals(self._end)
        if self._foreign:
            from dflash_tui.tui.screens.foreign import ForeignScreen

            screen = ForeignScreen(self._foreign)
            self.add_mode("foreign", lambda: screen)
            await self.switch_mode("foreign")
        elif self._player:
            self.play(self._player)
        elif self._attach_to:
            self.attach(self._attach_to)
        else:
            await self.switch_mode("launch")

    @work(exclusive=True, group="observe")
    async def follow(self, run: Run) -> None:
        """Feed the run screen with the events of `run`."""
        try:
            async with observe_run(run) as events:
                async for event in events:
                    self.run_screen.take(event)
        except DflashError as error:
            self.run_screen.fail(error)

    @work(exclusive=True, group="bring-up")
    async def bring_up(self, setup: ResolvedRecipe, plan: Plan, forced: str) -> None:
        """Prepare and launch `plan`, then follow it."""
        from dflash_tui.launch import admission, preparation

        def report_moved(line: str) -> None:
            self.call_from_thread(self.notify, line, markup=False)

        try:
            async with admission.reserve_launch(PlannedLaunch(setup, plan), report_moved, forced=forced) as planned:
                if planned.plan is not plan:
                    self.run_screen.prepare(planned.plan)
                run = await preparation.prepare_and_launch(*planned[:2], self.run_screen.take, forced=forced)
        except (DflashError, OSError, RuntimeError) as error:
            explained = explain_resource_limit(error) or error
            if isinstance(explained, RuntimeError):
                raise
            self.run_screen.fail(explained if isinstance(explained, DflashError) else DflashError(str(explained)))
            return
        self._launching = None
        self.attach(run)

    def attach(self, run: Run) -> None:
        """Show `run` on the run screen."""
        self.run_screen.begin(run)
        self.switch_mode("live")
        self.follow(run)

    def play(self, player: Player) -> None:
        """Show a recording on its own screen, which knows no server."""
        self.replay_screen.play(player)
        self.switch_mode("replay")

    @on(LaunchScreen.Attach)
    def _on_attach_wanted(self, message: LaunchScreen.Attach) -> None:
        self.open_run(message.run)

    def open_run(self, run: Run) -> None:
        """Watch `run` if its server is running, else replay it."""
        current = self.run_screen.run
        if current and current.id == run.id:
            self.switch_mode("live")
        elif not server_process.is_alive(run):
            try:
                self.play(build_player(run))
            except DflashError as error:
                self.push_screen(ErrorDialog(error))
        elif self.preparing:
            self.notify("a launch is being prepared; 2 shows it", severity="warning")
        else:
            self.attach(run)

    def show_experiment(self, identity: str, *, boots: bool = False) -> None:
        """Show the report of an experiment, or its boots if there is none yet or with `boots`."""
        report = None if boots else store.read_report(store.experiment_folder(identity))
        if report:
            self.compare_screen.begin(report)
        else:
            self.ab_screen.begin(identity, stay=boots)
        self._last_experiment_mode = "compare" if report else "ab"
        self.switch_mode(self._last_experiment_mode)

    @on(LaunchScreen.Begun)
    def _on_experiment_begun(self, message: LaunchScreen.Begun) -> None:
        self.show_experiment(message.identity)

    @on(VerdictScreen.Boots)
    def _on_boots_wanted(self, message: VerdictScreen.Boots) -> None:
        self.show_experiment(message.identity, boots=True)

    @on(ExperimentScreen.Over)
    def _on_verdict_wanted(self, message: ExperimentScreen.Over) -> None:
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

    def action_runs(self) -> None:
        self.push_screen(RunList(), lambda run: self.open_run(run) if run else None)

    @on(LaunchScreen.Launch)
    def _on_launch_wanted(self, message: LaunchScreen.Launch) -> None:
        setup = message.setup
        ask_trust(self, setup.recipe, [setup.engine.vllm], lambda: self._ask_and_start(message))

    def _ask_and_start(self, message: LaunchScreen.Launch) -> None:
        """Launch what is wanted, after asking where another server runs."""
        plan, port = message.plan, message.setup.recipe.port
        if self.preparing:
            self.notify("another launch is being prepared; 2 shows it", severity="warning")
            return
        moved = (
            f" Port {port} is taken, so it gets {plan.port}."
            if plan.port != port and not (plan.request and plan.request.port)
            else ""
        )
        others = list_living_runs()
        if not others:
            self._start(message, moved)
            return
        names = ", ".join(f"{run.plan.recipe} on :{run.plan.port}" for run in others)
        question = Confirm(
            "Launch beside a running server?",
            f"{names} would share memory and processor with it, so the figures of both suffer.{moved}",
            f"launch {plan.recipe} as well",
        )
        self.push_screen(question, lambda yes: self._start(message, moved) if yes else None)

    def _start(self, message: LaunchScreen.Launch, moved: str) -> None:
        if moved:
            self.notify(moved.strip(), markup=False)
        self.workers.cancel_group(self, "observe")
        self.run_screen.prepare(message.plan)
        self.switch_mode("live")
        self._launching = self.bring_up(message.setup, message.plan, message.forced)

    @property
    def preparing(self) -> bool:
        """Whether a launch is being prepared, which leaving would give up."""
        return self._launching is not None and self._launching.is_running

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        if action == "fix":
            failure = self.run_screen.failure
            return failure is not None and bool(failure.remedies)
        return self.run_screen.has_server if action == "stop" else True

    def action_stop(self) -> None:
        if self.preparing and self._launching:
            question = Confirm("Cancel the launch?", "Whatever is unfinished is removed.", "cancel it", "go on")
            self.push_screen(question, self._cancel_launch)
            return
        run = self.run_screen.run
        if run is None or not server_process.is_alive(run):
            self.notify("no server is running", severity="warning")
            return
        detail = f"{run.plan.recipe} on :{run.plan.port}, {run.id}. Running requests are aborted."
        self.push_screen(Confirm("Stop the server?", detail, "stop it", "let it run"), lambda yes: self._stop(yes, run))

    def _stop(self, yes: bool | None, run: Run) -> None:
        if yes:
            self._stopping = self.stop(run)

    def _cancel_launch(self, yes: bool | None) -> None:
        if yes and self._launching:
            self._launching.cancel()
            self._launching = None
            self.run_screen.clear()
            self.switch_mode("launch")

    @work(exclusive=True, group="stop")
    async def stop(self, run: Run) -> None:
        """Stop the server of `run`, wait until its memory is free, and go back to the launch screen."""
        from dflash_tui.launch import shutdown

        try:
            seconds, stayed = await shutdown.stop_and_release_memory(run, lambda line: self.notify(line, timeout=2))
        except DflashError as error:
            self.push_screen(ErrorDialog(error))
            return
        self.notify(f"{run.plan.recipe} has stopped, in {format_duration(seconds)}", markup=False)
        if stayed:
            self.notify(stayed, severity="warning", markup=False, timeout=20)
        if self.current_mode == "live" and self.run_screen.run is run:
            self.switch_mode("launch")

    def action_fix(self) -> None:
        run, failure = self.run_screen.run, self.run_screen.failure
        if run and failure and failure.remedies:
            self.push_screen(RemedyDialog(run, failure), self._launch_again)

    def _launch_again(self, chosen: Launch | None) -> None:
        if chosen:
            self.post_message(LaunchScreen.Launch(*chosen))

    def action_show(self, mode: str) -> None:
        if mode == "live" and self.run_screen.plan is None:  # what is shown instead of a run
            mode = "foreign" if self._foreign else "replay" if self.replay_screen.player else mode
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
        if self._launching and not self._launching.is_finished:
            self._launching.cancel()
            with suppress(WorkerError):
                await self._launching.wait()
        farewell = ""
        if code != 128 + SIGHUP:
            folders = [store.experiment_folder(design.id) for design in store.list_experiments()]
            driven = [store.read_progress(folder) for folder in folders if store.find_driver(folder)]
            farewell = format_farewell(list_living_runs(), driven)
        self.exit(farewell, return_code=code)


if TYPE_CHECKING:
    _: type[Panel] = DflashApp  # the palette takes it for one


def format_farewell(runs: list[Run], driven: Sequence[Progress] = ()) -> str:
    """Return what to print after the panel: what keeps running, how to attach to it and how to stop it."""
    measured = {progress.current.run for progress in driven if progress.current}
    paragraphs = [
        f"{run.plan.recipe} keeps running on {format_host_and_port(run.plan.host, run.plan.port)}\n"
        f"{describe_attach_and_stop(run.id)}"
        for run in runs
        if run.id not in measured
    ]
    paragraphs += [
        f"the A/B of {progress.design.recipe} continues in the background\n"
        + experiment_text.describe_experiment_commands(progress.design.id)
        for progress in driven
    ]
    return "\n".join(paragraphs)


def run_panel(
    run: Run | None = None, *, player: Player | None = None, foreign: ForeignServer | None = None
) -> tuple[str, int]:
    """Run the panel on the launch screen, or with a run, a recording or a foreign server; return its farewell.

    The number is the exit code: 0, or 128 plus the number of the signal that ended it.

    Raises:
        RuntimeError: no more threads may be started.
    """
    panel = DflashApp(run, player=player, foreign=foreign, pool=start_threads())
    gc.freeze()  # collecting them again would delay a key press by 40 ms, at any time
    return panel.run() or "", panel.return_code or 0
