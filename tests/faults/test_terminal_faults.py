"""A panel in a real terminal that is stopped, resized to nothing, closed or killed; the server never minds."""

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from dflash_tui.core import server, workload
from dflash_tui.core.events import Health, Sampled
from tests.launched import recorded, until, watching

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
NO_MOUSE = b"\x1b[?1003l"


class Terminal:
    """The panel as the leader of a session on a pseudo-terminal of its own, as behind SSH."""

    def __init__(self, *words: str) -> None:
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execv(sys.executable, [sys.executable, "-m", "dflash_tui", *words])
        self.resize(36, 120)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, text: bytes, limit: float = 30.0) -> bytes:
        """Return what is written until `text` is."""
        seen, deadline = b"", time.monotonic() + limit
        while text not in seen:
            assert time.monotonic() < deadline, seen[-300:]
            if select.select([self.master], [], [], 0.1)[0]:
                seen += os.read(self.master, 1 << 16)
        return seen

    def ended(self, limit: float = 10.0) -> int:
        """Return the exit code."""
        deadline = time.monotonic() + limit
        while not (found := os.waitpid(self.pid, os.WNOHANG))[0]:
            assert time.monotonic() < deadline, "it did not end"
            with contextlib.suppress(OSError):
                if select.select([self.master], [], [], 0.05)[0]:
                    os.read(self.master, 1 << 16)
        return os.waitstatus_to_exitcode(found[1])


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Return a function that opens the panel; whatever is left of it is ended."""
    opened: list[Terminal] = []

    def start(*words: str) -> Terminal:
        opened.append(Terminal(*words))
        return opened[-1]

    yield start
    for each in opened:
        with contextlib.suppress(OSError):
            os.kill(each.pid, signal.SIGKILL)
            os.waitpid(each.pid, 0)
        with contextlib.suppress(OSError):
            os.close(each.master)


def test_stopped_resized_to_nothing_and_told_to_end(terminal):
    """Ctrl-Z gives the terminal back and fg takes it again; 1x1 is a size; SIGTERM leaves no mouse reports behind."""
    panel = terminal()
    panel.until(b"demo-cpu")
    os.kill(panel.pid, signal.SIGTSTP)
    panel.until(LEAVE)
    os.waitpid(panel.pid, os.WUNTRACED)
    os.kill(panel.pid, signal.SIGCONT)
    panel.until(ENTER)
    for rows, columns in ((1, 1), (2, 5), (1, 200), (200, 1)):
        panel.resize(rows, columns)
        time.sleep(0.3)
        assert psutil.pid_exists(panel.pid)
    panel.resize(36, 120)
    panel.until(b"demo-cpu")
    os.kill(panel.pid, signal.SIGTERM)
    seen = panel.until(LEAVE)
    assert panel.ended() == 128 + signal.SIGTERM
    assert NO_MOUSE in seen
    assert b"Traceback" not in seen


async def test_a_closed_terminal_ends_the_panel_and_nothing_else(launch, terminal):
    """The connection is lost: the panel is gone within seconds, the server serves, the next observer records."""
    run = launch()
    panel = terminal("attach", run.id)
    await until(lambda: run.samples.exists() and len(recorded(run, Sampled)) > 0)
    panel.until(ENTER)
    os.close(panel.master)
    code = panel.ended()
    assert code == 128 + signal.SIGHUP
    await goes_on(run)


async def test_a_killed_panel_takes_nothing_with_it(launch, terminal):
    """Kill -9 of the panel that records: another observer takes its place when its lease has run out."""
    run = launch()
    panel = terminal("attach", run.id)
    await until(lambda: run.samples.exists() and len(recorded(run, Sampled)) > 0)
    os.kill(panel.pid, signal.SIGKILL)
    await goes_on(run)


async def goes_on(run: server.Run) -> None:
    """The server lives, and who comes next knows all of it and records."""
    assert server.alive(run)
    before = len(recorded(run, Sampled))
    async with watching(run) as state:
        await workload.first(run.url, "x")
        await until(lambda: state.health is Health.WARM and len(recorded(run, Sampled)) > before, 20)


async def test_a_headless_watcher_that_ends_takes_nothing_with_it(launch):
    """Kill -9, SIGTERM and a lost connection of `attach --json`: no traceback, and the next one records."""
    run = launch()
    command = [sys.executable, "-m", "dflash_tui", "attach", run.id, "--json"]
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP):
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as watcher:
            assert watcher.stdout is not None
            while json.loads(watcher.stdout.readline()).get("health") != "warm":
                pass
            watcher.send_signal(number)
            _, told = watcher.communicate(timeout=20)
        assert (watcher.returncode, told) == (-number, "")
    await goes_on(run)
