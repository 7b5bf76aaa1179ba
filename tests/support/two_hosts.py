"""Two hosts on one machine, for tests of a server over both: `two_hosts.sh` makes them, this runs the program there."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests import ROOT

_SCRIPT = ROOT / "tests" / "support" / "two_hosts.sh"
_NOT_PERMITTED = 77


class TwoHosts:
    """The hosts `a` (spark-a) and `b` (spark-b); `folder` holds a folder for each."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder, self._data = folder, data

    def change(self, action: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run an action of the script, such as `cut`."""
        env = {**os.environ, "XDG_DATA_HOME": str(self._data)}
        command = ["bash", str(_SCRIPT), action, str(self.folder), *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)

    def run(self, host: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command on a host, as its user would in a fresh login."""
        command = self.build_command(host, *words)
        return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    def build_command(self, host: str, *words: str) -> list[str]:
        """Return what runs a command on a host, as its user would in a fresh login."""
        home, pid = self.folder / host / "home", (self.folder / f"{host}.pid").read_text().strip()
        path = f"{home}/.local/bin:{os.environ['PATH']}:/usr/sbin:/sbin"
        # A name of a socket has 107 characters at most, so TMPDIR is short.
        env = [
            f"HOME={home}",
            "TMPDIR=/run",
            f"XDG_DATA_HOME={self._data}",
            f"XDG_CACHE_HOME={self._data / 'cache'}",
            f"PATH={path}",
        ]
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
    hosts = TwoHosts(folder, data)
    made = hosts.change("up", str(data / "dflash-tui" / "models"))
    try:
        if made.returncode == _NOT_PERMITTED:
            pytest.skip(f"no two hosts here: {made.stderr.strip()}")
        assert made.returncode == 0, made.stderr
        for host in ("a", "b"):
            program = folder / host / "home" / ".local" / "bin" / "dflash-tui"
            program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -P -m dflash_tui "$@"\n')
            program.chmod(0o755)
        yield hosts
    finally:
        hosts.change("down")
