"""Hosts that cannot be joined, over a real ssh: one sentence and what to do for each, and nothing begun anywhere."""

import json
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests import ROOT
from tests.support.two_hosts import TwoHosts, make_two_hosts
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long
# A program of another release.
_NEWER = """
import sys
from dflash_tui.cli.main import main
from dflash_tui.peers import agent
agent.__version__ = "9.9.9"
sys.exit(main(sys.argv[1:]))
"""
# A rank of a server of a third host.
_RANK = """
from msgspec.structs import replace
from dflash_tui.runs import lifecycle
from tests.support.fake_runs import made
lifecycle.launch_server(replace(made(29501, "deaf"), rank=1), engine="fake")
"""


def add_ssh_host(name: str, *lines: str) -> Callable[[TwoHosts], None]:
    """Return what lets spark-a know spark-b by another name, too, with these lines of ssh's configuration."""

    def add(hosts: TwoHosts) -> None:
        config = hosts.folder / "a" / "ssh_config"
        own = "\n".join((f"Host {name}", "HostName 10.77.0.2", *lines))
        config.write_text(f"{own}\n{config.read_text()}")

    return add


def change_key(hosts: TwoHosts) -> None:
    add_ssh_host("changed", "HostKeyAlias changed")(hosts)
    key = (hosts.folder / "host_a.pub").read_text()
    with (hosts.folder / "known_hosts").open("a") as file:
        file.write(f"changed {key}")


def remove_program(hosts: TwoHosts) -> None:
    (hosts.folder / "b" / "home" / ".local" / "bin" / "dflash-tui").unlink()


def put_newer_program(hosts: TwoHosts) -> None:
    (hosts.folder / "newer.py").write_text(_NEWER)
    program = hosts.folder / "b" / "home" / ".local" / "bin" / "dflash-tui"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -P {hosts.folder}/newer.py "$@"\n')


def leave_subnet(hosts: TwoHosts) -> None:
    for words in ("addr flush dev eth0", "addr add 10.77.0.1/32 dev eth0", "route add 10.77.0.2 dev eth0"):
        assert hosts.run("a", "ip", *words.split()).returncode == 0


def launch_rank(hosts: TwoHosts) -> None:
    hosts.run("b", "env", f"PYTHONPATH={ROOT}", sys.executable, "-c", _RANK)
    wait_until(lambda: count_runs(hosts) == 1)


def count_runs(hosts: TwoHosts) -> int:
    """Return how many runs there are on both hosts."""
    return len([*hosts.folder.glob("?/home/.local/state/dflash-tui/runs/*/run.json")])


def list_programs(hosts: TwoHosts) -> list[str]:
    """Return what runs on both besides their ssh servers."""
    commands = [" ".join(command) for host in "ab" for _, command in hosts.list_processes(host)]
    return sorted(command for command in commands if command and not command.startswith(("sshd: ", "sleep ")))


def do_nothing(_: TwoHosts) -> None:
    """Leave both hosts as they are."""


class Case(NamedTuple):
    """Which peers are named, what is done to the hosts before, and further words."""

    peers: tuple[str, ...]
    before: Callable[[TwoHosts], None] = do_nothing
    more: tuple[str, ...] = ()


CASES = {
    "unknown host": Case(("nowhere",)),
    "no host at the address": Case(("10.77.0.9",)),
    "no ssh server": Case(("closed",), add_ssh_host("closed", "Port 2222", "HostKeyAlias spark-b")),
    "key refused": Case(("refusing",), add_ssh_host("refusing", "HostKeyAlias spark-b", "PubkeyAuthentication no")),
    "host key changed": Case(("changed",), change_key),
    "host key unknown": Case(("stranger",), add_ssh_host("stranger", "HostKeyAlias stranger")),
    "no program": Case(("spark-b",), remove_program),
    "another release": Case(("spark-b",), put_newer_program),
    "no shared subnet": Case(("spark-b",), leave_subnet),
    "no such link": Case(("spark-b",), more=("--link", "10.99.0.1")),
    "this machine": Case(("spark-a",)),
    "named twice": Case(("spark-b", "spark-b")),
    "two names of one": Case(("spark-b", "10.77.0.2")),
    "in use": Case(("spark-b",), launch_rank),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_unusable_host_is_refused_and_nothing_starts(case, tmp_path, snapshot):
    (tmp_path / "data" / "dflash-tui" / "models").mkdir(parents=True)
    with make_two_hosts(tmp_path / "hosts", tmp_path / "data") as hosts:
        case.before(hosts)
        runs, programs = count_runs(hosts), list_programs(hosts)
        named = [word for peer in case.peers for word in ("--peer", peer)]
        split = ("--set", f"tensor-parallel-size={len(named) // 2 + 1}")
        refused = hosts.run("a", "dflash-tui", "up", "demo-cpu", *named, *split, *case.more, "--detach", "--json")
        told = json.loads(refused.stdout.splitlines()[-1])
        assert (refused.returncode, told["event"]) == (2, "error")
        assert "Traceback" not in refused.stderr
        folders = hosts.folder.glob("b/home/.local/state/dflash-tui/runs/*")
        said = f"{told['what']}\n→ {told['do']}"
        for folder in folders:
            said = said.replace(folder.name, "RUN")
        assert said == snapshot
        wait_until(lambda: list_programs(hosts) == programs)
        assert count_runs(hosts) == runs
        assert [path.name for path in (tmp_path / "data" / "dflash-tui").iterdir()] == ["models"]
