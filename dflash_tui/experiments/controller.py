"""Checks, begins, resumes and stops experiments, each of which is driven by a detached process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil

from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import DflashError, PreflightFailed, UsageError
from dflash_tui.common.formatting import truncate
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.experiments import runner as experiments_runner
from dflash_tui.experiments import store
from dflash_tui.experiments.design import Design
from dflash_tui.launch.preflight import runner
from dflash_tui.machine import processes
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.resolution import ResolvedRecipe
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import Run

_START_TIMEOUT = 60.0
# A server has 15 s to stop; applying a patch again imports vLLM.
_STOP_TIMEOUT = 180.0
_INTERVAL = 0.05
_children: list[subprocess.Popen[bytes]] = []


async def check_arms(design: Design, setups: list[ResolvedRecipe]) -> None:
    """Raise when an arm could not start, before anything is started."""
    for arm, setup in zip(design.arms, setups, strict=True):
        try:
            (await runner.run_preflight(setup, arm.plan)).raise_failed(forcible=False)
        except PreflightFailed as error:
            raise PreflightFailed(f"{arm.name}: {error.what}", evidence=error.evidence, hint=error.hint) from None


def find_disturbing_servers(design: Design) -> list[Run]:
    """Return the servers that take a GPU, or the CPU, of the experiment's.

    Raises:
        UsageError: another experiment is running.
    """
    for other in store.list_experiments():
        if other.id != design.id and store.find_driver(store.experiment_folder(other.id)):
            raise UsageError(
                f"{other.id} is running and would disturb the measurement", hint=f"dflash-tui ab attach {other.id}"
            )
    plans = [arm.plan for arm in design.arms]
    return [
        run
        for run in registry.list_runs()
        if server_process.is_alive(run) and any(_is_disturbed(run.plan, plan) for plan in plans)
    ]


def _is_disturbed(one: Plan, other: Plan) -> bool:
    return one.port == other.port or one.disturbs(other)


def build_disturbed_error(runs: list[Run], hint: str) -> UsageError:
    """Return the error that servers are in the way, with what to do about it."""
    return UsageError(f"{', '.join(run.id for run in runs)} would disturb the measurement", hint=hint)


def start_experiment(design: Design) -> str:
    """Make the folder of an experiment, launch its driver detached, and return the experiment's id.

    Raises:
        DflashError: the folder cannot be made, or the driver ended at once.
    """
    store.create_experiment(design)
    return launch_driver(design)


def launch_driver(design: Design) -> str:
    """Launch a driver for an experiment that has none: it goes on after the last boot that is over.

    Raises:
        UsageError: it is driven already, or it is over.
        DflashError: the driver ended at once.
    """
    folder = store.experiment_folder(design.id)
    if store.find_driver(folder):
        raise UsageError(f"{design.id} is already running", hint=f"dflash-tui ab attach {design.id}")
    if store.read_progress(folder).finished:
        raise UsageError(f"{design.id} is over", hint=f"dflash-tui ab attach {design.id} shows its report")
    package = str(paths.PACKAGE_ROOT.parent)
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (package, env.get("PYTHONPATH"))))
    with open(folder / store.LOG, "ab", opener=private_files.open_private) as log:
        size = log.tell()
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "dflash_tui.experiments", design.id],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=folder,
            start_new_session=True,
        )
    _children.append(child)
    deadline = time.monotonic() + _START_TIMEOUT
    while child.poll() is None and time.monotonic() < deadline:
        if store.find_driver(folder):
            return design.id
        time.sleep(_INTERVAL)
    if store.read_progress(folder).finished:
        return design.id
    output = (folder / store.LOG).read_bytes()[size:].decode(errors="replace").strip().splitlines()
    raise DflashError(
        f"the driver of {design.id} exited at once",
        evidence=truncate(clean_line(" | ".join(output[-3:])), 500),
        hint=f"dflash-tui ab resume {design.id}",
    )


def resume_experiment(design: Design) -> None:
    """Launch a driver for an experiment that ended early.

    Raises:
        UsageError: something else would disturb the measurement, or there is nothing to go on with.
        DflashError: the driver ended at once.
    """
    ours = {run.id for run in experiments_runner.find_leftover_servers(design)}
    if in_the_way := [run for run in find_disturbing_servers(design) if run.id not in ours]:
        raise build_disturbed_error(in_the_way, "stop it first")
    launch_driver(design)


def stop_driver(design: Design) -> bool:
    """Ask the driver of an experiment to end, and wait until it has; return whether there was one.

    It ends the server that it runs, and the experiment can be resumed.

    Raises:
        DflashError: it does not end.
    """
    folder = store.experiment_folder(design.id)
    driver = store.find_driver(folder)
    if driver is None:
        return False
    process = psutil.Process(driver.pid)
    if processes.read_process_identity(driver.pid) == driver.born:
        processes.send_signal(process, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_TIMEOUT
    while store.find_driver(folder):
        if time.monotonic() > deadline:
            raise DflashError(
                f"the driver of {design.id} (pid {driver.pid}) does not stop", hint="try again in a minute"
            )
        time.sleep(_INTERVAL)
    return True
