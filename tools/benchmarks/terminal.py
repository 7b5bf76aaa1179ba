"""A program in a pseudo-terminal of 120x36, as a user has it: what it writes, when, and what it costs."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import NamedTuple

import psutil

ROWS, COLUMNS = 36, 120
COMMAND = (sys.executable, "-m", "dflash_tui")


def spread(values: list[float], unit: str = "s", digits: int = 3) -> str:
    """Return median, 95th percentile, least and greatest with n."""
    ordered = sorted(values)
    high = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    told = f"median {statistics.median(ordered):.{digits}f} {unit}, 95 % {high:.{digits}f}"
    return f"{told}, {ordered[0]:.{digits}f} to {ordered[-1]:.{digits}f} (n={len(ordered)})"


class Taken(NamedTuple):
    """What a program has taken until a moment: clock, seconds of processor time, bytes written."""

    at: float
    cpu: float
    bytes: int


class Terminal:
    """Ours with these words, or another `program`; it reads nothing by itself, so that somebody has to."""

    def __init__(self, *words: str, program: tuple[str, ...] = COMMAND, cwd: Path | None = None) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environment = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self.process = subprocess.Popen(
            [*program, *words], stdin=slave, stdout=slave, stderr=slave, env=environment, cwd=cwd
        )
        os.close(slave)
        self.pid, self.bytes = self.process.pid, 0

    def read(self, timeout: float) -> bytes:
        """Return what was written within `timeout` seconds, or earlier when something was."""
        if not select.select([self._master], [], [], timeout)[0]:
            return b""
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # it has ended
            return b""
        self.bytes += len(data)
        return data

    def rest(self, seconds: float) -> None:
        """Read on for a while."""
        until = time.perf_counter() + seconds
        while (left := until - time.perf_counter()) > 0:
            self.read(left)

    def until(self, text: str, limit: float = 60.0) -> float:
        """Return the seconds until `text` is written."""
        began, seen = time.perf_counter(), b""
        while text.encode() not in seen:
            seen = seen[-4096:] + self.read(0.05)
            if time.perf_counter() - began > limit:
                raise SystemExit(f"{text!r} was not written within {limit:.0f} s: {seen[-500:]!r}")
        return time.perf_counter() - began

    def press(self, key: str) -> None:
        os.write(self._master, key.encode())

    def taken(self) -> Taken:
        """Return what the program has taken until now, all its threads together."""
        times = psutil.Process(self.pid).cpu_times()
        return Taken(time.monotonic(), times.user + times.system, self.bytes)

    def since(self, before: Taken) -> tuple[float, float]:
        """Return the share of a core and the bytes per second since a moment."""
        now = self.taken()
        passed = now.at - before.at
        return (now.cpu - before.cpu) / passed, (now.bytes - before.bytes) / passed

    def cpu(self) -> float:
        """Return the seconds of processor time of all its threads, as exactly as the kernel counts (CPUCLOCK_SCHED)."""
        return time.clock_gettime((~self.pid << 3) | 2)

    def is_busy(self) -> bool:
        """Whether one of its threads is running, or would be if there were a processor for it."""
        stats = (path.read_text() for path in Path(f"/proc/{self.pid}/task").glob("*/stat"))
        return any(stat.rpartition(")")[2].split()[0] in "RD" for stat in stats)

    def loop_cpu(self) -> float:
        """Return the seconds of processor time of its first thread, which runs the loop (proc_pid_schedstat(5))."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9

    def close(self) -> None:
        """Press q, wait for the end, and end it where it does not."""
        if self.process.poll() is None:
            self.press("q")
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and self.process.poll() is None:
            self.read(0.1)
        self.kill()

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()
        os.close(self._master)
