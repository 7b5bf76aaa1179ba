"""A life full of kill -9: `python -m tools.benchmarks.kills --kills 100 --seed N`.

Commands of the whole life run in a fresh home, on an engine that uv really installs and whose vLLM is a stand-in. Each
kill comes at a random moment of one of them, or when a file appears, and hits the command, its group, a server, a core
or a driver. Then all lists are held against what is there, and the next normal command has to work.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import psutil

from dflash_tui.runs import lifecycle
from tools.benchmarks import mortal, phases
from tools.benchmarks.audit import Home, Lie, audit

_FIRST_GUESS, _LONGEST = 1.5, 25.0


class Killer:
    """Kills at random moments, and counts."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.took: dict[str, float] = {}
        self.kills: Counter[str] = Counter()
        self.found: Counter[str] = Counter()
        self.lies: list[str] = []

    def one(self, home: Home, name: str, number: int) -> None:
        """Kill once in this phase, audit, do the same in peace, audit again; print a line.

        Raises:
            Lie: something was not as it was said to be.
        """
        phase = phases.PHASES[name]
        home.variables = {mortal.LINGERS: "1"} if self.random.random() < 0.4 else {}
        for _ in range(8):
            words = phase.begin(home)
            victim = self.random.choice(phase.victims)
            mark = self.random.choice(phase.marks) if phase.marks and self.random.random() < 0.5 else ""
            if (hit := self._kill(home, name, words, victim, mark)) is not None:
                break
        else:
            raise Lie(f"{name} was always faster")
        moment = f"{hit:5.2f} s{f' {mark}' if mark else ''}"
        print(f"{number:4} {name:8} {victim:7} {moment:40}", end=" ", flush=True)
        found = audit(home)
        phase.right(home)
        left = [each for each in audit(home) if not each.startswith("ab list")]
        if left:
            raise Lie(f"after the next command: {', '.join(left)}")
        self.kills[name] += 1
        self.found.update({"nothing"} if not found else {each.partition(" (pid")[0] for each in found})
        print(f"{'; '.join(found) or 'nothing wrong'} → right again", flush=True)

    def _kill(self, home: Home, name: str, words: tuple[str, ...], victim: str, mark: str) -> float | None:
        """Run the command and kill; return when, in seconds, or None when it ended before."""
        known = set(_marked(home, mark))
        began, pid = time.monotonic(), home.quick.begin(*words, **home.variables)
        moment = began + self.random.uniform(0, self.took.get(name, _FIRST_GUESS))
        killed = None
        while killed is None and time.monotonic() - began < _LONGEST and _lives(pid):
            due = not known.issuperset(_marked(home, mark)) if mark else time.monotonic() >= moment
            if due and (target := _target(home, pid, victim)):
                os.killpg(pid, signal.SIGKILL) if victim == "group" else os.kill(target, signal.SIGKILL)
                killed = time.monotonic() - began
            time.sleep(0.0005 if mark else 0.005)
        if victim in {"server", "core", "driver"}:
            self._let_go(pid, words)
        elif killed is None:
            os.kill(pid, signal.SIGINT) if _lives(pid) else None
        code = home.quick.end()
        if killed is None:
            self.took[name] = 0.8 * (time.monotonic() - began)
        elif code.code != -signal.SIGKILL:
            home.judged(code, words, (0, 1, 2, 3, 4, 5, 6, 130))
            return killed if victim not in {"leader", "group"} else None
        return killed

    @staticmethod
    def _let_go(pid: int, words: tuple[str, ...]) -> None:
        """Let the command see what became of its server; who only watches is ended like by Ctrl-C."""
        deadline = time.monotonic() + (60 if words[0] == "ab" else 8)
        while _lives(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        if _lives(pid):
            os.kill(pid, signal.SIGINT)


def _marked(home: Home, mark: str) -> list[Path]:
    return [*home.data.glob(mark), *home.state.glob(mark)] if mark else []


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _target(home: Home, pid: int, victim: str) -> int | None:
    if victim in {"leader", "group"}:
        return pid
    return next(iter(home.pids(victim)), None)


def _swept(home: Home) -> None:
    """End what a home that is given up has left."""
    for process in home.processes():
        process.kill()
    home.quick.close()
    shutil.rmtree(home.folder, ignore_errors=True)


def main() -> int:
    """Kill as often as asked, and return 1 when a list lied once."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--only", action="append", choices=phases.PHASES, help="only this phase; may be repeated")
    parser.add_argument("--real", action="store_true", help="the demo engine, in the folder DFLASH_TUI_TEST_DATA names")
    args = parser.parse_args()
    real = Path(os.environ["DFLASH_TUI_TEST_DATA"]) if args.real else None
    killer, began, home = Killer(args.seed), time.monotonic(), None
    print(f"seed {args.seed}, {args.kills} kills", flush=True)
    names = args.only or list(phases.REAL if real else phases.PHASES)
    weights = [phases.PHASES[name].weight for name in names]
    order = killer.random.choices(names, weights, k=args.kills)
    for number, name in enumerate(order, 1):
        if home is None:
            home = Home(
                Path(tempfile.mkdtemp(prefix="mortal-")),
                lifecycle.find_free_port(28_000 + 100 * (os.getpid() % 8)),
                real,
            )
            home.said("engine", "install", home.recipe, "--trust")
        try:
            killer.one(home, name, number)
        except KeyboardInterrupt:
            _swept(home)
            raise
        except Exception as error:  # noqa: BLE001 - what broke is told, and the others go on
            killer.lies.append(f"kill {number}, {name}: {error!r}")
            print(f"LIE: {error!r}", flush=True)
            if not isinstance(error, Lie):
                traceback.print_exception(error)
            _swept(home)
            home = None
    if home:
        phases.calm(home)
        _swept(home)
    print(f"\n{sum(killer.kills.values())} of {args.kills} kills in {time.monotonic() - began:.0f} s, then all right")
    print("  by phase: " + ", ".join(f"{name} {count}" for name, count in killer.kills.most_common()))
    for what, count in killer.found.most_common():
        print(f"  found after {count}: {what}")
    for said in killer.lies:
        print(f"  LIE {said[:600]}")
    return 1 if killer.lies else 0


if __name__ == "__main__":
    sys.exit(main())
