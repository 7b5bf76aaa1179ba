"""Reservations of ports and GPUs by launches and A/Bs whose servers do not run yet.

A reservation is a file that names its holder by pid and start time, and ends with that process. Checking and reserving
are one step under a lock.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from dflash_tui.common import paths, private_files, untrusted_json
from dflash_tui.common.errors import DflashError, suggest_write_fix
from dflash_tui.common.private_files import acquire_lock
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.machine import processes
from dflash_tui.planning.plan import Plan
from dflash_tui.runs import registry, server_process

# Seconds. The lock is held for less than one, unless its holder is suspended.
_LOCK_TIMEOUT = 30.0
_own_files: set[Path] = set()


class Reservation(msgspec.Struct, frozen=True):
    """The ports and GPUs that a launch or an A/B will use by its plans, and the process that holds them."""

    owner: str
    plans: tuple[Plan, ...]
    pid: int
    born: str

    @property
    def holder(self) -> str:
        """The holder as text for messages."""
        return f"the {self.owner} (pid {self.pid})"


class GpuClaim(NamedTuple):
    """A plan that will use its GPUs although their memory does not show it yet; `text` names the holder."""

    text: str
    plan: Plan


register_type(Reservation)


def list_reservations() -> list[Reservation]:
    """Return the reservations of other living processes."""
    files = sorted(paths.reservations_folder().glob("*.json"))
    return [reservation for path in files if path not in _own_files and (reservation := _read_living(path))]


def list_gpu_claims() -> list[GpuClaim]:
    """Return other claims to GPUs: reservations of launches and A/Bs, and servers that do not listen yet.

    Empty for a process that holds a reservation, since it came first.
    """
    if _own_files:
        return []
    reserved = [
        GpuClaim(f"{claim.holder} has reserved it", plan) for claim in list_reservations() for plan in claim.plans
    ]
    starting = [
        GpuClaim(f"{run.id} (pid {run.pid}) is starting on it", run.plan)
        for run in registry.list_runs()
        if not run.plan.on_cpu and server_process.is_starting(run)
    ]
    return [claim for claim in (*reserved, *starting) if not claim.plan.on_cpu]


@contextmanager
def lock_reservations() -> Iterator[None]:
    """Hold the lock on reservations while the block runs; raise DflashError if it cannot be taken in time."""
    folder = paths.reservations_folder()
    try:
        private_files.ensure_private_folder(folder)
        file = open(folder / "lock", "ab", opener=private_files.open_private)  # noqa: SIM115 - closed below
    except OSError as error:
        raise build_unwritable_error(folder, error) from None
    with file:
        if not acquire_lock(file.fileno(), _LOCK_TIMEOUT):
            what = f"another dflash-tui has been choosing a port for {_LOCK_TIMEOUT:.0f} s"
            raise DflashError(what, evidence=str(folder / "lock"), hint="resume or end it: it may be suspended")
        yield


def write_reservation(owner: str, *plans: Plan) -> Path:
    """Reserve ports and GPUs for this process; the caller holds the lock and has checked that they are free."""
    folder, pid = paths.reservations_folder(), os.getpid()
    for path in folder.glob("*.json"):
        if path not in _own_files and _read_living(path) is None:
            with suppress(OSError):  # a folder of that name stays: it reserves nothing
                path.unlink()
    reservation = Reservation(owner, plans, pid, processes.read_process_identity(pid))
    path = folder / f"{pid}-{time.monotonic_ns()}.json"
    try:
        private_files.replace_private_file(path, msgspec.json.encode(reservation))
    except OSError as error:
        raise build_unwritable_error(folder, error) from None
    _own_files.add(path)
    return path


def drop_reservation(path: Path) -> None:
    """Release a reservation."""
    _own_files.discard(path)
    with suppress(OSError):
        path.unlink()


def build_unwritable_error(folder: Path, error: OSError) -> DflashError:
    """Return the error for a launch that was refused because `folder` cannot be written."""
    what = f"{folder} cannot be written, so nothing was launched"
    return DflashError(what, evidence=str(error), hint=suggest_write_fix(error))


def _read_living(path: Path) -> Reservation | None:
    reservation = untrusted_json.read_own_json(path, Reservation)
    lives = reservation and reservation.born and processes.read_process_identity(reservation.pid) == reservation.born
    return reservation if lives else None
