"""Measure our live screen beside nvitop and textual-plotext: `python -m tests.benchmarks.side_by_side [--seconds N]`.

All three draw once a second in a pseudo-terminal of 120x36 at the same time: we replay a recorded run of an H200 at its
own speed, nvitop asks a stand-in driver, and a bare Textual program draws four charts of two curves with
textual-plotext. What is printed are CPU shares and bytes per second, and their ratios to ours. nvitop and
textual-plotext get environments of their own from uv, since they need other versions than we do.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import uv

from tests.benchmarks.terminal import COMMAND, Taken, Terminal
from tests.support import fake_nvml
from tests.support.recordings import RUNS

PLAIN = """
from textual.app import App
from textual.containers import Grid
from textual_plotext import PlotextPlot
import math, time

class Plain(App):
    CSS = "Grid { grid-size: 2; }"
    def compose(self):
        with Grid():
            for _ in range(4):
                yield PlotextPlot()
    def on_mount(self):
        self.set_interval(1.0, self.draw)
        self.draw()
    def draw(self):
        now = time.time()
        for plot in self.query(PlotextPlot):
            plot.plt.clear_data()
            for shift in (0, 1):
                plot.plt.plot([math.sin((now + i) / 9 + shift) * 50 + 50 for i in range(120)])
            plot.refresh()

Plain().run()
"""


def environment(folder: Path, *packages: str) -> Path:
    """Return the folder of programs of an environment with these packages."""
    subprocess.run([uv.find_uv_bin(), "venv", "-q", folder, "--python", sys.executable], check=True)
    python = folder / "bin" / "python"
    subprocess.run([uv.find_uv_bin(), "pip", "install", "-q", "--python", python, *packages], check=True)
    return folder / "bin"


class Measured:
    """A program in a terminal, and what it took since `begin`."""

    def __init__(self, name: str, *program: str) -> None:
        self.name, self.terminal = name, Terminal(program=program)
        self.begin()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while self.terminal.process.poll() is None:
            self.terminal.read(0.5)

    def begin(self) -> None:
        """Count from now on."""
        self._before: Taken = self.terminal.taken()

    def end(self) -> tuple[float, float]:
        """Return the share of a core and the bytes per second, and end the program."""
        found = self.terminal.since(self._before)
        self.terminal.process.terminate()
        self.terminal.process.wait(10)
        return found


def main() -> None:
    """Measure the three at once and print them with their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(fake_nvml.environment(fake_nvml.build(Path(folder)), "h100"))
        nvitop = environment(Path(folder, "nvitop"), "nvitop")
        plain = environment(Path(folder, "plain"), "textual-plotext", "plotext<6")
        Path(folder, "plain.py").write_text(PLAIN)
        run = str(RUNS / "h200-compile.zip")
        running = [
            Measured("dflash-tui, live screen", *COMMAND, "replay", run, "--at", "170", "--speed", "1"),
            Measured("nvitop, stand-in driver", str(nvitop / "nvitop"), "--monitor", "full", "--interval", "1"),
            Measured("textual-plotext, 4 charts", str(plain / "python"), str(Path(folder, "plain.py"))),
        ]
        time.sleep(12)  # all of them have started
        for program in running:
            program.begin()
        time.sleep(seconds)
        found = [program.end() for program in running]
        for program, (share, rate) in zip(running, found, strict=True):
            ratio = found[0][0] / share if share else float("nan")
            print(f"{program.name:<26} {share:6.1%} of a core  {rate / 1000:7.1f} kB/s  ours to it: {ratio:.2f}")
    os._exit(0)  # threads that still read are nobody's


if __name__ == "__main__":
    main()
