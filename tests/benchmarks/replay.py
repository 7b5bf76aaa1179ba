"""Measure how fast the panel opens and answers keys beside a big log: `python -m tests.benchmarks.replay [MEGABYTES]`.

It runs in a pseudo-terminal, as a user's does. A key press is timed from the write of the key until the screen shows
what it did; between two presses the panel goes on reading.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dflash_tui.monitoring import recording
from dflash_tui.monitoring.player import Player
from dflash_tui.tui.app import DflashApp
from tests.benchmarks.terminal import COLUMNS, COMMAND, ROWS, Terminal, spread
from tests.tui.panel import NO_GPU

PRESSES = 30


def large(folder: Path, megabytes: int) -> None:
    """Write the sample with a log of so many megabytes: its lines after the start, over and over."""
    sample = recording.find_recording("sample").folder
    for part in (recording.RUN_PART, recording.SAMPLES_PART):
        (folder / part).write_bytes((sample / part).read_bytes())
    log = (sample / recording.LOG_PART).read_bytes()
    serving = log[log.index(b"Application startup complete.") :].partition(b"\n")[2]
    with (folder / recording.LOG_PART).open("wb") as file:
        file.write(log)
        for _ in range((megabytes << 20) // len(serving)):
            file.write(serving)


def say(name: str, times: list[float]) -> None:
    print(f"{name:<46} {spread([seconds * 1000 for seconds in times], 'ms', 1)}", flush=True)


async def holds(folder: Path, seconds: float) -> list[float]:
    """Return the processor time of each turn of the panel's loop while it reads: how long a key may have to wait.

    A busy machine adds to the times of keys, but not to these.
    """
    player = Player(recording.read_recording(folder), at=1e9)
    panel = DflashApp(player=player, probe=lambda: NO_GPU)
    async with panel.run_test(size=(COLUMNS, ROWS)):
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
        times.append(terminal.until("REPLAY"))
        busy.append(terminal.taken().cpu)
        terminal.close()
    say("replay sample, until the first picture", times)
    say("    of that on the processor", busy)
    with tempfile.TemporaryDirectory() as name:
        large(Path(name), megabytes)
        terminal = Terminal("replay", name, "--at", "1000000", "--speed", "1")
        terminal.until("reading")
        terminal.rest(3)  # the first charts import plotext, once
        times, busy, speed = [], [], 1.0
        for press in range(PRESSES):
            up = press % 20 < 10
            speed = speed * 2 if up else speed / 2
            terminal.rest(0.37)
            before = terminal.loop_cpu()
            terminal.press("+" if up else "-")
            times.append(terminal.until(f"×{speed:g} "))
            busy.append(terminal.loop_cpu() - before)
        terminal.rest(0.5)
        reading = terminal.process.poll() is None
        say(f"key to paint while {megabytes} MB are read", times)
        say("    of that on the processor", busy)
        terminal.close()
        say("    a turn of the loop, on the processor", asyncio.run(holds(Path(name), 15)))
        if not reading:
            raise SystemExit("the panel ended by itself")


if __name__ == "__main__":
    main()
