"""Read the kernel's log for what it says about a failed server: processes killed or crashed, and GPU errors.

The kernel's log is read from /dev/kmsg or, where that is for root only, from the journal, which members of `adm` may
read. How many processes the kernel has killed because it was out of memory is in /proc/vmstat, for everybody.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from dflash_tui.common.sanitizer import clean_line
from dflash_tui.events import Autopsy
from dflash_tui.machine.process_environment import build_helper_environment
from dflash_tui.runs.run import Run

# printk's clock and ours drift apart by seconds in a month.
_CLOCK_TOLERANCE = 10.0
_MAX_LOG_BYTES = 8 << 20
_MAX_KERNEL_LINES = 8
_PID = re.compile(rb"\([\w :-]*pid=(\d{1,10})(?!\d)")
# mm/oom_kill.c; what vLLM calls its processes is cut to 15 letters.
_OOM = re.compile(r"Killed process (?P<pid>\d+) \((?P<name>[^)]*)\)")
# arch/x86/mm/fault.c and arch/x86/kernel/traps.c
_CRASH = re.compile(r"(?:traps: )?(?P<name>[^\[\]]{1,32})\[(?P<pid>\d+)\]:? (?:segfault at|general protection|trap )")
# NVIDIA's driver; some of its errors name no process, for instance a GPU that has fallen off the bus.
_XID = re.compile(r"NVRM: Xid \(PCI:[^)]*\): \d+(?:, pid='?(?P<pid>\d+)'?(?:, name=(?P<name>[^,]*))?)?")


def count_oom_kills() -> int | None:
    """Return how many processes the kernel has killed since boot because it was out of memory; None if unknown."""
    try:
        fields = Path("/proc/vmstat").read_text().split()
        return int(fields[fields.index("oom_kill") + 1])
    except (OSError, ValueError):
        return None


def read_autopsy(run: Run, kills_before: int | None) -> Autopsy:
    """Return what the kernel says about the exit of `run`; `kills_before` counts the OOM kills before it."""
    now = count_oom_kills()
    kills = None if kills_before is None or now is None else now - kills_before
    lines = (text for at, text in read_kernel_log(run.started_at) if at >= run.started_at - _CLOCK_TOLERANCE)
    return Autopsy(time.time(), tuple(filter_kernel_lines(lines, parse_server_pids(run)))[-_MAX_KERNEL_LINES:], kills)


def parse_server_pids(run: Run) -> set[int]:
    """Return the pids of the server's processes: vLLM puts them before the lines of its log."""
    try:
        with run.log.open("rb") as log:
            pids = {int(pid) for pid in _PID.findall(log.read(_MAX_LOG_BYTES))}
    except OSError:
        pids = set()
    return pids | {run.pid}


def filter_kernel_lines(lines: Iterable[str], server_pids: set[int]) -> Iterator[str]:
    """Yield the kernel's lines about a killed or crashed process of the server, or about a GPU error.

    In a container the kernel's pids are not ours; there vLLM's process names identify them.
    """
    for line in lines:
        for pattern in (_OOM, _CRASH, _XID):
            if match := pattern.search(line):
                pid, name = match["pid"], (match["name"] or "").strip()
                if pid is None or int(pid) in server_pids or name.startswith("VLLM::"):
                    yield clean_line(line)
                break


def read_kernel_log(since: float) -> Iterator[tuple[float, str]]:
    """Yield the time (seconds since the epoch) and the text of the kernel's lines; none without permission."""
    try:
        reader = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        yield from _read_journal(since)
        return
    try:
        yield from _read_kmsg(reader)
    finally:
        os.close(reader)


def _read_kmsg(reader: int) -> Iterator[tuple[float, str]]:
    """Yield the records of /dev/kmsg: `priority,number,microseconds since boot,flags;text`."""
    booted = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    while True:
        try:
            record = os.read(reader, 8192).decode(errors="replace")
        except BrokenPipeError:  # the record was overwritten while we read; the next one is whole
            continue
        except OSError:
            return
        head, _, text = record.partition(";")
        stamp = head.split(",")[2:3]
        if stamp and stamp[0].isdigit():
            yield booted + int(stamp[0]) / 1e6, text.partition("\n")[0]


def _read_journal(since: float) -> Iterator[tuple[float, str]]:
    command = ["journalctl", "-k", "-q", "--no-pager", "-o", "short-unix", "--since", f"@{int(since)}"]
    env = build_helper_environment()
    try:
        journalctl = subprocess.run(command, capture_output=True, timeout=5, check=False, env=env, cwd="/")
    except (OSError, subprocess.TimeoutExpired):
        return
    for line in journalctl.stdout.decode(errors="replace").split("\n"):
        stamp, _, message = line.partition(" ")
        try:
            yield float(stamp), message.partition("kernel: ")[2]
        except ValueError:
            continue
