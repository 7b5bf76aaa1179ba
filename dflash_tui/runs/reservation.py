"""What launches and A/Bs will use that are not servers yet: each holds a reservation of its port and its GPUs.

It is a file that names its holder by pid and start time, so that it ends with that process. To look and to reserve are
one step under a lock.
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

# Held for less than a second, unless its holder is suspended.
_LOCK_TIMEOUT = 30.0
_own_files: set[Path] = set()


class Reservation(msgspec.Struct, frozen=True):
    """A launch, or an A/B, that is about to use the ports and GPUs of its plans, and the process that holds it."""

    owner: str
    plans: tuple[Plan, ...]
    pid: int
    born: str

    @property
    def holder(self) -> str:
        """Who it is, for a message."""
        return f"the {self.owner} (pid {self.pid})"


class GpuClaim(NamedTuple):
    """A plan whose GPUs will be used although their memory does not show it yet, and by whom, as a sentence."""

    text: str
    plan: Plan


register_type(Reservation)


def list_reservations() -> list[Reservation]:
    """Return the reservations of other processes that live."""
    files = sorted(paths.reservations_folder().glob("*.json"))
    return [reservation for path in files if path not in _own_files and (reservation := _read_living(path))]


def list_gpu_claims() -> list[GpuClaim]:
    """Return who else will use GPUs: launches and A/Bs that reserved some, and servers that do not listen yet.

    For a process that holds a reservation there are none: it was the first.
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
    """Keep all others from reserving while the block runs; raise DflashError where the lock is not had in time."""
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
    """Reserve ports and GPUs for this process, which holds the lock and has looked that they are free."""
    folder, pid = paths.reservations_folder(), os.getpid()
    for path in folder.glob("*.json"):
        if path not in _own_files and _read_living(path) is None:
            with suppress(OSError):  # a folder stays: it reserves nothing
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
    """Give up what was reserved."""
    _own_files.discard(path)
    with suppress(OSError):
        path.unlink()


def build_unwritable_error(folder: Path, error: OSError) -> DflashError:
    """Return the error that a launch cannot be recorded in `folder`, and is not begun therefore."""
    what = f"{folder} cannot be written, so nothing was launched"
    return DflashError(what, evidence=str(error), hint=suggest_write_fix(error))


def _read_living(path: Path) -> Reservation | None:
    """Return the reservation in a file; None when its holder has ended, or the file is none that we wrote."""
    reservation = untrusted_json.read_own_json(path, Reservation)
    lives = reservation and reservation.born and processes.read_process_identity(reservation.pid) == reservation.born
    return reservation if lives else None
