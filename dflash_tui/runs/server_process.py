"""The processes of a run's server: whether it is alive, which they are, and its exit code."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from dflash_tui.machine import processes
from dflash_tui.runs.run import Run

if TYPE_CHECKING:  # psutil takes 10 ms, which is spared where no server runs
    import psutil

# The first thread of a process may exit this many seconds before the last.
_EXIT_CODE_TIMEOUT = 5.0
_children: dict[int, subprocess.Popen[bytes]] = {}


def adopt_child(process: subprocess.Popen[bytes]) -> None:
    """Remember a server that this process launched, so that its exit code can be read."""
    _children[process.pid] = process


def is_alive(run: Run) -> bool:
    """Whether the server process is running; a zombie is not, nor is another process with its pid."""
    if child := _children.get(run.pid):
        child.poll()
    return bool(run.born) and processes.read_process_identity(run.pid) == run.born


def is_starting(run: Run) -> bool:
    """Whether the server runs and does not listen yet: vLLM does so when all its memory is allocated."""
    from dflash_tui.machine import processes

    return is_alive(run) and not processes.is_listening_on(list_processes(run), run.plan.port)


def measure_age(run: Run, now: float) -> float:
    """Return the seconds from the launch until `now`, in seconds since the epoch."""
    return max(0.0, now - run.started_at)


def read_exit_code(run: Run) -> int | None:
    """Return the exit code of a server that this process launched and that has exited, else None.

    The first thread of a process may exit before the others; the code is known when all have, at most 5 s later.
    """
    child = _children.get(run.pid)
    try:
        return child.wait(0 if is_alive(run) else _EXIT_CODE_TIMEOUT) if child else None
    except subprocess.TimeoutExpired:
        return None


def list_processes(run: Run) -> list[psutil.Process]:
    """Return the running processes of the server's session, the leader first."""
    from dflash_tui.machine import processes

    return processes.list_session_processes(run.pid, run.born, run.folder)
