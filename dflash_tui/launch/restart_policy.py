"""Whether a server that died is launched again, and after how long.

The process that watches it in the foreground does that, as the recipe's `restart` says; nobody else does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from dflash_tui.common import private_files
from dflash_tui.common.formatting import format_duration
from dflash_tui.diagnosis.cause import UNKNOWN
from dflash_tui.planning.recipe import RestartPolicy
from dflash_tui.run_state.state import RunState
from dflash_tui.runs.run import Run

MAX_DELAY = 300.0
_CANCEL_FILE = "called-off"
# Ends that lie in nothing that the launch asks for, so that the next one may fare better; `terminated` is a wish.
_TRANSIENT_CAUSES = frozenset({UNKNOWN, "crashed", "engine_killed", "gpu_fault", "killed", "oom_killed"})


def explain_no_restart(policy: RestartPolicy, state: RunState, kind: str, restarts: Sequence[float], now: float) -> str:
    """Return why the server of `state` is not launched again, empty when it is; pure.

    `kind` names the cause of its death as a `Diagnosis` does. `restarts` and `now` are seconds of one clock: when
    servers were launched again, and the moment.
    """
    if kind == "terminated":
        return "somebody asked it to end"
    if state.warm_at is None and kind not in _TRANSIENT_CAUSES:
        return "it never answered a request, for a reason that would be there again"
    recent = [at for at in restarts if now - at < policy.within_s]
    if len(recent) >= policy.times:
        times = "once" if policy.times == 1 else f"{policy.times} times"
        return f"given up: it was launched again {times} within {format_duration(policy.within_s)}"
    return ""


def restart_delay(policy: RestartPolicy, restarts: Sequence[float], now: float) -> float:
    """Return the seconds until the next launch: twice as many after each restart of the window, five minutes at most.

    The arguments are those of `refusal`; pure.
    """
    recent = [at for at in restarts if now - at < policy.within_s]
    return float(min(policy.wait_s * 2 ** len(recent), max(MAX_DELAY, policy.wait_s)))


def cancel_restarts(run: Run) -> None:
    """Let nobody launch the dead server of `run` again: somebody asked to stop it."""
    with contextlib.suppress(OSError):  # its folder may be gone
        private_files.write_private_file(run.folder / _CANCEL_FILE, b"")


def are_restarts_cancelled(run: Run) -> bool:
    """Whether somebody asked to stop `run` after its server had died."""
    return (run.folder / _CANCEL_FILE).exists()
