"""Cost of the live screen and of a day's samples: `python tests/benchmarks/live.py frame|day|terminal`.

frame     CPU of drawing one frame at 120x36 with new samples each second, and with none
day       memory of 24 h of samples, and the CPU of folding them
terminal  CPU share and bytes to a pseudo-terminal of 120x36 at rest and at work, with a server that is played:
          the panel asks it, and records
Nothing is asserted: machines are noisy.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
import tracemalloc
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import msgspec
import psutil

from dflash_tui.events import (
    Health,
    HealthChanged,
)
from dflash_tui.planning.plan_builder import build_plan
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import lifecycle, run_files
from dflash_tui.runs.run import Run
from tests import ROOT
from tests.benchmarks.terminal import Terminal, spread
from tests.support import recordings
from tests.support.recorded_load import HOUR, load
from tests.tui.conftest import a_run, recorded
from tests.tui.panel import app, feed

FAKE = ROOT / "tests" / "support" / "fake_server.py"
METRICS = recordings.FOLDER / "cpu-vllm-0.32.0" / "dflash" / "metrics_end.txt"


async def _frames(count: int, window: int) -> tuple[list[float], list[float]]:
    events = recorded("cpu-vllm-0.32.0/dflash_compile_cold")
    start = events[-1].at
    clock = [start]
    panel = app(now=0.0)
    panel.run_screen.view.now = lambda: clock[0]
    async with panel.run_test(size=(120, 36)) as pilot:
        await feed(pilot, a_run(), [*events, *(e for s in range(HOUR) for e in load(start, s))])
        panel.run_screen.view.window = window
        panel.run_screen.view.draw()
        working, resting = [], []
        for second in range(HOUR, HOUR + count):
            clock[0] = start + second
            for event in load(start, second):
                panel.run_screen.view.take(event)
            working.append(await _frame(pilot))
        for second in range(HOUR + count, HOUR + 2 * count):
            clock[0] = start + second
            resting.append(await _frame(pilot))
    return working, resting


async def _frame(pilot) -> float:
    """Draw and render once; return the milliseconds of CPU."""
    began = time.process_time()
    pilot.app.run_screen.view.draw()
    await pilot.pause()
    pilot.app.screen._compositor.render_strips(pilot.app.size)
    return (time.process_time() - began) * 1000


def frame(args: argparse.Namespace) -> None:
    os.environ.pop("DFLASH_TUI_MARKER", None)
    for window, keys in (("2 min", 0), ("10 min", 1), ("60 min", 2)):
        working, resting = asyncio.run(_frames(args.n, keys))
        print(f"one frame at 120x36, window {window}, new samples: {spread(working, 'ms CPU', 1)}")
        print(f"                                       none: {spread(resting, 'ms CPU', 1)}")


def day(_: argparse.Namespace) -> None:
    state = RunState()
    tracemalloc.start()
    began = time.process_time()
    for second in range(24 * HOUR):
        for event in load(1.8e9, second):
            state.apply(event)
    folded = time.process_time() - began
    size, _peak = tracemalloc.get_traced_memory()
    print(
        f"24 h of samples at 1 Hz: {size / 1e6:.1f} MB, {len(state.readings)} readings, {len(state.gpus)} GPU samples"
    )
    print(f"folded in {folded:.1f} s of CPU (with memory tracing)")


def terminal(args: argparse.Namespace) -> None:
    """Attach to a server that answers like a real one, with a GPU that this program plays."""
    for name, words in (("at rest", []), ("at work", ["busy"])):
        port = lifecycle.find_free_port(18_300)
        made = build_plan(resolution.resolve_recipe(recipe_loader.find_recipe("demo-cpu")), port=port)
        argv = (sys.executable, str(FAKE), str(port), *words, f"like={METRICS}")
        run = lifecycle.launch_server(msgspec.structs.replace(made, argv=argv), engine="played")
        panel = None
        try:
            run_files.record_event(run, HealthChanged(time.time(), Health.WARM))
            panel = Terminal("attach", run.id)
            _watch(run, panel, name, args.seconds, busy=bool(words))
        finally:
            if panel is not None:
                panel.close()
            os.kill(run.pid, signal.SIGTERM)


def _watch(run: Run, panel: Terminal, name: str, seconds: float, *, busy: bool) -> None:
    start, before = time.time(), panel.taken()
    for second in range(int(seconds) + 8):
        if second == 8:
            before = panel.taken()
        if busy:
            run_files.record_event(run, load(start, second)[1])
        panel.rest(1.0)
    share, rate = panel.since(before)
    resident = psutil.Process(panel.pid).memory_info().rss
    print(f"{name}: {share:.2%} of a core, {rate / 1000:.1f} kB/s to the terminal, {resident / 1e6:.0f} MB resident")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, work in (("frame", frame), ("day", day), ("terminal", terminal)):
        command = commands.add_parser(name)
        command.add_argument("-n", type=int, default=60)
        command.add_argument("--seconds", type=float, default=40)
        command.set_defaults(work=work)
    args = parser.parse_args()
    args.work(args)


if __name__ == "__main__":
    main()
