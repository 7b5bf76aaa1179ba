"""Two launches at the same time, by real commands: neither takes what the other is about to use."""

import subprocess
import sys
from functools import partial
from subprocess import DEVNULL, PIPE

import pytest

from dflash_tui.machine import processes
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import Run
from tests.support import fake_engine
from tests.support.fake_runs import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")
PAIRS = 2
UP = (sys.executable, "-m", "dflash_tui", "up", fake_engine.RECIPE, "--detach")


@pytest.fixture
def port() -> int:
    """The port of a recipe whose engine is there."""
    wanted = free_port(18_900)
    fake_engine.make(wanted)
    return wanted


def up_twice(*words: str) -> list[tuple[int, str, str]]:
    """Run two `up` at once; return of each its exit code, its stdout and its stderr."""
    both = [subprocess.Popen([*UP, *words], stdout=PIPE, stderr=PIPE, stdin=DEVNULL, text=True) for _ in range(2)]
    said = [each.communicate(timeout=240) for each in both]
    return [(each.returncode, out.strip(), err) for each, (out, err) in zip(both, said, strict=True)]


def all_serve(*runs: Run) -> bool:
    return all(processes.is_listening_on(server_process.list_processes(run), run.plan.port) for run in runs)


def stop_all() -> None:
    for run in registry.list_runs():
        if server_process.is_alive(run):
            subprocess.run([sys.executable, "-m", "dflash_tui", "stop", run.id], check=True, capture_output=True)


@pytest.mark.long
def test_two_launches_at_once_take_two_ports(port):
    """Each pair comes up, on the recipe's port and on another one; the second says who has the first."""
    for _ in range(PAIRS):
        results = up_twice()
        assert [code for code, _, _ in results] == [0, 0], results
        runs = [registry.find_run(name) for _, name, _ in results]
        assert min(run.plan.port for run in runs) == port
        wait_until(partial(all_serve, *runs))
        moved = [err for (_, _, err), run in zip(results, runs, strict=True) if run.plan.port != port]
        assert len(moved) == 1
        assert f"port {port} is held by " in moved[0]
        stop_all()


def test_second_launch_on_same_port_is_refused(port):
    """One serves; the other ends with exit code 2, names who has the port, and starts nothing."""
    for _ in range(PAIRS):
        results = up_twice("--port", str(port))
        assert sorted(code for code, _, _ in results) == [0, 2], results
        ((_, name, _),) = [each for each in results if not each[0]]
        ((_, _, refusal),) = [each for each in results if each[0]]
        run = registry.find_run(name)
        wait_until(partial(all_serve, run))
        assert f"port {port} is held by " in refusal
        assert run.id in refusal or "launch of fake (pid " in refusal
        stop_all()
