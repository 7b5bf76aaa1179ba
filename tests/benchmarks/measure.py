"""Speed and size of the product: `python -m tests.benchmarks.measure WHAT [options]`, where WHAT is one of those below.

Machines are noisy, so everything is compared within one run, in pairs where there is something to pair with, and
printed with n and spread; nothing is asserted.

version   `dflash-tui --version` against a bare interpreter start
frame     processor time until the first full frame, in pairs with a Textual app of one widget
commands  processor time of `ps`, `gpus` and `recipes`, in pairs with a bare interpreter
paint     seconds until the panel shows the first recipe, in a pseudo-terminal of 120x36
observe   time-to-ready of the demo with and without an observer, same argv, in alternation; CPU of the observer
panel     CPU share and resident memory of the panel on a running server, in a pseudo-terminal of 120x36
"""

import argparse
import os
import resource
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import psutil

from dflash_tui.engines import environments
from dflash_tui.launch import preparation
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.plan_builder import build_plan, engine_folder_for
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.runs import lifecycle, registry, server_process
from dflash_tui.runs.run import Run
from tests.benchmarks.terminal import COMMAND, Terminal, spread


def seconds(argv: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def version(args: argparse.Namespace) -> None:
    script = str(Path(sys.executable).parent / "dflash-tui")
    bare, ours = [], []
    for _ in range(args.n):
        bare.append(seconds([sys.executable, "-c", "pass"]))
        ours.append(seconds([script, "--version"]))
    print(f"bare interpreter      {spread(bare)}")
    print(f"dflash-tui --version  {spread(ours)}")
    print(f"ratio of medians      {statistics.median(ours) / statistics.median(bare):.2f}")


def paint(args: argparse.Namespace) -> None:
    found = []
    for _ in range(args.n):
        terminal = Terminal()
        found.append(terminal.until("demo-cpu"))
        terminal.read(0.3)
        terminal.close()
    print(f"first paint of the panel, 120x36: {spread(found)}")


_LEAST = """
from textual.app import App
from textual.widgets import Static

class Least(App):
    def compose(self):
        yield Static("the least")

Least().run()
"""


_PROGRAM = (sys.executable, "-c", _LEAST)


def frame(args: argparse.Namespace) -> None:
    """Compare the processor time until the first full frame with that of a Textual app of one widget."""
    ours: list[float] = []
    least: list[float] = []
    for _ in range(args.n):
        for found, text, terminal in ((ours, "demo-cpu", Terminal()), (least, "the least", Terminal(program=_PROGRAM))):
            terminal.until(text)
            found.append(sum(psutil.Process(terminal.pid).cpu_times()[:2]))
            terminal.close()
    print(f"first full frame, processor time: {spread(ours)}; of a minimal Textual app: {spread(least)}")
    print(f"ratio in pairs: {spread([one / other for one, other in zip(ours, least, strict=True)], '', 2)}")


def commands(args: argparse.Namespace) -> None:
    """Compare the processor time of short commands with that of a bare interpreter."""
    for name in ("ps", "gpus", "recipes"):
        pairs = [(cpu(["-m", "dflash_tui", name]), cpu(["-c", "pass"])) for _ in range(args.n)]
        print(f"{name}: {spread([one for one, _ in pairs])}, × bare: {spread([a / b for a, b in pairs], '', 1)}")


def cpu(words: list[str]) -> float:
    """Return the processor time of Python with these words."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def wait_ready(url: str, alive: subprocess.Popen[bytes] | Run) -> float:
    """Return the clock when /health answers 200."""
    while True:
        try:
            if httpx.get(f"{url}/health", timeout=1.0).status_code == 200:
                return time.time()
        except httpx.HTTPError:
            pass
        dead = alive.poll() is not None if isinstance(alive, subprocess.Popen) else not server_process.is_alive(alive)
        if dead:
            raise RuntimeError("the server ended")
        time.sleep(0.1)


def start_bare(made: Plan) -> float:
    """Run the plan's argv as a user would by hand and return its time-to-ready."""
    env = os.environ | made.env | {"PATH": f"{Path(made.argv[0]).parent}:{os.environ['PATH']}"}
    began = time.time()
    with (
        Path(os.devnull).open("wb") as null,
        subprocess.Popen(made.argv, env=env, stdout=null, stderr=null, start_new_session=True) as process,
    ):
        ready = wait_ready(f"http://127.0.0.1:{made.port}", process) - began
        os.killpg(process.pid, signal.SIGTERM)
    return ready


def start_observed(made: Plan) -> tuple[float, float]:
    """Launch and watch with the product; return time-to-ready and the watcher's CPU seconds from launch to then."""
    words = ["up", made.recipe, "--port", str(made.port), "--json"]
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as watcher:
        assert watcher.stdout is not None
        while b'"launched"' not in watcher.stdout.readline():
            pass
        before = psutil.Process(watcher.pid).cpu_times()
        drain = threading.Thread(target=watcher.stdout.read)
        drain.start()
        run = registry.find_run(made.recipe)
        ready = wait_ready(run.url, run) - run.started_at
        after = psutil.Process(watcher.pid).cpu_times()
        watcher.send_signal(signal.SIGINT)
        drain.join()
    subprocess.run([*COMMAND, "stop", run.id], check=True, stderr=subprocess.DEVNULL)
    return ready, after.user + after.system - before.user - before.system


def observe(args: argparse.Namespace) -> None:
    import asyncio

    spec = resolution.resolve_recipe(recipe_loader.find_recipe("demo-cpu"))
    made = build_plan(spec, port=lifecycle.find_free_port(8741))
    if environments.find_engine(engine_folder_for(spec.engine)) is None or not Path(made.models_folder).is_dir():
        run = asyncio.run(preparation.prepare_and_launch(spec, made, lambda _event: None))
        wait_ready(run.url, run)
        asyncio.run(lifecycle.stop_server(run))
    start_bare(made)  # fills the caches
    bare, observed, cpu = [], [], []
    for pair in range(args.n):
        for ours in (False, True) if pair % 2 else (True, False):
            if ours:
                ready, used = start_observed(made)
                observed.append(ready)
                cpu.append(used)
            else:
                bare.append(start_bare(made))
    ratios = [b / a for a, b in zip(bare, observed, strict=True)]
    print(f"bare vllm serve       {spread(bare, digits=2)}")
    print(f"launched and observed {spread(observed, digits=2)}")
    print(f"ratio per pair        {spread(ratios, '', 3)}")
    print(f"observer's CPU        {spread(cpu, digits=2)}")
    share = statistics.median(cpu) / statistics.median(observed)
    print(f"                      = {share:.2%} of one core while starting")


def panel(args: argparse.Namespace) -> None:
    run = registry.find_run(args.run)
    if not server_process.is_alive(run):
        raise SystemExit("start a server first: dflash-tui up demo-cpu --detach")
    terminal = Terminal("attach", run.id)
    terminal.rest(10)
    before, resident = terminal.taken(), list[float]()
    for _ in range(max(1, round(args.seconds / 10))):
        terminal.rest(10)
        resident.append(psutil.Process(terminal.pid).memory_info().rss / 1e6)
    share, rate = terminal.since(before)
    print(f"panel on {run.id} at 120x36 for {10 * len(resident)} s: {share:.2%} of a core")
    print(f"written to the terminal: {rate / 1000:.1f} kB/s")
    tenth = max(1, len(resident) // 10)
    print(f"resident memory: first {statistics.mean(resident[:tenth]):.1f} MB, last "
          f"{statistics.mean(resident[-tenth:]):.1f} MB, most {max(resident):.1f} MB (n={len(resident)})")  # fmt: skip
    terminal.close()


_COMMANDS = (
    ("version", version, 20), ("frame", frame, 7), ("commands", commands, 7), ("paint", paint, 5),
    ("observe", observe, 5),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parsers = parser.add_subparsers(required=True)
    for name, work, n in _COMMANDS:
        command = parsers.add_parser(name)
        command.add_argument("-n", type=int, default=n)
        command.set_defaults(work=work)
    command = parsers.add_parser("panel")
    command.add_argument("run", nargs="?")
    command.add_argument("--seconds", type=float, default=60)
    command.set_defaults(work=panel)
    args = parser.parse_args()
    args.work(args)


if __name__ == "__main__":
    main()
