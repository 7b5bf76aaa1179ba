"""Whether a server that failed is launched again, and when; with spawn where its forked engine process failed.

The process that launches a server and watches it does that, by the `restart` settings of the recipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from dflash_tui.common import private_files
from dflash_tui.common.formatting import format_duration
from dflash_tui.diagnosis import postmortem
from dflash_tui.diagnosis.cause import UNKNOWN
from dflash_tui.engines import environments
from dflash_tui.events import Phase
from dflash_tui.launch import planner
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.recipe import RestartPolicy
from dflash_tui.planning.request import LaunchChanges
from dflash_tui.planning.startup_optimizations import FORK
from dflash_tui.run_state.startup import detect_silence
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import lifecycle
from dflash_tui.runs.run import Run

MAX_DELAY = 300.0
_CANCEL_FILE = "called-off"
# Causes that do not lie in the plan, so that the next launch may succeed; `terminated` is intended.
_TRANSIENT_CAUSES = frozenset({UNKNOWN, "crashed", "engine_killed", "gpu_fault", "killed", "oom_killed"})


def explain_no_restart(policy: RestartPolicy, state: RunState, kind: str, restarts: Sequence[float], now: float) -> str:
    """Return why a failed server is not launched again; empty when it is. Pure.

    `kind` is that of its `Diagnosis`; `restarts` are times by the clock of `now`.
    """
    if kind == "terminated":
        return "it was asked to stop"
    if state.warm_at is None and kind not in _TRANSIENT_CAUSES:
        return "it never answered a request, and would fail again for the same reason"
    recent = [at for at in restarts if now - at < policy.within_s]
    if len(recent) >= policy.times:
        times = "once" if policy.times == 1 else f"{policy.times} times"
        return f"it was already launched again {times} within {format_duration(policy.within_s)}"
    return ""


def restart_delay(policy: RestartPolicy, restarts: Sequence[float], now: float) -> float:
    """Return the seconds until the next launch: twice as many after each restart of the window, five minutes at most.

    The arguments are those of `explain_no_restart`. Pure.
    """
    recent = [at for at in restarts if now - at < policy.within_s]
    return float(min(policy.wait_s * 2 ** len(recent), max(MAX_DELAY, policy.wait_s)))


def cancel_restarts(run: Run) -> None:
    """Record that the failed server of `run` must not be launched again, since a user stopped it."""
    with contextlib.suppress(OSError):  # its folder may have been deleted
        private_files.write_private_file(run.folder / _CANCEL_FILE, b"")


def are_restarts_cancelled(run: Run) -> bool:
    """Whether a user stopped `run` after its server had failed."""
    return (run.folder / _CANCEL_FILE).exists()


# A forked engine says its first line within a second; one that is spawned takes 15 to 25 s, at work.
HUNG_SECONDS = 60.0
_INTERVAL = 0.25
_CANNOT_FORK = "forked"


async def end_failed_start(run: Run, state: RunState) -> str:
    """Watch a start until it is up; return why forking failed after stopping it, empty when it did not.

    The caller keeps `state` up to date.

    Raises:
        DflashError: a process of the server survived SIGKILL.
    """
    while FORK in run.plan.start and state.up_at is None:
        if why := explain_failed_fork(run, state, time.time()):
            environments.remember_failed_measure(Path(run.plan.unpatched_folder), FORK, why)
            await lifecycle.stop_server(run)
            return why
        if state.exit:
            break
        await asyncio.sleep(_INTERVAL)
    return ""


def explain_failed_fork(run: Run, state: RunState, now: float) -> str:
    """Return why a start failed that an engine process which is spawned may not fail with; empty when it did not."""
    if FORK not in run.plan.start or state.up_at is not None:
        return ""
    if state.exit:
        failure = postmortem.build_postmortem(run, state)
        return failure.diagnosis.cause if failure and failure.diagnosis.kind == _CANNOT_FORK else ""
    # What the server itself waits for, such as the hub, it waits for before; the engine's first line has its version.
    if state.startup.phase is not Phase.ENGINE or "vllm" in state.startup.facts or not state.lines:
        return ""
    silence = detect_silence(state.startup, state.lines[-1].at, now)
    if silence is None or not silence.warning or silence.seconds < HUNG_SECONDS:
        return ""
    return f"the forked engine process hung before its first line, for {format_duration(silence.seconds)}"


def plan_with_spawn(plan: Plan) -> PlannedLaunch:
    """Return the plan of launching the same with an engine process that is spawned."""
    changes = LaunchChanges(settings={f"start.{FORK}": "false"})
    return planner.plan_launch_here(plan.relaunch_request.with_changes(changes))
