"""Which process a pid is: told apart for good from those that had the pid before, or will have it."""

from __future__ import annotations

from functools import cache
from pathlib import Path


def read_process_identity(pid: int) -> str:
    """Return `boot:ticks` of a live process, which names it for good, or an empty string for none or a zombie.

    The ticks since boot (proc_pid_stat(5), field 22) are used, since times of day move with the clock.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if stat[0] in {"Z", "X"} else f"{read_boot_id()}:{stat[19]}"


@cache
def read_boot_id() -> str:
    """Return the id of this boot of the machine (random(4)), empty when it is not told."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def is_from_another_boot(born: str) -> bool:
    """Whether a process with this identity lived before the machine was booted the last time."""
    then, now = born.partition(":")[0], read_boot_id()
    return bool(then and now) and then != now
