"""Decide whether a failed server is launched again, and after how long.

The process that watches it in the foreground does that, by the `restart` settings of the recipe; no other does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from dflash_tui.common import private_files
from dflash_tui.common.formatting import format_duration
from dflash_tui.diagnosis.cause import UNKNOWN
from dflash_tui.planning.recipes.recipe import RestartPolicy
from dflash_tui.run_state.state import RunState
from dflash_tui.runs.run import Run

MAX_DELAY = 300.0
_CANCEL_FILE = "called-off"
# Causes that do not lie in the plan, so that the next launch may succeed; `terminated` is intended.
_TRANSIENT_CAUSES = frozenset({UNKNOWN, "crashed", "engine_killed", "gpu_fault", "killed", "oom_killed"})


def explain_no_restart(policy: RestartPolicy, state: RunState, kind: str, restarts: Sequence[float], now: float) -> str:
    """Return why a failed server is not launched again; empty when it is. Pure.

    Args:
        policy: the `restart` settings of the recipe.
        state: the state of the server.
        kind: the kind of its `Diagnosis`.
        restarts: when servers were launched again, in seconds of one clock.
        now: the time by that clock.
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
