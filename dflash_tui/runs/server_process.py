"""The processes of a run's server: whether it is alive, all of them, its exit code, its ranks on other hosts."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import msgspec

from dflash_tui.common.untrusted_json import read_own_json, register_type
from dflash_tui.events import RankState
from dflash_tui.machine import processes
from dflash_tui.runs.run import Run

if TYPE_CHECKING:  # importing psutil takes 10 ms, which is saved if no server runs
    import psutil

# The first thread of a process may exit this many seconds before the last.
_EXIT_CODE_TIMEOUT = 5.0
RANKS_FILE = "peers.json"
# States in which a rank may still have processes on its host.
THERE = frozenset({RankState.RUNNING, RankState.SUSPENDED, RankState.LOST, RankState.LEFT})
_children: dict[int, subprocess.Popen[bytes]] = {}


class RankStatus(msgspec.Struct, frozen=True):
    """A rank on another host: its state, since when, and why."""

    rank: int
    host: str
    run: str
    state: RankState = RankState.RUNNING
    since: float = 0.0
    why: str = ""
    resident: int = 0
    """Resident bytes of its processes."""
    trouble: str = ""
    """Its state when rank 0 had ended, and why; empty if it was working or had ended by itself."""
    network: str = ""
    """The network that NCCL uses there; empty until NCCL reports it."""

    def describe_state(self) -> str:
        """Return its state and the reason as text."""
        return f"{self.state.value} ({self.why})" if self.why else self.state.value

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}: {self.describe_state()}"


class KeptRanks(msgspec.Struct, frozen=True):
    """The ranks on other hosts as their keeper records them in the run folder; the keeper's pid and start time."""

    pid: int
    born: str
    ranks: tuple[RankStatus, ...]


register_type(KeptRanks)


def adopt_child(process: subprocess.Popen[bytes]) -> None:
    """Remember a server launched by this process, so that its exit code can be read."""
    _children[process.pid] = process


def is_alive(run: Run) -> bool:
    """Whether the server process is running; False for a zombie or another process with its pid."""
    if child := _children.get(run.pid):
        child.poll()
    return bool(run.born) and processes.read_process_identity(run.pid) == run.born


def is_starting(run: Run) -> bool:
    """Whether the server runs but does not listen yet: vLLM listens once all its memory is allocated."""
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
    return processes.list_session_processes(run.pid, run.born, run.folder)


def read_kept(run: Run) -> KeptRanks | None:
    """Return the keeper's record of the server's other ranks; None without one."""
    return read_own_json(run.folder / RANKS_FILE, KeptRanks) if run.far_ranks else None


def list_left(run: Run) -> list[RankStatus]:
    """Return the ranks that may still have processes on other hosts."""
    record = read_kept(run)
    return [rank for rank in record.ranks if rank.state in THERE] if record else []


def is_kept(run: Run) -> bool:
    """Whether the server's keeper is alive."""
    record = read_kept(run)
    return record is not None and processes.read_process_identity(record.pid) == record.born
