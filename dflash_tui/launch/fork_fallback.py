"""Give up a start whose forked engine process hangs or cannot have the GPU, so that it is launched again with spawn.

Who launches a server and watches it does that: `up`, the panel, and an A/B, which measures nothing then. The engine is
remembered, so that its next launches spawn.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from dflash_tui.common.formatting import format_duration
from dflash_tui.diagnosis import postmortem
from dflash_tui.engines import failed_measures
from dflash_tui.events import Phase
from dflash_tui.launch import planner
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.request import LaunchChanges
from dflash_tui.planning.startup_optimizations import FORK
from dflash_tui.run_state.startup import detect_silence
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import lifecycle
from dflash_tui.runs.run import Run

# A forked engine says its first line within a second; one that is spawned takes 15 to 25 s, at work.
HUNG_SECONDS = 60.0
_INTERVAL = 0.25
_CANNOT_FORK = "forked"


async def end_failed_start(run: Run, state: RunState) -> str:
    """Watch a start until it is up; return why forking failed after stopping it, empty when it did not.

    Args:
        run: what was launched.
        state: its state, which somebody else keeps up to date.

    Raises:
        DflashError: a process of the server survived SIGKILL.
    """
    while FORK in run.plan.start and state.up_at is None:
        if why := explain_failed_fork(run, state, time.time()):
            failed_measures.remember_failed_measure(Path(run.plan.unpatched_folder), FORK, why)
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
    """Return the plan of launching the same with an engine process that is spawned.

    Raises:
        UsageError: the recipe is gone.
    """
    changes = LaunchChanges(settings={f"start.{FORK}": "false"})
    return planner.plan_launch_here(plan.relaunch_request.with_changes(changes))
