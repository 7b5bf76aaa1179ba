"""The lease of a rank: a file in its run folder, renewed by who holds rank 0; when it runs out, the rank is ended.

vLLM's ranks never notice that rank 0 is gone: without a lease a crash of its host would leave the other hosts' memory
taken for ever. The guard is a process of its own, since the connection that launched the rank may be what was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import msgspec

from dflash_tui.common import private_files, untrusted_json
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.runs import lifecycle, server_process
from dflash_tui.runs.detached_process import start_detached
from dflash_tui.runs.run import Run

_FILE = "lease.json"
_GUARD_LOG = "guard.log"
_INTERVAL = 0.5


class Lease(msgspec.Struct, frozen=True):
    """For how many seconds a rank lives on unless it is renewed, when it was, and why it was ended."""

    seconds: float
    renewed: float
    """By a clock that goes on while the machine sleeps, and that nobody sets."""
    ended: str = ""
    """Why the guard has ended the rank; empty while it has not."""


register_type(Lease)


def read_lease(run: Run) -> Lease | None:
    """Return the lease of a rank; None where it has none."""
    return untrusted_json.read_own_json(run.folder / _FILE, Lease)


def write_lease(run: Run, seconds: float) -> None:
    """Begin the lease of a rank."""
    _write(run, Lease(seconds, _now()))


def renew_lease(run: Run) -> None:
    """Renew the lease of a rank, unless it was ended; on a full disk it stays as it was."""
    if (lease := read_lease(run)) and not lease.ended:
        with contextlib.suppress(OSError):
            _write(run, Lease(lease.seconds, _now()))


def start_guard(run: Run) -> None:
    """Start the guard of a rank, detached from who launches it."""
    server_process.adopt_child(start_detached(run.folder / _GUARD_LOG, "dflash_tui.peers", "guard", run.id).process)


async def guard_lease(run: Run) -> None:
    """Wait until the rank has ended, and end it when its lease runs out."""
    while server_process.is_alive(run):
        lease = read_lease(run)
        if lease and _now() - lease.renewed > lease.seconds:
            _write(run, Lease(lease.seconds, lease.renewed, f"nobody renewed its lease for {lease.seconds:.0f} s"))
            await lifecycle.stop_server(run)
            return
        await asyncio.sleep(_INTERVAL)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _write(run: Run, lease: Lease) -> None:
    private_files.replace_private_file(run.folder / _FILE, msgspec.json.encode(lease))
