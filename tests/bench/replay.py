"""How fast the panel opens and answers keys while it reads a large log: `python -m tests.bench.replay [MEGABYTES]`.

It runs in a pseudo-terminal, as a user's does. A key press is timed from the write of the key until the screen shows
what it did; between two presses the panel goes on reading.
"""

import asyncio
import fcntl
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import psutil

from dflash_tui.core import recording
from dflash_tui.core.player import Player
from dflash_tui.tui.app import DflashApp
from tests.tui.panel import NO_GPU

SIZE = (36, 120)
PRESSES = 30
COMMAND = [sys.executable, "-m", "dflash_tui"]


class Terminal:
    """A program in a terminal: what it writes, and when."""

    def __init__(self, *words: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        environment = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self.process = subprocess.Popen([*COMMAND, *words], stdin=slave, stdout=slave, stderr=slave, env=environment)
        os.close(slave)

    def wait_for(self, text: str, limit: float = 60.0) -> float:
        """Return the seconds until `text` is written."""
        began, seen = time.perf_counter(), b""
        while time.perf_counter() - began < limit:
            if select.select([self._master], [], [], 0.1)[0]:
                seen = seen[-4096:] + os.read(self._master, 1 << 16)
                if text.encode() in seen:
                    return time.perf_counter() - began
        raise SystemExit(f"{text!r} was not written within {limit:.0f} s")

    def press(self, key: str) -> None:
        os.write(self._master, key.encode())

    def rest(self, seconds: float) -> None:
        """Read on for a while."""
        until = time.perf_counter() + seconds
        while (left := until - time.perf_counter()) > 0:
            if select.select([self._master], [], [], left)[0]:
                os.read(self._master, 1 << 16)

    def cpu(self) -> float:
        """Return the seconds of processor time that the program has taken, which a busy machine does not change."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


def large(folder: Path, megabytes: int) -> None:
    """Write the sample with a log of so many megabytes: its lines after the start, over and over."""
    sample = recording.find("sample").folder
    for part in (recording.RUN, recording.SAMPLES):
        (folder / part).write_bytes((sample / part).read_bytes())
    log = (sample / recording.LOG).read_bytes()
    serving = log[log.index(b"Application startup complete.") :].partition(b"\n")[2]
    with (folder / recording.LOG).open("wb") as file:
        file.write(log)
        for _ in range((megabytes << 20) // len(serving)):
            file.write(serving)


def say(name: str, times: list[float]) -> None:
    times.sort()
    rest = f"median {statistics.median(times) * 1000:.0f}, 95 % {times[int(len(times) * 0.95)] * 1000:.0f}"
    print(f"{name:<46} {rest}, most {times[-1] * 1000:.0f} ms (n={len(times)})", flush=True)


async def holds(folder: Path, seconds: float) -> list[float]:
    """Return the processor time of each turn of the panel's loop while it reads: how long a key may have to wait.

    A busy machine adds to the times of keys, but not to these.
    """
    player = Player(recording.read(folder), at=1e9)
    panel = DflashApp(player=player, probe=lambda: NO_GPU)
    async with panel.run_test(size=SIZE[::-1]):
        await asyncio.sleep(3)
        turns, until = [], time.perf_counter() + seconds
        while time.perf_counter() < until and player.behind:
            before = time.thread_time()
            await asyncio.sleep(0)
            turns.append(time.thread_time() - before)
    return turns


def main() -> None:
    """Print the times of starting and of pressing keys."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    for words in (["--version"], ["--help"], ["ps"], ["replay", "sample", "--plain"]):
        times = []
        for _ in range(5):
            began = time.perf_counter()
            subprocess.run([*COMMAND, *words], capture_output=True, check=True)
            times.append(time.perf_counter() - began)
        say(" ".join(words), times)
    times, busy = [], []
    for _ in range(5):
        terminal = Terminal("replay", "sample")
        times.append(terminal.wait_for("REPLAY"))
        busy.append(terminal.cpu())
        terminal.close()
    say("replay sample, until the first picture", times)
    say("    of that on the processor", busy)
    with tempfile.TemporaryDirectory() as name:
        large(Path(name), megabytes)
        terminal = Terminal("replay", name, "--at", "1000000", "--speed", "1")
        terminal.wait_for("reading")
        terminal.rest(3)  # the first charts import plotext, once
        times, speed = [], 1.0
        for press in range(PRESSES):
            up = press % 20 < 10
            speed = speed * 2 if up else speed / 2
            terminal.rest(0.37)
            terminal.press("+" if up else "-")
            times.append(terminal.wait_for(f"×{speed:g} "))
        terminal.rest(0.5)
        reading = terminal.process.poll() is None
        say(f"key to paint while {megabytes} MB are read", times)
        terminal.close()
        say("    a turn of the loop, on the processor", asyncio.run(holds(Path(name), 15)))
        if not reading:
            raise SystemExit("the panel ended by itself")


if __name__ == "__main__":
    main()
