"""A panel in a real terminal that is stopped, resized to nothing, closed or killed; the server never minds."""

import json
import os
import signal
import subprocess
import sys
import termios
import time

import psutil
import pytest

from dflash_tui.benchmark import client
from dflash_tui.benchmark.server import Server
from dflash_tui.events import Health, Sampled
from dflash_tui.runs import server_process
from dflash_tui.runs.run import Run
from tests.support.fake_runs import recorded, watching
from tests.support.pty_terminal import ENTER, LEAVE, NO_MOUSE, PANEL
from tests.support.waiting import until


def test_panel_handles_suspend_tiny_sizes_and_sigterm(terminal):
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


_DEAF = "import os, signal, sys; signal.signal(1, signal.SIG_IGN); os.execv(me := sys.executable, [me, *sys.argv[1:]])"


@pytest.mark.parametrize("program", [PANEL, ("-c", _DEAF, *PANEL)], ids=["as it is", "as nohup starts it"])
async def test_closed_terminal_ends_only_panel(launch, terminal, program):
    """The connection is lost: the panel is gone within seconds, the server serves, the next observer records."""
    run = launch()
    panel = terminal("attach", run.id, program=program)
    await until(lambda: run.samples.exists() and len(recorded(run, Sampled)) > 0)
    panel.until(ENTER)
    panel.hang_up()
    code = panel.ended()
    assert code == 128 + signal.SIGHUP
    await goes_on(run)


async def goes_on(run: Run) -> None:
    """The server lives, and who comes next knows all of it and records."""
    assert server_process.is_alive(run)
    before = len(recorded(run, Sampled))
    async with watching(run) as state:
        await client.send_first_request(Server(run.url, "x"))
        await until(lambda: state.health is Health.WARM and len(recorded(run, Sampled)) > before)


async def test_ending_headless_watcher_leaves_server_running(launch):
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
            _, told = watcher.communicate(timeout=240)
        assert (watcher.returncode, told) == (-number, "")
    await goes_on(run)


def test_panel_with_vanished_terminal_ends():
    """It controls no session, so that no SIGHUP comes, and every write fails: the panel sees that and is gone."""
    ours, its = os.openpty()
    termios.tcsetwinsize(its, (36, 120))
    command = [sys.executable, *PANEL, "replay", "sample", "--speed", "50"]
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, start_new_session=True) as panel:
        os.close(its)
        seen = b""
        while b"REPLAY" not in seen:
            seen = seen[-1000:] + os.read(ours, 65536)
        os.close(ours)
        try:
            assert panel.wait(20) == 128 + signal.SIGHUP
        finally:
            panel.kill()
