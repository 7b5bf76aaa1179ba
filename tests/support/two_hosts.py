"""Two hosts on one machine, for tests of a server over both: `two_hosts.sh` makes them, this runs the program there."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests import ROOT
from tests.support import toy_pair
from tests.support.waiting import PATIENCE

_SCRIPT = ROOT / "tests" / "support" / "two_hosts.sh"
_NOT_PERMITTED = 77
_TRUST = """
from dflash_tui.launch import recipe_trust
from dflash_tui.planning.recipes import recipe_loader
recipe_trust.trust_contents(recipe_loader.find_recipe("toy"))
"""


class FarOutput:
    """A command of a host that goes on, and what it writes into `file`."""

    def __init__(self, command: Sequence[str], file: Path) -> None:
        self._file = file
        with file.open("wb") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)

    @property
    def text(self) -> str:
        """What it has written so far."""
        return self._file.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill it alone; what it has started goes on."""
        for process in psutil.Process(self._process.pid).children():  # nsenter's only one
            process.kill()
        self._process.wait(PATIENCE)

    def wait(self) -> str:
        """Wait until it has ended, and return all that it wrote."""
        self._process.wait(PATIENCE)
        return self.text


class TwoHosts:
    """The hosts `a` (spark-a) and `b` (spark-b): `folder` holds a folder for each, `shared` are variables of both."""

    def __init__(self, folder: Path, shared: Mapping[str, str]) -> None:
        self.folder, self.shared = folder, shared
        self._started = 0

    def change(self, action: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run an action of the script, such as `cut`."""
        command = ["bash", str(_SCRIPT), action, str(self.folder), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def run(self, host: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command on a host, as its user would in a fresh login."""
        command = self.build_command(host, *words)
        return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    def start(self, host: str, *words: str) -> FarOutput:
        """Run a command on a host while the test goes on."""
        self._started += 1
        return FarOutput(self.build_command(host, *words), self.folder / f"output-{self._started}")

    def build_command(self, host: str, *words: str) -> list[str]:
        """Return what runs a command on a host, as its user would in a fresh login."""
        home, pid = self.folder / host / "home", (self.folder / f"{host}.pid").read_text().strip()
        path = f"{home}/.local/bin:{os.environ['PATH']}:/usr/sbin:/sbin"
        # A name of a socket has 107 characters at most, so TMPDIR is short.
        own = {"HOME": home, "TMPDIR": "/run", "PATH": path}
        env = [f"{name}={value}" for name, value in (own | {**self.shared}).items()]
        return ["nsenter", "-t", pid, "-m", "-u", "-i", "-n", "-p", "--", "env", "-i", "LANG=C.UTF-8", *env, *words]

    def list_engines(self, host: str) -> list[psutil.Process]:
        """Return the processes of vLLM on a host."""
        return [
            process
            for process, command in self.list_processes(host)
            if any(word.startswith("VLLM::") or word.endswith("/bin/vllm") for word in command[:2])
        ]

    def list_processes(self, host: str) -> list[tuple[psutil.Process, list[str]]]:
        """Return the processes of a host, each with its command."""
        holder, processes = psutil.Process(int((self.folder / f"{host}.pid").read_text())), []
        for process in holder.children(recursive=True):
            with suppress(psutil.Error):
                processes.append((process, process.cmdline()))
        return processes


@contextmanager
def make_two_hosts(folder: Path, data: Path) -> Iterator[TwoHosts]:
    """Make two hosts with this program on both, whose engines are those in `data`; skip where that is not permitted."""
    shared = {"XDG_DATA_HOME": str(data), "XDG_CACHE_HOME": str(data / "cache")}
    hosts = TwoHosts(folder, shared)
    variables = [f"{name}={value}" for name, value in shared.items()]
    made = hosts.change("up", str(data / "dflash-tui" / "models"), *variables)
    for host in ("a", "b"):
        toy_pair.write_recipe(folder / host / "home" / ".config" / "dflash-tui" / "recipes")
    try:
        if made.returncode == _NOT_PERMITTED:
            pytest.skip(f"no two hosts here: {made.stderr.strip()}")
        assert made.returncode == 0, made.stderr
        for host in ("a", "b"):
            _put_program(hosts, host)
            trusted = hosts.run(host, "env", f"PYTHONPATH={ROOT}", sys.executable, "-c", _TRUST)
            assert trusted.returncode == 0, trusted.stderr
        yield hosts
    finally:
        hosts.change("down")


def _put_program(hosts: TwoHosts, host: str) -> None:
    """Put this program on the PATH of a host."""
    program = hosts.folder / host / "home" / ".local" / "bin" / "dflash-tui"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -P -m dflash_tui "$@"\n')
    program.chmod(0o755)
