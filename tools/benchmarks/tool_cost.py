"""What this program costs by itself: `python -m tools.benchmarks.tool_cost commands|frame|rest [-n N] [--than FOLDER]`.

commands  processor time of short commands, as a ratio to that of a bare Python
frame     processor time until the launch screen is drawn whole, as a ratio to that of a minimal Textual app; beside it
          that of an app of as many widgets with the same style sheet, and of a minimal one that imports the panel
rest      share of a core that the launch screen takes when nothing is done

All of it with forty recipes. What is compared is run by turns, in an order that changes from round to round; the ratio
of each round is one value. With --than another checkout takes part, and the ratios to it are printed as well.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests import ROOT
from tools.benchmarks.terminal import Terminal, spread

RECIPES = 40
COMMANDS = ("ps", "gpus", "recipes", "--help", "--version")
_MINIMAL = """
from textual.app import App
from textual.widgets import Static

class Minimal(App):
    def compose(self):
        yield Static("hello")

Minimal().run()
"""
# What Textual itself takes for the launch screen: its widgets, about its texts, its style sheet, and no code of ours.
_WIDGETS = """
import sys
from textual.app import App
from textual.containers import Vertical, VerticalScroll
from textual.screen import Screen
from textual.widgets import OptionList, Static

class LaunchScreen(Screen):
    AUTO_FOCUS = "#recipes"

    def compose(self):
        yield Static("head", id="head")
        with Vertical(id="left"):
            yield Static("machine", id="machine")
            with Vertical(id="list"):
                yield Static("columns", id="columns")
                rows = [f"a recipe {n:<30} 7   0.33.0 reported" for n in range(120)]
                yield OptionList(*rows, id="recipes", markup=False)
            yield Static(id="servers")
        with VerticalScroll(id="plan"):
            yield Static("\\n".join(["what the plan says, in one row of it"] * 30), id="text", markup=False)
        yield Static(id="small")
        yield Static("keys", id="keys")

class Widgets(App):
    CSS_PATH = sys.argv[1]
    MODES = {"launch": LaunchScreen}
    DEFAULT_MODE = "launch"

    def get_theme_variable_defaults(self):
        return {"series-a": "#56B4E9", "series-b": "#E69F00", "series-c": "#CC79A7", "series-dim": "#3F6E8C"}

Widgets().run()
"""
_IMPORTS = f"import dflash_tui.cli.main, dflash_tui.tui.app{_MINIMAL}"
_QUIET = 0.7  # seconds without a byte and with no thread at work after which a screen is taken as drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("commands", "frame", "rest"))
    parser.add_argument("-n", type=int, default=15, help="rounds")
    parser.add_argument("--than", type=Path, help="the root of another checkout")
    parser.add_argument("--seconds", type=float, default=30, help="how long is rested")
    args = parser.parse_args()
    trees = {"": ROOT} | ({" there": args.than.resolve()} if args.than else {})
    with tempfile.TemporaryDirectory() as home:
        _fill_home(Path(home))
        if args.what == "commands":
            _compare_commands(trees, args.n)
        elif args.what == "frame":
            _compare_frames(trees, args.n)
        else:
            _measure_rest(trees, args.n, args.seconds)


def _fill_home(home: Path) -> None:
    """Make `home` that of the programs to come, with as many recipes as are missing, copies of the shipped ones."""
    for name in [name for name in os.environ if name.startswith(("DFLASH_TUI_", "PYTHON", "XDG_"))]:
        del os.environ[name]
    # Byte code is kept, as it is for everybody who installed the program, and no checkout gets any of it.
    os.environ.update(HOME=str(home), PYTHONPYCACHEPREFIX=str(home / "pycache"))
    shipped = sorted((ROOT / "recipes").glob("[!_]*.yaml"))
    folder = home / ".config" / "dflash-tui" / "recipes"
    folder.mkdir(parents=True, mode=0o700)
    for number in range(RECIPES - len(shipped)):
        source = shipped[number % len(shipped)]
        (folder / f"own-{number:02}-{source.name}").write_bytes(source.read_bytes() + b"# %d\n" % number)


def _choose_folders(tree: Path) -> dict[str, str]:
    """Return the variables by which a checkout runs, with a cache of its own: it believes none of another program's."""
    return {"PYTHONPATH": str(tree), "XDG_CACHE_HOME": f"{os.environ['HOME']}/caches{tree}"}


def _compare_commands(trees: dict[str, Path], rounds: int) -> None:
    subjects: dict[str, Callable[[], float]] = {"bare": partial(_run, ROOT, "-c", "pass")}
    for name, tree in trees.items():
        for word in COMMANDS:
            subjects[word + name] = partial(_run, tree, "-m", "dflash_tui", word)
    _compare(subjects, "bare", rounds)


def _run(tree: Path, *words: str) -> float:
    """Return the seconds of processor time of a program and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *words], env=os.environ | _choose_folders(tree), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, cwd=tree,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _compare_frames(trees: dict[str, Path], rounds: int) -> None:
    sheet = str(ROOT / "dflash_tui" / "tui" / "app.tcss")
    subjects: dict[str, Callable[[], float]] = {
        "minimal": partial(_draw_first, ROOT, "-c", _MINIMAL),
        "its widgets alone": partial(_draw_first, ROOT, "-c", _WIDGETS, sheet),
        "its imports alone": partial(_draw_first, ROOT, "-c", _IMPORTS),
    }
    for name, tree in trees.items():
        _use_panel(tree)
        subjects["panel" + name] = partial(_draw_first, tree, "-m", "dflash_tui")
    _compare(subjects, "minimal", rounds)


def _use_panel(tree: Path) -> None:
    """Open the panel for a while, so that its caches are those of a second start."""
    os.environ.update(_choose_folders(tree))
    terminal = Terminal(cwd=tree)
    terminal.rest(8)
    terminal.kill()


def _draw_first(tree: Path, *words: str) -> float:
    """Return the seconds of processor time until the last byte that is written before the program rests."""
    os.environ.update(_choose_folders(tree))
    terminal = Terminal(program=(sys.executable, *words), cwd=tree)  # -m looks there first
    try:
        spent, last = 0.0, time.monotonic()
        while time.monotonic() - last < _QUIET or not terminal.bytes:
            if terminal.read(0.02):
                spent, last = terminal.cpu(), time.monotonic()
            elif terminal.is_busy():
                last = time.monotonic()
        return spent
    finally:
        terminal.kill()


def _measure_rest(trees: dict[str, Path], rounds: int, seconds: float) -> None:
    shares: dict[str, list[float]] = {name: [] for name in trees}
    for _ in range(rounds):
        for name, tree in trees.items():
            os.environ.update(_choose_folders(tree))
            terminal = Terminal(cwd=tree)
            try:
                terminal.rest(8)  # what is imported later is imported by then
                before, began = terminal.cpu(), time.monotonic()
                terminal.rest(seconds)
                shares[name].append((terminal.cpu() - before) / (time.monotonic() - began) * 100)
            finally:
                terminal.kill()
    for name, values in shares.items():
        print(f"launch screen at rest{name}: {spread(values, '% of a core', 2)}")


def _compare(subjects: dict[str, Callable[[], float]], base: str, rounds: int) -> None:
    for measure in subjects.values():  # byte code, and the disk's cache
        measure()
    names = [*subjects]
    taken: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in random.sample(names, len(names)):
            taken[name].append(subjects[name]())
    print(f"{base}: {spread([value * 1000 for value in taken[base]], 'ms', 1)}")
    for name in names:
        if name != base:
            print(f"{name}: {_format_ratios(taken[name], taken[base])} times {base}")
        if f"{name} there" in taken:
            print(f"{name}: {_format_ratios(taken[name], taken[f'{name} there'])} times that there")


def _format_ratios(values: Sequence[float], bases: Sequence[float]) -> str:
    return spread([value / base for value, base in zip(values, bases, strict=True)], "", 2)


if __name__ == "__main__":
    main()
