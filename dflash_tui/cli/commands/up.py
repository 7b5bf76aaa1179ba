"""Launch and watch a recipe, or watch a running server: `up` and `attach`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from contextlib import nullcontext
from enum import StrEnum

from dflash_tui.benchmark import suites
from dflash_tui.benchmark.prompts import Sampling
from dflash_tui.benchmark.server import Server
from dflash_tui.cli.commands.bench import Bench, run_bench, show_exchange, wait_for_first_answer
from dflash_tui.cli.commands.hosts import plan_over_peers
from dflash_tui.cli.commands.logs import Failed, format_postmortem
from dflash_tui.cli.console import is_json, print_data, print_status, terminal_width
from dflash_tui.cli.event_lines import (
    AlarmLines,
    CheckDone,
    EventLines,
    FigureLines,
    PlanMade,
    PreparingLines,
    Restarting,
    print_event,
)
from dflash_tui.cli.json_lines import CheckLine
from dflash_tui.cli.panel import open_panel
from dflash_tui.cli.requests import confirm_trust, read_launch_request
from dflash_tui.cli.signals import ended_at_once
from dflash_tui.common.errors import DflashError, ServerFailed, UsageError
from dflash_tui.common.formatting import describe_attach_and_stop, has_terminal, name_program, read_called_name
from dflash_tui.diagnosis import postmortem
from dflash_tui.events import Health, HealthChanged, Preparing
from dflash_tui.launch import session, shutdown
from dflash_tui.launch.planner import PlannedLaunch, plan_launch_here
from dflash_tui.launch.preflight.check import CheckLevel
from dflash_tui.launch.preflight.runner import PreflightReport
from dflash_tui.monitoring import observer
from dflash_tui.monitoring.foreign_server import ForeignServer, is_address
from dflash_tui.peers import cluster_launch, keeper
from dflash_tui.planning.recipes.recipe import RestartPolicy
from dflash_tui.presentation.client_text import Endpoint, describe_use, format_endpoint, format_tunnel
from dflash_tui.presentation.plan_text import format_check, format_restart_limit, summarize_plan
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import Run

_WRONG_ADDRESS = "check the address and the port; `attach` without an address watches a server that dflash-tui launched"
# A crashed engine returns errors for up to 7 s before its server exits.
_UNHEALTHY_GRACE_SECONDS = 10.0


class Until(StrEnum):
    """When watching a launched server ends."""

    READY = "ready"
    MEASURED = "measured"
    EXIT = "exit"


def up(args: argparse.Namespace) -> int:
    """`up RECIPE`: prepare, launch and watch."""
    if args.foreground and (args.detach or args.wait):
        other = "--detach" if args.detach else "--wait"
        raise UsageError(f"--foreground cannot be combined with {other}", hint="use only one of them")
    request = read_launch_request(args)
    planned = plan_over_peers(request, args) if request.peers else plan_launch_here(request)
    asyncio.run(_bring_up(args, planned._replace(forced=args.force or "")))
    return 0


def attach(args: argparse.Namespace) -> int:
    """`attach [RUN|URL]`: watch a server in the panel, or as lines."""
    if is_address(args.run):
        return attach_foreign(args)
    run = registry.find_run(args.run)
    if args.plain or args.json or not has_terminal():
        return asyncio.run(_watch(args, run, RunState()))
    return open_panel(run)


async def _bring_up(args: argparse.Namespace, planned: PlannedLaunch) -> None:
    front = _Terminal(args)
    # No restarts with --detach or --wait: nothing would supervise them.
    policy = RestartPolicy() if args.detach or args.wait else planned.plan.restart
    try:
        await session.run_server(planned, front, cluster_launch.reach_hosts, policy)
    except asyncio.CancelledError:
        if not front.is_watching:
            print_status("cancelled before the launch; nothing incomplete is left")
        raise


class _Terminal:
    """Asks, prints and watches for a launch on the command line."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._until = Until.MEASURED if args.bench else Until.READY if args.wait else Until.EXIT
        self._preparing = PreparingLines()
        self.is_watching = False

    async def confirm(self, question: session.LaunchQuestion) -> bool:
        """Answer a question from the options, else ask on the terminal."""
        if isinstance(question, session.TrustQuestion):
            confirm_trust(question.recipe, question.plans, self._args)
        return True

    def show(self, event: session.LaunchEvent) -> None:
        """Print an event of the launch."""
        self.is_watching = False
        match event:
            case session.LaunchPlanned(planned) if not planned.replaces:
                _print_plan(self._args, planned)
            case session.ChecksMade(report):
                _print_checks(self._args, report)
            case Preparing():
                self._preparing(event)
            case session.ServerLaunched(run, planned):
                _print_launched(run, planned)
            case session.ServerCrashed(_, error):
                print_status(str(error))
            case session.RestartDue():
                self._print_restart(event)
            case session.LaunchNote(text):
                print_status(text)

    def _print_restart(self, due: session.RestartDue) -> None:
        self._until = Until.EXIT
        if self._args.json:
            print_event(Restarting(time.time(), due.run.id, due.number, due.seconds))
        limit = format_restart_limit(due.policy)
        print_status(f"launching again in {due.seconds:.0f} s: restart {due.number}, {limit}")
        print_status(f"cancel it with Ctrl-C or dflash-tui stop {due.run.id}")

    async def watch(self, run: Run, state: RunState) -> None:
        """Print the events of a run; with --foreground stop its server afterwards."""
        args = self._args
        if args.detach and not (args.bench or args.wait) and server_process.is_alive(run):
            _detach(args, run)
            return
        self.is_watching = True
        try:
            with nullcontext() if args.foreground else ended_at_once():
                await _watch(args, run, state, self._until)
        finally:
            if args.foreground and server_process.is_alive(run):
                took, stayed = await shutdown.stop_and_release_memory(run, print_status)
                print_status(f"{run.id} stopped in {took:.1f} s{f'; {stayed}' if stayed else ''}")
                for far in await keeper.wait_until_stopped(run):
                    print_status(str(far))


def _print_plan(args: argparse.Namespace, planned: PlannedLaunch) -> None:
    if args.json:
        print_event(PlanMade(time.time(), planned.plan))
    else:
        print_status(summarize_plan(planned, terminal_width(sys.stderr)))


def _print_launched(run: Run, planned: PlannedLaunch) -> None:
    again = f" in place of {planned.replaces}" if planned.replaces else ""
    print_status(f"launched {run.id}{again}, pid {run.pid}, log {run.log}")
    for far in run.far_ranks:
        print_status(f"rank {far.rank} is {far.run} on {far.host}, log {run.folder / far.log_name}")


def _print_checks(args: argparse.Namespace, report: PreflightReport) -> None:
    for check in report.checks:
        if args.json:
            print_event(CheckDone(time.time(), CheckLine.from_check(check)))
        elif check.level is CheckLevel.WARN or (check.level is CheckLevel.FAIL and args.force):
            print_status(format_check(check, terminal_width(sys.stderr)))


def _detach(args: argparse.Namespace, run: Run) -> None:
    print_status(f"{describe_attach_and_stop(run.id)}\n{describe_use(Endpoint.from_run(run), read_called_name())}")
    if args.json:
        EventLines(RunState()).show_all((*run.prepared, run.launched))
    else:
        print_data(run.id)


async def _watch(args: argparse.Namespace, run: Run, state: RunState, until: Until = Until.EXIT) -> int:
    answered = asyncio.Event()
    following = asyncio.create_task(_follow(run, state, answered, EventLines(state)))
    alarm_lines = AlarmLines(state)
    tasks = [
        following,
        asyncio.create_task(FigureLines(state, args.every).print_for_ever()),
        asyncio.create_task(alarm_lines.print_for_ever()),
        asyncio.create_task(_report_unhealthy(run, state)),
    ]
    try:
        if until is not Until.EXIT and await wait_for_first_answer(answered, following):
            if state.health is Health.UNHEALTHY:
                return _finish(run, state, until)
            if until is Until.MEASURED:
                await _measure(run, state)
                await asyncio.sleep(2 * observer.LOG_INTERVAL)  # wait until the recorded events are read
            alarm_lines.refresh(time.time())  # print an alarm of the first answer before watching ends
            if args.detach or args.wait:
                print_status(describe_attach_and_stop(run.id))
                return 0
            if not args.foreground:
                print_status(f"watching {run.id}; Ctrl-C stops watching, the server keeps running")
        await _wait_for_first(*tasks)
        return _finish(run, state, until)
    except asyncio.CancelledError:
        if not args.foreground:
            print_status(f"\nno longer watching; the server keeps running\n{describe_attach_and_stop(run.id)}")
        raise
    finally:
        for task in tasks:
            task.cancel()


async def _measure(run: Run, state: RunState) -> None:
    """Send the five prompts; without --json also print an answer and how to compare speculation on and off."""
    benchmark = Bench(Server.from_run(run), suites.load_suite("quick"), Sampling.from_plan(run.plan), watched=True)
    await run_bench(benchmark.suit_to(state.startup.samplers))
    if is_json():
        return
    await show_exchange(run)
    if run.plan.num_speculative_tokens:
        print_status(f"  with and without speculation: {name_program()} ab {run.plan.recipe} --vary spec=on,off")


async def _wait_for_first(*tasks: asyncio.Task[None]) -> None:
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


async def _follow(run: Run, state: RunState, answered: asyncio.Event, lines: EventLines) -> None:
    async with observer.observe_batches(run) as batches:
        async for batch in batches:
            for event in batch:
                state.apply(event)
            # In a thread: a paused reader of stdout must not block the recording.
            await asyncio.to_thread(lines.show_all, batch)
            if state.health in {Health.WARM, Health.UNHEALTHY}:
                if state.health is Health.WARM and not answered.is_set() and not is_json():
                    await asyncio.to_thread(_print_ready, run)
                answered.set()


def _print_ready(run: Run) -> None:
    endpoint = Endpoint.from_run(run)
    print_status(f"  answers at {format_endpoint(endpoint)}")
    if host := read_called_name():
        print_status(f"  reach it:  {format_tunnel(endpoint, host)}")


async def _report_unhealthy(run: Run, state: RunState) -> None:
    """Print once why a running server stays unhealthy; a server that exits is reported by `_finish`."""
    since: float | None = None
    while since is None or time.monotonic() - since < _UNHEALTHY_GRACE_SECONDS:
        await asyncio.sleep(0.5)
        bad = state.exit is None and state.health is Health.UNHEALTHY
        since = (time.monotonic() if since is None else since) if bad else None
    if failure := postmortem.build_postmortem(run, state):
        if is_json():
            print_event(Failed(time.time(), failure))
        else:
            print_status(format_postmortem(failure))
    await asyncio.Event().wait()  # keep watching


def _finish(run: Run, state: RunState, until: Until = Until.EXIT) -> int:
    """Return 0 if the server was stopped on request; raise its failure otherwise."""
    if (failure := postmortem.build_postmortem(run, state)) is None:
        if until is not Until.EXIT and state.warm_at is None:
            raise ServerFailed(f"{run.id} was stopped before it was ready", hint=f"the log: dflash-tui logs {run.id}")
        print_status(f"{run.id} was stopped")
        return 0
    if is_json():
        print_event(Failed(time.time(), failure))
    raise postmortem.build_failure(failure)


def attach_foreign(args: argparse.Namespace) -> int:
    """Watch the foreign server at the address `args.run`."""
    server = ForeignServer(args.run)
    if args.plain or args.json or not has_terminal():
        print_status(f"{server.url} was not launched by dflash-tui: metrics only, nothing is sent, stopped or recorded")
        print_status("polling it once a second until Ctrl-C")
        return asyncio.run(_print_server(args, server))
    return open_panel(foreign=server)


async def _print_server(args: argparse.Namespace, server: ForeignServer) -> int:
    state = RunState()
    lines = EventLines(state)

    async def follow() -> None:
        async for event in server.events():
            if not server.answers and isinstance(event, HealthChanged) and event.health is Health.UNHEALTHY:
                raise DflashError(server.fault, evidence=event.detail, hint=_WRONG_ADDRESS)
            state.apply(event)
            lines.show(event)

    figures = FigureLines(state, args.every)
    alarms = AlarmLines(state)
    tasks = [asyncio.create_task(each) for each in (follow(), figures.print_for_ever(), alarms.print_for_ever())]
    try:
        await _wait_for_first(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return 0
