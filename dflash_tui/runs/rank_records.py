"""What is known of a server's ranks on other hosts: a file in the run folder, which the keeper beside rank 0 writes."""

import msgspec

from dflash_tui.common import untrusted_json
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.events import RankState
from dflash_tui.machine import processes
from dflash_tui.runs.run import Run

FILE = "peers.json"


# There may be something of it on its host.
THERE = frozenset({RankState.RUNNING, RankState.SUSPENDED, RankState.LOST, RankState.LEFT})


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
    """What NCCL says there that it talks over; empty before it says so."""

    def describe_state(self) -> str:
        """Return how it is, and why."""
        return f"{self.state.value} ({self.why})" if self.why else self.state.value

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}: {self.describe_state()}"


class KeptRanks(msgspec.Struct, frozen=True):
    """The ranks on other hosts, and the keeper by pid and start time."""

    pid: int
    born: str
    ranks: tuple[RankStatus, ...]


register_type(KeptRanks)


def read_kept(run: Run) -> KeptRanks | None:
    """Return what the keeper of a server knows of its other ranks; None without one."""
    return untrusted_json.read_own_json(run.folder / FILE, KeptRanks) if run.far_ranks else None


def list_left(run: Run) -> list[RankStatus]:
    """Return the ranks on other hosts of which something may be there still."""
    record = read_kept(run)
    return [rank for rank in record.ranks if rank.state in THERE] if record else []


def is_kept(run: Run) -> bool:
    """Whether the keeper of a server lives."""
    record = read_kept(run)
    return record is not None and processes.read_process_identity(record.pid) == record.born
