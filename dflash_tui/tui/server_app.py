"""The part of the panel that has to do with servers: prepare and launch one, follow it, stop it, launch it again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from textual import on, work
from textual.worker import Worker

from dflash_tui.common.errors import DflashError, explain_resource_limit
from dflash_tui.common.formatting import format_duration
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.runs import rank_records, registry, server_process
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.basic import Confirm, ErrorDialog
from dflash_tui.tui.dialogs.remedies import Launch, RemedyDialog, offer_same_again
from dflash_tui.tui.dialogs.trust import ask_trust
from dflash_tui.tui.screens.launch import LaunchScreen
from dflash_tui.tui.screens.run import RunScreen, ViewScreen
from dflash_tui.tui.terminal import TerminalApp
from dflash_tui.tui.widgets.run_view import RunView


class ServerApp(TerminalApp):
    """An app with a run screen and the worker that launches its server; one launch is prepared at a time.

    Args:
        now: The clock.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        super().__init__()
        self.run_screen = RunScreen(now)
        self._launching: Worker[None] | None = None
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

    @work(exclusive=True, group="bring-up")
    async def bring_up(self, resolved: ResolvedRecipe, plan: Plan, forced: str) -> None:
        """Prepare and launch `plan`, then follow it."""
        from dflash_tui.launch import admission
        from dflash_tui.peers import cluster_launch, pairing

        def report_moved(line: str) -> None:
            self.call_from_thread(self.notify, line, markup=False)

        try:
            async with pairing.open_peers(plan.relaunch_request.peers) as peers:
                wanted = await pairing.place_on_hosts(PlannedLaunch(resolved, plan), peers)
                async with admission.reserve_launch(wanted, report_moved, forced=forced) as planned:
                    if planned.plan is not plan:
                        self.run_screen.view.prepare(planned.plan)
                    run = await cluster_launch.launch_over_hosts(
                        planned, peers, self.run_screen.view.take, forced=forced
                    )
        except (DflashError, OSError, RuntimeError) as error:
            explained = explain_resource_limit(error) or error
            if isinstance(explained, RuntimeError):
                raise
            self.run_screen.view.fail(explained if isinstance(explained, DflashError) else DflashError(str(explained)))
            return
        self._launching = None
        self.attach(run)
        self.watch_fork(run)

    @work(exclusive=True, group="fork")
    async def watch_fork(self, run: Run) -> None:
        """Launch `run` again with spawn when its forked engine process hangs."""
        from dflash_tui.launch import fork_fallback

        try:
            why = await fork_fallback.end_failed_start(run, self.run_screen.view.state)
            planned = await asyncio.to_thread(fork_fallback.plan_with_spawn, run.plan) if why else None
        except DflashError as error:
            self.run_screen.view.fail(error)
            return
        if planned and self.run_screen.view.run is run and not self.preparing:
            self.notify(f"{why}; launching again with spawn", severity="warning", markup=False, timeout=20)
            self.workers.cancel_group(self, "observe")
            self.run_screen.view.prepare(planned.plan)
            self._launching = self.bring_up(planned.resolved, planned.plan, run.forced)

    def attach(self, run: Run) -> None:
        """Show `run` on the run screen."""
        self.run_screen.view.begin(run)
        self.switch_mode("live")
        self.follow(run)

    @on(LaunchScreen.Launch)
    def _on_launch_wanted(self, message: LaunchScreen.Launch) -> None:
        ask_trust(self, message.resolved.recipe, [message.plan], lambda: self._ask_and_start(message))

    def _ask_and_start(self, message: LaunchScreen.Launch) -> None:
        """Launch what is wanted, after asking where another server runs."""
        plan, port = message.plan, message.resolved.recipe.port
        if self.preparing:
            self.notify("another launch is being prepared; 2 shows it", severity="warning")
            return
        moved = (
            f" Port {port} is taken, so it gets {plan.port}."
            if plan.port != port and not (plan.request and plan.request.port)
            else ""
        )
        others = registry.list_living_servers()
        if not others:
            self._start(message, moved)
            return
        names = ", ".join(f"{run.plan.recipe} on :{run.plan.port}" for run in others)
        question = Confirm(
            "Launch beside a running server?",
            f"{names} and this one would share memory and processor, so the figures of each suffer.{moved}",
            f"launch {plan.recipe} as well",
        )
        self.push_screen(question, lambda yes: self._start(message, moved) if yes else None)

    def _start(self, message: LaunchScreen.Launch, moved: str) -> None:
        if moved:
            self.notify(moved.strip(), markup=False)
        self.workers.cancel_group(self, "observe")
        self.run_screen.view.prepare(message.plan)
        self.switch_mode("live")
        self._launching = self.bring_up(message.resolved, message.plan, message.forced)

    @property
    def preparing(self) -> bool:
        """Whether a launch is being prepared, which leaving would give up."""
        return self._launching is not None and self._launching.is_running

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        if action == "fix":
            return self._shown.own is not None and bool(self._shown.failure and self._shown.failure.remedies)
        if action == "relaunch":
            return self._shown.own is not None
        return self.has_server if action == "stop" else True

    @property
    def _shown(self) -> RunView:
        """The run or the replay that one sees, else the run."""
        shown = self.screen if self.screen_stack else None
        return shown.view if isinstance(shown, ViewScreen) else self.run_screen.view

    def action_stop(self) -> None:
        if self.preparing and self._launching:
            question = Confirm("Cancel the launch?", "Whatever is unfinished is removed.", "cancel it", "go on")
            self.push_screen(question, self._cancel_launch)
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
        if yes and self._launching:
            self._launching.cancel()
            self._launching = None
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
            left = rank.state in rank_records.THERE
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
