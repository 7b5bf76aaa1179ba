"""`--host` over a real ssh between two hosts: a command, the panel in a terminal, a line that is cut, no program."""

import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.support import escapes
from tests.support.pty_terminal import ANY_PROGRAM, ENTER, LEAVE, NO_MOUSE, Terminal
from tests.support.two_hosts import TwoHosts, make_two_hosts
from tests.support.waiting import PATIENCE, wait_until

Opener = Callable[..., Terminal]
THERE = ("dflash-tui", "--host", "spark-b")


@pytest.fixture
def hosts(tmp_path) -> Iterator[TwoHosts]:
    """Return two hosts with this program and no engine."""
    (tmp_path / "data" / "dflash-tui" / "models").mkdir(parents=True)
    with make_two_hosts(tmp_path / "hosts", tmp_path / "data") as pair:
        yield pair


@pytest.fixture
def open_there(hosts, terminal) -> Opener:
    """Return a function that runs this program of spark-b in a terminal of spark-a."""

    def start(*words: str) -> Terminal:
        command = hosts.build_command("a", "env", "TERM=xterm-256color", *THERE, *words)
        opened: Terminal = terminal(*command, program=ANY_PROGRAM)
        return opened

    return start


def read_until_shown(panel: Terminal, *words: str) -> None:
    """Read what a panel writes until its screen, which is that of a terminal emulator, shows all words."""
    written, deadline = panel.until(ENTER).partition(ENTER)[2], time.monotonic() + PATIENCE
    while missing := {*words} - {word for word in words if word in show_screen(written)}:
        assert time.monotonic() < deadline, missing
        written += panel.read()


def show_screen(written: bytes) -> str:
    return "\n".join(escapes.shown(written.decode(errors="replace"), lines=36)[0])


def find_programs(hosts: TwoHosts, word: str) -> list[psutil.Process]:
    """Return the processes of spark-b whose command has a word in it."""
    return [process for process, command in hosts.list_processes("b") if any(word in each for each in command)]


@pytest.mark.long
def test_the_panel_and_commands_of_another_host(hosts, open_there):
    """What is there is listed, launched and left as if one sat there; its words name the way from here."""
    listed = hosts.run("a", *THERE, "runs", "--json")
    assert (listed.returncode, listed.stdout, listed.stderr) == (0, "", "")
    assert hosts.run("a", *THERE, "stop").returncode == 2
    assert "dflash-tui --host spark-b up " in hosts.run("a", *THERE, "ps").stderr

    panel = open_there()
    read_until_shown(panel, "on spark-b", "demo-cpu")
    panel.type("q")
    panel.until(LEAVE)
    assert panel.ended() == 0

    panel = open_there()
    panel.until(b"demo-cpu")
    [session] = find_programs(hosts, "sshd: root@pts")
    session.kill()
    seen = panel.until(b"dflash-tui --host spark-b")
    assert (panel.ended(), LEAVE in seen, NO_MOUSE in seen) == (1, True, True)
    wait_until(lambda: not find_programs(hosts, "dflash_tui"))


@pytest.mark.long
def test_a_cable_that_is_pulled_is_noticed(hosts, open_there):
    panel = open_there()
    panel.until(b"demo-cpu")
    assert hosts.change("cut").returncode == 0
    seen = panel.until(b"dflash-tui --host spark-b")
    assert (panel.ended(), LEAVE in seen, b"not responding" in seen) == (1, True, True)
    assert hosts.change("heal").returncode == 0
    wait_until(lambda: not find_programs(hosts, "dflash_tui"))
    assert hosts.run("a", *THERE, "ps").returncode == 0
