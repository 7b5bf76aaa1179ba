"""Without a home, in folders of any name, in a plain locale, at the limit of processes, and twenty at once."""

import os
import subprocess
import sys

import pytest

from dflash_tui.common import paths
from dflash_tui.common.errors import UsageError
from tests import ROOT
from tests.support import fake_engine
from tests.support.command_line import dflash
from tests.support.fake_runs import free_port
from tests.support.pty_terminal import ENTER, PANEL

EXEC = ("-c", "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])")
STARVED = "the limit on processes or threads is reached"
XDG = [f"XDG_{kind}_HOME" for kind in ("DATA", "STATE", "CACHE", "CONFIG")]


def test_without_a_home(tmp_path, monkeypatch):
    """The system's list of users has it; a relative one makes no folder here; without any it is said."""
    with monkeypatch.context() as patched:
        patched.delenv("HOME")
        assert dflash("ps").returncode == 0
    command = [sys.executable, "-m", "dflash_tui", "ps"]
    env = {name: value for name, value in os.environ.items() if name not in XDG}
    env |= {"HOME": "here", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=tmp_path)
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
    for name in (*XDG, "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user that no list has
    with pytest.raises(UsageError) as refused:
        paths.runs_folder()
    assert "export HOME=" in refused.value.hint


def test_folders_with_spaces_in_a_plain_locale(tmp_path, monkeypatch):
    """Launched, listed, logged, explained and stopped by the command line, in folders of any letters."""
    for name in XDG:
        monkeypatch.setenv(name, str(tmp_path / "mé ☃ 'q\" $x" / name))
    monkeypatch.setenv("LC_ALL", "C")
    fake_engine.make(port := free_port(18_400))
    up = dflash("up", "fake", "--detach", "--force", "a test")
    assert up.returncode == 0, up.stderr
    run = up.stdout.strip()
    assert str(port) in dflash("ps").stdout
    stopped = dflash("stop", run)
    assert (stopped.returncode, f"{run} stopped in" in stopped.stderr) == (0, True)
    assert "stopped" in dflash("ps", "--all").stdout


def test_path_with_invalid_utf8_is_refused(tmp_path):
    """A server that is launched from it could not be written down."""
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    done = dflash("up", "demo-cpu", "--json", XDG_STATE_HOME=folder, XDG_CONFIG_HOME=folder)
    assert (done.returncode, "is not valid UTF-8" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


def test_at_the_limit_of_processes(limited):
    """No thread can be started: a sentence, and what was launched before that is listed."""
    fake_engine.make(free_port(18_400))

    def starved(*words: str) -> subprocess.CompletedProcess[str]:
        command = [*limited(1), sys.executable, "-m", "dflash_tui", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)

    done = starved("up", "fake", "--detach", "--force", "a test")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert STARVED in done.stderr
    assert starved("runs").returncode == 0


def test_panel_without_threads_is_not_opened(limited, terminal):
    """It needs about a dozen: a sentence at the prompt, and the terminal is as it was."""
    panel = terminal(program=(*EXEC, *limited(2), sys.executable, *PANEL))
    seen = panel.reading_until(lambda: os.waitid(os.P_PID, panel.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None)
    seen += panel.read()
    assert STARVED.encode() in seen
    assert b"Traceback" not in seen
    assert ENTER not in seen
    assert panel.ended() == 1
