"""Run the boots of an experiment in order, record each, and resume after the last one that has ended."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import psutil
from msgspec.structs import replace

from dflash_tui.common.errors import DflashError
from dflash_tui.experiments import boot, boot_server, store
from dflash_tui.experiments.analysis import answers, verdict
from dflash_tui.experiments.design import BootEnded, Design, ExperimentFinished, ExperimentHalted
from dflash_tui.experiments.progress import Progress
from dflash_tui.experiments.tuner import MachineTuner
from dflash_tui.launch import session
from dflash_tui.machine import processes
from dflash_tui.peers import cluster_launch
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import EXPERIMENT_MARK, Run

# With less free disk than this nothing can be recorded: log and samples.
_MIN_FREE_DISK = 64 << 20
_KILL_TIMEOUT = 10.0
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


async def run_experiment(
    design: Design,
    resolved_recipes: Sequence[ResolvedRecipe],
    tuner: MachineTuner | None = None,
) -> None:
    """Run the remaining boots of a design and write the report.

    Servers left by an earlier driver are stopped first, and its interrupted boot is repeated. Cancelling stops the
    server. Errors, such as a full disk, are recorded, and the experiment can be resumed.
    """
    folder = store.experiment_folder(design.id)
    with store.hold_driver_lock(design):
        store.record_driver(folder)
        try:
            await stop_leftover_servers(design)
            store.load_experiment_suite(design)
            # Also between boots, so that no other launch takes the port or GPUs of the next boot.
            with session.reserve_experiment(f"A/B {design.id}", [arm.plan for arm in design.launched]):
                progress = await _run_boots(folder, [*resolved_recipes], tuner)
            design = progress.design
            boots = sorted((*progress.tries, *progress.boots), key=lambda boot: (boot.number, boot.attempt))
            report = await asyncio.to_thread(verdict.build_report, design, boots)
            report = await asyncio.to_thread(answers.add_output_checks, report, store.read_answers(folder))
            report = await asyncio.to_thread(tuner.conclude, progress, report) if tuner else report
            store.write_json(folder / store.REPORT, report)
            shutil.rmtree(folder / "cache", ignore_errors=True)
            for left in await remove_far_caches(design):
                boot.write_driver_log(f"compile caches of the experiment remain on {left}")
            store.append_event(folder, ExperimentFinished(time.time()))
        except (OSError, DflashError) as error:
            _halt(folder, _describe_error(error), error.what if isinstance(error, boot.UserStepNeeded) else "")
            raise
        except asyncio.CancelledError:
            _halt(folder, "stopped by request")
            raise


async def _run_boots(folder: Path, resolved_recipes: list[ResolvedRecipe], tuner: MachineTuner | None) -> Progress:
    while True:
        progress = store.read_progress(folder)
        if due := progress.next:
            await _run_and_record_boot(folder, progress, resolved_recipes, *due)
        elif tuner and (following := await asyncio.to_thread(tuner.plan_round, progress)):
            store.append_event(folder, following.event)
            resolved_recipes += following.resolved_recipes
        else:
            return progress


async def _run_and_record_boot(
    folder: Path, progress: Progress, resolved_recipes: Sequence[ResolvedRecipe], number: int, attempt: int
) -> None:
    design = progress.design
    place = design.order[number]
    arm = design.arms[place]
    came_up = {measured.arm for measured in progress.boots if not measured.error}
    boot.write_driver_log(f"boot {number + 1} of {len(design.order)}: {arm.name}, attempt {attempt}")
    tell = partial(store.append_event, folder)
    if arm.server:
        measured = await boot.measure_running_server(design, arm.server, number, attempt, tell)
    else:
        resolved, first = resolved_recipes[design.launched.index(arm)], place not in came_up
        measured = await boot.run_boot(design, number, attempt, resolved, tell, first=first)
    if measured.error:
        boot.write_driver_log(f"boot {number + 1} failed: {measured.error}")
        if shutil.disk_usage(folder).free < _MIN_FREE_DISK:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    # Its requests were stored when they were measured.
    store.append_event(folder, BootEnded(time.time(), replace(measured, requests=(), cold_request=None)))


def find_leftover_servers(design: Design) -> list[Run]:
    """Return the servers of the experiment that still have processes."""
    ours = [run for run in registry.list_runs() if run.plan.env.get(EXPERIMENT_MARK) == design.id]
    return [run for run in ours if server_process.list_processes(run)]


async def stop_leftover_servers(design: Design) -> None:
    """Stop the servers left by a killed driver, including those it had not recorded yet."""
    for run in await asyncio.to_thread(find_leftover_servers, design):
        boot.write_driver_log(f"stopping {run.id}, which an earlier driver left running")
        for left in await boot_server.stop_on_all_hosts(run):
            boot.write_driver_log(f"left: {left}")
    if design.other_hosts and not store.read_progress(store.experiment_folder(design.id)).finished:
        await cluster_launch.stop_marked(design.other_hosts, design.id)
    unrecorded = await asyncio.to_thread(_find_unrecorded_servers, design)
    for process in unrecorded:
        boot.write_driver_log(f"killing pid {process.pid}, which an earlier driver left running")
        processes.send_signal(process, signal.SIGKILL)
    deadline = time.monotonic() + _KILL_TIMEOUT
    while any(map(processes.is_running, unrecorded)) and time.monotonic() < deadline:  # then their port is free
        await asyncio.sleep(0.05)


async def remove_far_caches(design: Design) -> list[str]:
    """Remove the arms' compile caches on other hosts; return hosts where this failed, with reasons."""
    return await cluster_launch.remove_caches(design.other_hosts, design.id) if design.own_cache else []


def _find_unrecorded_servers(design: Design) -> list[psutil.Process]:
    """Return processes that carry the experiment's mark and whose run folder has no record yet."""
    unrecorded = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            here = process.environ().get(EXPERIMENT_MARK) == design.id
            if here and not (Path(process.cwd()) / "run.json").exists():
                unrecorded.append(process)
    return unrecorded


def _halt(folder: Path, why: str, step: str = "") -> None:
    boot.write_driver_log(f"halted: {why}")
    with contextlib.suppress(OSError):
        store.append_event(folder, ExperimentHalted(time.time(), why, step))


def _describe_error(error: OSError | DflashError) -> str:
    if isinstance(error, DflashError):
        return str(error)
    what = "the disk is full" if error.errno in _DISK_FULL else error.strerror or str(error)
    return f"{what}{f': {error.filename}' if error.filename else ''}"
