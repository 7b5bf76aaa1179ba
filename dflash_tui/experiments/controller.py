"""Start, resume and stop experiments; each is driven by a detached process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import psutil

from dflash_tui.common.errors import DflashError, MemoryTaken, PreflightFailed, UsageError
from dflash_tui.events import Preparing
from dflash_tui.experiments import runner as experiments_runner
from dflash_tui.experiments import store, variation
from dflash_tui.experiments.design import Design, ExperimentExtended
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.launch.session import TrustQuestion
from dflash_tui.machine import processes
from dflash_tui.monitoring import server_identity
from dflash_tui.peers import cluster_launch
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.runs import lifecycle, registry, server_process
from dflash_tui.runs.detached_process import start_detached
from dflash_tui.runs.run import Run

_START_TIMEOUT = 60.0
# A server has 15 s to stop, and a busy machine needs longer.
_STOP_TIMEOUT = 180.0
_INTERVAL = 0.05
# With the ids of their experiments.
_children: list[tuple[str, subprocess.Popen[bytes]]] = []


def find_disturbing_servers(design: Design) -> list[Run]:
    """Return the servers on the experiment's GPUs or CPU; raise UsageError if another experiment runs."""
    for other in store.list_experiments():
        if other.id != design.id and store.find_driver(store.experiment_folder(other.id)):
            what = f"{other.id} is running and would disturb the measurement"
            raise UsageError(what, hint=f"dflash-tui ab attach {other.id}")
    plans = [arm.plan for arm in design.launched]
    measured = {server_identity.read_port(server.url) for server in design.servers if server.is_here}
    return [
        run
        for run in registry.list_runs()
        if server_process.is_alive(run)
        and run.plan.port not in measured
        and any(run.plan.port == plan.port or run.plan.disturbs(plan) for plan in plans)
    ]


def build_disturbed_error(runs: Sequence[Run], hint: str) -> UsageError:
    """Return the error that these servers disturb the measurement, with a hint."""
    return UsageError(f"{', '.join(run.id for run in runs)} would disturb the measurement", hint=hint)


def start_experiment(design: Design) -> None:
    """Create the folder of an experiment and launch its driver, detached."""
    store.create_experiment(design)
    launch_driver(design)


def launch_driver(design: Design) -> None:
    """Launch the driver of an unfinished experiment, which continues after the last boot that has ended."""
    folder = store.experiment_folder(design.id)
    _require_no_driver(folder, design)
    if store.read_progress(folder).finished:
        raise UsageError(f"{design.id} is over", hint=f"dflash-tui ab attach {design.id} shows its report")
    driver = start_detached(folder / store.LOG, "dflash_tui.experiments", design.id)
    _children.append((design.id, driver.process))
    deadline = time.monotonic() + _START_TIMEOUT
    while driver.process.poll() is None and time.monotonic() < deadline:
        if store.find_driver(folder):
            return
        time.sleep(_INTERVAL)
    if not store.read_progress(folder).finished:
        raise DflashError(
            f"the driver of {design.id} exited at once",
            evidence=driver.read_last_words(),
            hint=f"dflash-tui ab resume {design.id}",
        )


def is_driven(design: Design) -> bool:
    """Whether a driver runs the experiment, or this process has just launched one."""
    return bool(store.find_driver(store.experiment_folder(design.id))) or any(
        name == design.id and child.poll() is None for name, child in _children
    )


def _require_no_driver(folder: Path, design: Design) -> None:
    if driver := store.find_driver(folder):
        hint = f"dflash-tui ab attach {design.id}"
        raise UsageError(f"{design.id} is already running (pid {driver.pid})", hint=hint)


def extend_experiment(design: Design, boots: int) -> None:
    """Add boots of each arm to a finished A/B and launch its driver; the A/B gets a new report."""
    folder = store.experiment_folder(design.id)
    progress = store.read_progress(folder)
    if design.tuning:
        what = f"{design.id} is a tune, which is not extended"
        raise UsageError(what, hint="start a new one with a larger budget")
    if not progress.finished:
        raise UsageError(f"{design.id} is not over", hint=f"dflash-tui {design.command_word} resume {design.id}")
    _require_no_driver(folder, design)
    if in_the_way := find_disturbing_servers(design):
        raise build_disturbed_error(in_the_way, "stop it first")
    arms, before = len(design.arms), progress.design.order
    turns = len(before) // arms  # the mirrored order continues where it ended
    order = variation.order_boots(arms, turns + boots)[turns * arms :]
    store.append_event(folder, ExperimentExtended(time.time(), order))
    (folder / store.REPORT).unlink(missing_ok=True)
    launch_driver(design)


def resume_experiment(design: Design) -> None:
    """Resume an experiment that ended early; raise UsageError if other servers would disturb it."""
    ours = {run.id for run in experiments_runner.find_leftover_servers(design)}
    if in_the_way := [run for run in find_disturbing_servers(design) if run.id not in ours]:
        raise build_disturbed_error(in_the_way, "stop it first")
    launch_driver(design)


def stop_driver(design: Design) -> bool:
    """Ask the driver to stop its server and exit, and wait for it; return whether there was a driver."""
    folder = store.experiment_folder(design.id)
    driver = store.find_driver(folder)
    if driver is None:
        return False
    with contextlib.suppress(psutil.NoSuchProcess):  # it may have exited meanwhile
        process = psutil.Process(driver.pid)
        if processes.read_process_identity(driver.pid) == driver.born:
            processes.send_signal(process, signal.SIGTERM)
            processes.send_signal(process, signal.SIGCONT)  # a suspended process handles no other signal
    deadline = time.monotonic() + _STOP_TIMEOUT
    while store.find_driver(folder):
        if time.monotonic() > deadline:
            what = f"the driver of {design.id} (pid {driver.pid}) does not stop"
            raise DflashError(what, hint="try again in a minute")
        time.sleep(_INTERVAL)
    return True


class StopQuestion(NamedTuple):
    """Whether servers that would disturb the measurement may be stopped once everything is prepared."""

    runs: Sequence[Run]


class BeginQuestion(NamedTuple):
    """Whether to begin, after the checks."""


class CheckingArms(NamedTuple):
    """Every arm is being checked, after the first questions were answered."""

    in_the_way: Sequence[Run]


class ServerStopping(NamedTuple):
    """A server that would disturb the measurement is being stopped, or has stopped if `is_over`."""

    run: Run
    is_over: bool = False


ExperimentQuestion = TrustQuestion | StopQuestion | BeginQuestion
ExperimentStep = CheckingArms | Preparing | ServerStopping


class ExperimentFront(Protocol):
    """The user interface that begins an experiment: it asks the user and shows progress."""

    async def confirm(self, question: ExperimentQuestion) -> bool:
        """Return the user's answer; raise an error if the user cannot be asked."""

    def show(self, event: ExperimentStep) -> None:
        """Show an event."""


async def begin_experiment(design: Design, resolved_recipes: Sequence[ResolvedRecipe], front: ExperimentFront) -> bool:
    """Begin an experiment in a process of its own; return False if the user declines.

    Running servers are stopped only after all checks and preparations succeed. Raise PreflightFailed if an arm would
    not start.
    """
    plans = [arm.plan for arm in design.launched]
    if plans and not await front.confirm(TrustQuestion(resolved_recipes[0].recipe, plans)):
        return False
    in_the_way = find_disturbing_servers(design)
    if in_the_way and not await front.confirm(StopQuestion(in_the_way)):
        return False
    front.show(CheckingArms(in_the_way))
    for arm, resolved in zip(design.launched, resolved_recipes, strict=True):
        hosts = await cluster_launch.reach_hosts(arm.request)
        report, _ = await hosts.check(PlannedLaunch(resolved, arm.plan))
        try:
            report.raise_failed(offer_force=False)
        except PreflightFailed as error:
            if isinstance(error, MemoryTaken) and any(server.is_here for server in design.servers):
                continue  # they are measured one after the other
            raise PreflightFailed(f"{arm.name}: {error.what}", evidence=error.evidence, hint=error.hint) from None
    if not await front.confirm(BeginQuestion()):
        return False
    await _prepare_arms(design, resolved_recipes, front)
    for run in in_the_way:
        front.show(ServerStopping(run))
        await lifecycle.stop_server(run)
        front.show(ServerStopping(run, is_over=True))
    await asyncio.to_thread(start_experiment, design)
    return True


async def _prepare_arms(design: Design, resolved_recipes: Sequence[ResolvedRecipe], front: ExperimentFront) -> None:
    shown = set[tuple[object, ...]]()

    def show_once(event: Preparing) -> None:
        step = event.host, event.step, event.text, event.fraction
        if step not in shown:  # arms share an engine
            shown.add(step)
            front.show(event)

    for arm, resolved in zip(design.launched, resolved_recipes, strict=True):
        hosts = await cluster_launch.reach_hosts(arm.request)
        await hosts.prepare(PlannedLaunch(resolved, arm.plan), show_once)
