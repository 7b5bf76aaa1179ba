"""The part of the panel that has to do with servers: prepare and launch one, follow it, stop it, launch it again."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from textual import on, work
from textual.worker import Worker, get_current_worker

from dflash_tui.common.errors import DflashError, ServerFailed, explain_resource_limit
from dflash_tui.common.formatting import format_duration
from dflash_tui.events import Preparing
from dflash_tui.launch import restarts
from dflash_tui.launch.planner import LaunchJob, PlannedLaunch
from dflash_tui.presentation.plan_text import format_restart_limit
from dflash_tui.runs import server_process
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.basic import Confirm, ErrorDialog
from dflash_tui.tui.dialogs.remedies import Launch, RemedyDialog, offer_same_again
from dflash_tui.tui.dialogs.trust import confirm_trust
from dflash_tui.tui.screens.launch import LaunchScreen
from dflash_tui.tui.screens.run import RunScreen, ViewScreen
from dflash_tui.tui.terminal import TerminalApp
from dflash_tui.tui.widgets.run_view import RunView

if TYPE_CHECKING:
    from dflash_tui.launch.session import LaunchEvent, LaunchQuestion
    from dflash_tui.run_state.state import RunState


class _Front:
    """What a launch asks, shows and watches in the panel."""

    def __init__(self, panel: ServerApp, worker: Worker[None]) -> None:
        self._panel, self.worker = panel, worker
        self.is_preparing = False
        self.crashed: Run | None = None
        """The run that failed and is about to be launched again."""

    async def confirm(self, question: LaunchQuestion) -> bool:
        """Ask in a dialog."""
        from dflash_tui.launch import session

        match question:
            case session.TrustQuestion(recipe, plans):
                return await confirm_trust(self._panel, recipe, plans)
            case session.BesideQuestion(plan, others):
                names = ", ".join(f"{run.plan.recipe} on :{run.plan.port}" for run in others)
                detail = f"{names} and this one would share memory and processor, so the figures of each suffer."
                confirm = Confirm(
                    "Launch beside a running server?", detail, f"launch {plan.recipe} on :{plan.port} as well"
                )
                return await self._panel.push_screen_wait(confirm)

    def show(self, event: LaunchEvent) -> None:
        """Show what happens on the run screen, and as messages."""
        from dflash_tui.launch import session

        screen = self._panel.run_screen.view
        match event:
            case session.LaunchBegun(job):
                self.is_preparing, self.crashed = True, None
                self._panel.begin_watching(self)
                screen.prepare(job.planned.plan)
                self._show_screen(job)
            case session.LaunchPlanned(job):
                if job.planned.plan is not screen.plan:
                    screen.prepare(job.planned.plan)
                if text := _describe_moved_port(job.planned):
                    self._panel.notify(text, markup=False)
            case Preparing():
                screen.take(event)
            case session.ServerLaunched(_, job):
                self.is_preparing = False
                self._show_screen(job)
            case _:
                self._notify(event)

    def _show_screen(self, job: LaunchJob) -> None:
        if not job.replaces:  # who does something else meanwhile is not interrupted
            self._panel.switch_mode("live")

    def _notify(self, event: LaunchEvent) -> None:
        from dflash_tui.launch import session

        notify = partial(self._panel.notify, markup=False)
        match event:
            case session.ForkFailed(_, why):
                notify(f"{why}; launching again with spawn", severity="warning", timeout=20)
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

    async def watch(self, run: Run, state: RunState) -> None:
        """Feed the run screen with the events of `run` until its server ends.

        Raises:
            ServerFailed: it failed.
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
    """Return that a server gets another port than its recipe's, which nobody asked for; empty when it does not."""
    plan, port = planned.plan, planned.resolved.recipe.port
    is_moved = plan.port != port and not plan.relaunch_request.port
    return f"port {port} is taken, so it gets {plan.port}" if is_moved else ""


class ServerApp(TerminalApp):
    """An app with a run screen and the worker that launches its server; one launch is prepared at a time.

    Args:
        now: The clock.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        super().__init__()
        self.run_screen = RunScreen(now)
        self._front: _Front | None = None
        self._stopping: Worker[None] | None = None

    @property
    def has_server(self) -> bool:
        """Whether the server of a run that is watched is there or on its way."""
        return self.run_screen.view.has_server

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
    async def bring_up(self, job: LaunchJob) -> None:
        """Launch a server and keep it up, after asking what has to be asked."""
        from dflash_tui.launch import session
        from dflash_tui.peers import cluster_launch

        front = _Front(self, get_current_worker())
        try:
            await session.run_server(job, front, cluster_launch.open_hosts, job.planned.plan.restart)
        except (DflashError, OSError, RuntimeError) as error:
            if isinstance(error, ServerFailed) and not front.is_preparing:
                return  # the run screen says why a server failed that it watched
            explained = explain_resource_limit(error) or error
            if isinstance(explained, RuntimeError):
                raise
            self.run_screen.view.fail(explained if isinstance(explained, DflashError) else DflashError(str(explained)))

    def attach(self, run: Run) -> None:
        """Show `run` on the run screen."""
        self.begin_watching(None)
        self.run_screen.view.begin(run)
        self.switch_mode("live")
        self.follow(run)

    def begin_watching(self, front: _Front | None) -> None:
        """Let the run screen be that of a launch, or of a run that was launched before; another launch is forgotten."""
        if self._front and self._front is not front:
            self._front.worker.cancel()
        self._front = front
        self.workers.cancel_group(self, "observe")

    @on(LaunchScreen.Launch)
    def _on_launch_wanted(self, message: LaunchScreen.Launch) -> None:
        if self.preparing:
            self.notify("another launch is being prepared; 2 shows it", severity="warning")
        else:
            self.bring_up(LaunchJob(PlannedLaunch(message.resolved, message.plan), message.forced))

    @property
    def preparing(self) -> bool:
        """Whether a launch is being prepared, which leaving would give up."""
        return self._front is not None and self._front.is_preparing and self._front.worker.is_running

    @property
    def restarting(self) -> Run | None:
        """The failed run whose server is about to be launched again."""
        return self._front.crashed if self._front and self._front.worker.is_running else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        if action == "fix":
            return self._shown.own is not None and bool(self._shown.failure and self._shown.failure.remedies)
        if action == "relaunch":
            return self._shown.own is not None
        return self.has_server or self.restarting is not None if action == "stop" else True

    @property
    def _shown(self) -> RunView:
        """The run or the replay that one sees, else the run."""
        shown = self.screen if self.screen_stack else None
        return shown.view if isinstance(shown, ViewScreen) else self.run_screen.view

    def action_stop(self) -> None:
        if self.preparing:
            question = Confirm("Cancel the launch?", "Whatever is unfinished is removed.", "cancel it", "go on")
            self.push_screen(question, self._cancel_launch)
            return
        if crashed := self.restarting:
            question = Confirm("Cancel the restart?", f"{crashed.id} has failed.", "cancel it", "go on")
            self.push_screen(question, lambda yes: restarts.cancel_restarts(crashed) if yes else None)
            return
        run = self.run_screen.view.run
        if run is None or not server_process.is_alive(run):
            self.notify("no server is running", severity="warning")
            return
        detail = f"{run.plan.recipe} on :{run.plan.port}, {run.id}. Running requests are aborted."
        self.push_screen(Confirm("Stop the server?", detail, "stop it", "let it run"), lambda yes: self._stop(yes, run))

    def _stop(self, yes: bool | None, run: Run) -> None:
        if yes:
            self._stopping = self.stop(run)

    def _cancel_launch(self, yes: bool | None) -> None:
        if yes:
            self.begin_watching(None)
            self.run_screen.view.clear()
            self.switch_mode("launch")

    @work(exclusive=True, group="stop")
    async def stop(self, run: Run) -> None:
        """Stop the server of `run`, wait until its memory is free, and go back to the launch screen."""
        from dflash_tui.launch import shutdown
        from dflash_tui.peers import keeper

        try:
            seconds, stayed = await shutdown.stop_and_release_memory(run, lambda line: self.notify(line, timeout=2))
        except DflashError as error:
            self.push_screen(ErrorDialog(error))
            return
        for rank in await keeper.wait_until_stopped(run, keeper.PATIENCE) if run.far_ranks else ():
            left = rank.state in server_process.THERE
            self.notify(str(rank), severity="warning" if left else "information", markup=False)
        self.notify(f"{run.plan.recipe} has stopped, in {format_duration(seconds)}", markup=False)
        if stayed:
            self.notify(stayed, severity="warning", markup=False, timeout=20)
        if self.current_mode == "live" and self.run_screen.view.run is run:
            self.switch_mode("launch")

    def action_fix(self) -> None:
        run, failure = self._shown.own, self._shown.failure
        if run and failure and failure.remedies:
            self.push_screen(RemedyDialog(run, failure), self._launch_again)

    def action_relaunch(self) -> None:
        if run := self._shown.own:
            self.push_screen(RemedyDialog(run, offer_same_again(run)), self._launch_again)

    def _launch_again(self, chosen: Launch | None) -> None:
        if chosen:
            self.post_message(LaunchScreen.Launch(*chosen))
