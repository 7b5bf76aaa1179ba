"""The processes of a run's server: whether it is alive, which they are, its exit code, and its ranks on other hosts."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import msgspec

from dflash_tui.common.untrusted_json import read_own_json, register_type
from dflash_tui.events import RankState
from dflash_tui.machine import processes
from dflash_tui.runs.run import Run

if TYPE_CHECKING:  # psutil takes 10 ms, which is spared where no server runs
    import psutil

# The first thread of a process may exit this many seconds before the last.
_EXIT_CODE_TIMEOUT = 5.0
RANKS_FILE = "peers.json"
# States in which something of a rank may be left on its host.
THERE = frozenset({RankState.RUNNING, RankState.SUSPENDED, RankState.LOST, RankState.LEFT})
_children: dict[int, subprocess.Popen[bytes]] = {}


class RankStatus(msgspec.Struct, frozen=True):
    """A rank on another host: how it is, since when, and why."""

    rank: int
    host: str
    run: str
    state: RankState = RankState.RUNNING
    since: float = 0.0
    why: str = ""
    resident: int = 0
    """Bytes that its processes use."""
    trouble: str = ""
    """How it was when rank 0 had ended, and why; empty where it was at work, or had ended itself."""
    network: str = ""
    """What NCCL uses there; empty before it says so."""

    def describe_state(self) -> str:
        """Return how it is, and why."""
        return f"{self.state.value} ({self.why})" if self.why else self.state.value

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}: {self.describe_state()}"


class KeptRanks(msgspec.Struct, frozen=True):
    """The ranks on other hosts, and the keeper, which writes them into the run folder, by pid and start time."""

    pid: int
    born: str
    ranks: tuple[RankStatus, ...]


register_type(KeptRanks)


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
    """Return what the keeper of a server knows of its other ranks; None without one."""
    return read_own_json(run.folder / RANKS_FILE, KeptRanks) if run.far_ranks else None


def list_left(run: Run) -> list[RankStatus]:
    """Return the ranks on other hosts of which something may be left."""
    record = read_kept(run)
    return [rank for rank in record.ranks if rank.state in THERE] if record else []


def is_kept(run: Run) -> bool:
    """Whether the keeper of a server lives."""
    record = read_kept(run)
    return record is not None and processes.read_process_identity(record.pid) == record.born
