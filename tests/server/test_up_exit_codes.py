"""What the exit code of `up` says of the server: that it was launched, that it is ready, or that it failed."""

import subprocess
import sys
from subprocess import DEVNULL, PIPE

import pytest

from dflash_tui.cli.main import main
from dflash_tui.launch import preparation
from dflash_tui.monitoring import observer
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import Run
from tests.support import fake_engine
from tests.support.fake_runs import free_port
from tests.support.json_lines import check_lines
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")
DFLASH = (sys.executable, "-m", "dflash_tui")
UP = (*DFLASH, "up", fake_engine.RECIPE)


@pytest.fixture
def port() -> int:
    return free_port(19_050)


def up(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*UP, *words], capture_output=True, text=True, check=False, timeout=240, stdin=DEVNULL)


@pytest.mark.parametrize("ends", [True, False])
def test_detached_launch_reports_early_server_death(port, ends, monkeypatch, capsys):
    """One that dies before the command returns is a failure with its cause, not a success."""
    fake_engine.make(port, launches={0: ["broken"]} if ends else None)
    launch = preparation.prepare_and_launch

    async def launch_slowly(*args, **kwargs) -> Run:
        run = await launch(*args, **kwargs)
        if ends:
            wait_until(lambda: not server_process.is_alive(run))
        return run

    monkeypatch.setattr(preparation, "prepare_and_launch", launch_slowly)
    assert main(["up", fake_engine.RECIPE, "--detach"]) == (6 if ends else 0)
    assert ("nothing works today" in capsys.readouterr().err) is ends


def test_wait_returns_when_ready(port):
    """The server has answered a request by then, with --bench been measured, and goes on."""
    fake_engine.make(port)
    done = up("--detach", "--bench")
    run = registry.find_run()
    assert (done.returncode, observer.replay_run(run).status) == (0, "warm"), done.stderr
    assert server_process.is_alive(run)
    assert f"dflash-tui stop {run.id}" in done.stderr
    assert "decode tok/s" in done.stdout
    before, phase, _ = done.stderr.partition("\n  import ")
    assert phase
    assert len(before.splitlines()) <= 12


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [("refuse", ("--wait", "--detach", "--json")), ("broken", ("--bench", "--detach"))],
)
def test_waiting_launch_learns_of_failure(port, behaviour, words):
    """Whether it never comes up, or comes up and cannot generate."""
    fake_engine.make(port, launches={0: [behaviour]})
    done = up(*words)
    assert done.returncode == 6, done.stderr
    if "--json" in words:
        check_lines("up", done.stdout.splitlines())
    assert ("nothing works today" if behaviour == "broken" else "HTTP 400") in done.stderr


def test_server_stopped_before_ready_fails_wait(port):
    """Who stops it from elsewhere makes no success of it."""
    fake_engine.make(port, launches={0: ["deaf"]})
    with subprocess.Popen([*UP, "--bench", "--detach"], stdout=PIPE, stderr=PIPE, stdin=DEVNULL, text=True) as waiting:
        wait_until(registry.list_runs)
        subprocess.run([*DFLASH, "stop"], check=True, capture_output=True)
        _, err = waiting.communicate(timeout=240)
    assert waiting.returncode == 6, err
    assert f"{registry.find_run().id} was stopped" in err


def test_foreground_cannot_be_combined_with_wait():
    done = subprocess.run(
        [*DFLASH, "up", "demo-cpu", "--foreground", "--wait"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "--foreground cannot be combined with --wait" in done.stderr) == (2, True)
