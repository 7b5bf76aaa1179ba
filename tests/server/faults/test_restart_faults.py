"""Servers that die under `up`, the process that watches them: what it launches again, and what it does not."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dflash_tui.events import Sampled
from dflash_tui.monitoring import observer
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import Run
from tests.support import fake_engine, fake_runs, systemd_parser
from tests.support.command_line import dflash
from tests.support.fake_runs import free_port
from tests.support.waiting import until, wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")
DFLASH = (sys.executable, "-m", "dflash_tui")


class Up:
    """`up` on the stand-in for an engine, with JSON on stdout."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            command = [*DFLASH, "up", fake_engine.RECIPE, "--json", *words]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of a kind so far."""
        lines = self._out.read_text().splitlines(keepends=True)
        told = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in told if event["event"] == kind]

    def until(self, true: Callable[[], object]) -> None:
        wait_until(lambda: true() or self.process.poll() is not None)
        assert true(), self.said()

    def serving(self, number: int) -> Run:
        """Return the run of the launch of this number, once it has answered."""
        self.until(lambda: len([event for event in self.events("health") if event["health"] == "warm"]) > number)
        return registry.list_runs()[number]

    def ended(self) -> int:
        return self.process.wait(120)

    def said(self) -> str:
        return self._err.read_text()

    def why_not_again(self) -> str:
        return self.said().partition("not launched again: ")[2].splitlines()[0]


@pytest.fixture
def up(tmp_path) -> Iterator[Callable[..., Up]]:
    """Return a function that makes an engine with these launches and starts `up` on it."""
    started: list[Up] = []

    def start(*words: str, **launches: list[str]) -> Up:
        fake_engine.make(free_port(18_700), launches={int(n[1:]): does for n, does in launches.items()})
        started.append(Up(tmp_path, *words))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


def _is_warm(run: Run) -> bool:
    return observer.replay_run(run).warm_at is not None


def kill(run: Run) -> None:
    psutil.Process(run.pid).kill()


def test_killed_server_restarts_up_to_limit(up, snapshot):
    """After a wait that doubles, each as a run of its own that names the one before; then it gives up and says why."""
    watching = up("--set", "restart.times=2", "--set", "restart.wait_s=1")
    for number in range(3):
        kill(watching.serving(number))
    assert watching.ended() == 6
    first, second, third = registry.list_runs()
    assert [run.restarted_from for run in (first, second, third)] == ["", first.id, second.id]
    assert [event["wait"] for event in watching.events("restarting")] == [1, 2]
    assert second.started_at - first.started_at >= 1
    assert watching.why_not_again() == snapshot
    said = watching.said()
    last = said[said.index("dflash-tui: error:") :]
    assert re.search(rf"{first.id}: .* \(exit code -9, SIGKILL\)", last)
    assert {run.plan.port for run in (first, second, third)} == {first.plan.port}
    listed = subprocess.run([*DFLASH, "ps", "--all"], capture_output=True, text=True, check=True).stdout
    assert f"restarted after {second.id} failed" in listed
    reported = subprocess.run([*DFLASH, "report", third.id], capture_output=True, text=True, check=True).stdout
    assert f"in place of {second.id}" in reported


def test_server_with_wrong_flag_is_not_restarted(up, snapshot):
    """A cause that is known and would be there again: one launch, and why there is no other."""
    watching = up("--set", "restart.times=2", _0=["wrong"])
    assert watching.ended() == 6
    assert len(registry.list_runs()) == 1
    assert watching.why_not_again() == snapshot


def test_a_stop_is_the_end(up):
    """A server that somebody stopped is not launched again."""
    watching = up("--set", "restart.times=2")
    subprocess.run([*DFLASH, "stop", watching.serving(0).id], check=True)
    assert watching.ended() == 0
    assert len(registry.list_runs()) == 1


def test_stop_during_restart_wait_cancels_restart(up, snapshot):
    """There is no server then; who asks for its end means the next one."""
    watching = up("--set", "restart.times=2", "--set", "restart.wait_s=600")
    run = watching.serving(0)
    kill(run)
    watching.until(lambda: watching.events("restarting"))
    subprocess.run([*DFLASH, "stop", run.id], check=True)
    assert watching.ended() == 6
    assert watching.why_not_again() == snapshot
    assert len(registry.list_runs()) == 1


def test_foreground_server_ends_with_its_command(up):
    """A lost connection stops the server as `stop` does, for good."""
    watching = up("--foreground", "--set", "restart.times=2")
    run = watching.serving(0)
    watching.process.send_signal(signal.SIGHUP)
    assert watching.ended() == 128 + signal.SIGHUP
    assert server_process.list_processes(run) == []
    assert observer.replay_run(run).status == "stopped"
    assert len(registry.list_runs()) == 1
    assert "the server keeps running" not in watching.said()


@pytest.mark.long
def test_killed_foreground_command_leaves_managed_run(up):
    """Nobody can clean up then: the server serves on, is listed, has its port, is recorded by the next, and stops."""
    watching = up("--foreground", "--set", "restart.times=2")
    run = watching.serving(0)
    watching.process.kill()
    assert watching.ended() == -signal.SIGKILL
    assert observer.replay_run(run).status == "warm"
    listed = map(json.loads, dflash("ps", "--json").stdout.splitlines())
    assert [each["run"] for each in listed if "run" in each] == [run.id]
    assert f"{run.plan.port} is held by {run.id} (pid {run.pid})" in dflash("doctor", fake_engine.RECIPE).stdout
    refused = dflash("up", fake_engine.RECIPE, "--foreground", "--port", str(run.plan.port))
    assert refused.returncode == 2
    assert f"port {run.plan.port} is held by {run.id}" in refused.stderr
    asyncio.run(_recorded_by_the_next(run))
    stopped = dflash("stop")
    assert (stopped.returncode, server_process.list_processes(run), observer.replay_run(run).status) == (
        0,
        [],
        "stopped",
    )
    assert "no engine process" in dflash("stop", "--orphans").stderr


async def _recorded_by_the_next(run: Run) -> None:
    before = len(fake_runs.recorded(run, Sampled))
    async with fake_runs.watching(run):
        await until(lambda: len(fake_runs.recorded(run, Sampled)) > before)


def test_unit_server_runs_until_sigterm(tmp_path):
    """With the unit's own variables, as systemd starts and stops it: the server is stopped, and that was no failure."""
    fake_engine.make(free_port(18_700))
    told = subprocess.run([*DFLASH, "service", fake_engine.RECIPE], capture_output=True, text=True, check=True).stdout
    unit = systemd_parser.fields(told)
    environ = {"HOME": str(tmp_path)} | dict(pair.split("=", 1) for pair in unit["Environment"])
    command = systemd_parser.unquoted(unit["ExecStart"][0].removeprefix(":"))
    with subprocess.Popen(command, env=environ, cwd="/", stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        wait_until(lambda: process.poll() is not None or any(map(_is_warm, registry.list_runs())))
        assert process.poll() is None
        [run] = registry.list_runs()
        process.terminate()
        _, said = process.communicate(timeout=240)
    assert [str(process.returncode)] == unit["SuccessExitStatus"], said.decode()
    assert server_process.list_processes(run) == []
    assert observer.replay_run(run).status == "stopped"
