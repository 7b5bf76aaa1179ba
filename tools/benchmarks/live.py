"""Cost of the live screen: `python -m tools.benchmarks.live [--seconds N]`.

CPU share and bytes to a pseudo-terminal of 120x36 at rest and at work, with a server that is played: the panel asks it,
and records. Nothing is asserted: machines are noisy.
"""

import argparse
import os
import signal
import sys
import time

import msgspec
import psutil

from dflash_tui.events import Health, HealthChanged
from dflash_tui.planning.plan_builder import build_plan
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.runs import lifecycle
from dflash_tui.runs.run import Run
from tests import ROOT
from tests.support import recordings
from tools.benchmarks.recorded_load import load
from tools.benchmarks.terminal import Terminal

FAKE = ROOT / "tests" / "support" / "fake_server.py"
METRICS = recordings.FOLDER / "cpu-vllm-0.32.0" / "dflash" / "metrics_end.txt"


def _watch(run: Run, panel: Terminal, name: str, seconds: float, *, busy: bool) -> None:
    start, before = time.time(), panel.taken()
    for second in range(int(seconds) + 8):
        if second == 8:
            before = panel.taken()
        if busy:
            run.record(load(start, second)[1])
        panel.rest(1.0)
    share, rate = panel.since(before)
    resident = psutil.Process(panel.pid).memory_info().rss
    print(f"{name}: {share:.2%} of a core, {rate / 1000:.1f} kB/s to the terminal, {resident / 1e6:.0f} MB resident")


def main() -> None:
    """Attach to a server that answers like a real one, with a GPU that this program plays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    for name, words in (("at rest", []), ("at work", ["busy"])):
        port = lifecycle.find_free_port(18_300)
        made = build_plan(resolution.resolve_recipe(recipe_loader.find_recipe("demo-cpu")), port=port)
        argv = (sys.executable, str(FAKE), str(port), *words, f"like={METRICS}")
        run = lifecycle.launch_server(msgspec.structs.replace(made, argv=argv), engine="played")
        panel = None
        try:
            run.record(HealthChanged(time.time(), Health.WARM))
            panel = Terminal("attach", run.id)
            _watch(run, panel, name, args.seconds, busy=bool(words))
        finally:
            if panel is not None:
                panel.close()
            os.kill(run.pid, signal.SIGTERM)


if __name__ == "__main__":
    main()
