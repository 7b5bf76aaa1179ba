"""What a server's processes have done: CPU time and disk bytes, which move while the log is silent."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import psutil

from dflash_tui.events import Activity


def sample_activity(members: Iterable[psutil.Process], log: Path, at: float) -> Activity:
    """Return the sums over `members` that still exist, with the CPU time of their ended children, and the log's size.

    Memory-mapped weights count as disk bytes when they come from a disk (proc(5), io: read_bytes). Of processes of
    other users nothing is known.
    """
    cpu, disk = 0.0, 0
    for process in members:
        try:
            times = process.cpu_times()
            cpu += times.user + times.system + times.children_user + times.children_system
            io = process.io_counters()
            disk += io.read_bytes + io.write_bytes
        except (psutil.Error, RuntimeError, ValueError):  # the latter two when /proc has no io for it
            continue
    try:
        size = log.stat().st_size
    except OSError:
        size = 0
    return Activity(at, round(cpu, 2), disk, size)
