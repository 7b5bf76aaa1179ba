"""A forked engine that hangs before its first line, or cannot have the GPU: stopped, remembered, then spawned."""

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from dflash_tui.cli.main import main
from dflash_tui.engines import environments
from dflash_tui.launch import session
from dflash_tui.monitoring import sampler
from dflash_tui.planning import startup_optimizations
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.startup_optimizations import FORK
from dflash_tui.run_state import startup
from dflash_tui.runs import lifecycle, registry, server_process
from dflash_tui.runs.run import Run
from tests.support import command_line, fake_engine
from tests.support.fake_runs import free_port, made, watching
from tests.support.waiting import until

# The lines of a front end that has done its part, as vLLM 0.32 writes them.
_RESOLVED = "(APIServer pid=1) INFO 11-22 10:00:00 [vllm.py:700] Asynchronous scheduling is enabled."
_VERSION = "(APIServer pid=1) INFO 11-22 10:00:00 [api_server.py:1900] vLLM API server version 0.32.0"
_FIRST = "(EngineCore pid=2) INFO 11-22 10:00:01 [core.py:100] Initializing a V1 LLM engine (v0.32.0) with config: x"
_NO_GPU = (
    "(EngineCore pid=2) ERROR 11-22 10:00:02 [core.py:900] RuntimeError: Cannot re-initialize CUDA in forked "
    "subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method"
)
_SERVER = "import sys, time\nfor line in sys.argv[2:]:\n    print(line, flush=True)\n"
_HANGS, _DIES = f"{_SERVER}time.sleep(600)\n", f"{_SERVER}sys.exit(1)\n"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """A second of silence is a long one here."""
    monkeypatch.setattr(startup, "QUIET_SECONDS", 0.2)
    monkeypatch.setattr(startup, "STALL_SECONDS", 0.5)
    monkeypatch.setattr(session, "HUNG_SECONDS", 1.0)
    monkeypatch.setattr(sampler, "_ACTIVITY_INTERVAL", 0.2)


@pytest.fixture
def started() -> Iterator[list[Run]]:
    runs: list[Run] = []
    yield runs
    for run in runs:
        for process in server_process.list_processes(run):
            process.kill()


def plan_of(code: str, *lines: str, start: tuple[str, ...] = (FORK,)) -> Plan:
    port = free_port(18_300)
    return replace(made(port), argv=(sys.executable, "-c", code, "serve", *lines), start=start)


async def test_hanging_fork_start_is_ended_and_remembered(started):
    run = lifecycle.launch_server(plan_of(_HANGS, _VERSION, _RESOLVED), engine="fake")
    started.append(run)
    async with watching(run) as state:
        why = await session.end_failed_start(run, state)
    assert "hung" in why
    assert not server_process.list_processes(run)
    assert environments.read_failed_measures(Path(run.plan.unpatched_folder)) == {FORK: why}


async def test_other_silences_are_left_alone(started):
    lines = (_VERSION, _RESOLVED, _FIRST)
    run = lifecycle.launch_server(plan_of(_HANGS, *lines, start=(FORK,)), engine="fake")
    started.append(run)
    async with watching(run) as state:
        await until(lambda: len(state.lines) == len(lines))
        later = state.lines[-1].at + 600
        await until(lambda: len(state.startup.activities) > 3)
        assert session.explain_failed_fork(run, state, max(later, time.time())) == ""
    assert server_process.is_alive(run)


async def test_gpu_failure_after_fork_counts_against_fork(started):
    """It is said after the first line, and the server ends over it."""
    run = lifecycle.launch_server(plan_of(_DIES, _VERSION, _RESOLVED, _FIRST, _NO_GPU), engine="fake")
    started.append(run)
    async with watching(run) as state:
        why = await session.end_failed_start(run, state)
    assert why
    assert FORK in environments.read_failed_measures(Path(run.plan.unpatched_folder))


async def test_other_start_failure_keeps_fork(started, monkeypatch):
    monkeypatch.setattr(session, "HUNG_SECONDS", 600.0)  # a busy machine may notice late that the server has exited
    run = lifecycle.launch_server(plan_of(_DIES, _VERSION, _RESOLVED, "ValueError: no"), engine="fake")
    started.append(run)
    async with watching(run) as state:
        assert await session.end_failed_start(run, state) == ""
    assert environments.read_failed_measures(Path(run.plan.unpatched_folder)) == {}


def test_the_next_launch_of_this_engine_spawns():
    """And of no other; asked for by name it is tried again."""
    words = ("gemma-4-26b-a4b", "--gpu", "h200")
    before = command_line.planned(*words).plan
    environments.remember_failed_measure(Path(before.unpatched_folder), FORK, "it hung")
    after = command_line.planned(*words).plan
    assert (FORK in before.start, FORK in after.start) == (True, False)
    assert "it hung" in after.start_left_out[FORK]
    assert FORK in command_line.planned(*words, "--set", "start.fork=true").plan.start
    assert FORK in command_line.planned(*words, "--vllm", "0.30.0").plan.start


@pytest.mark.usefixtures("nothing_left")
def test_up_launches_again_with_spawn(monkeypatch, capsys):
    """And says so; the engine is remembered."""
    monkeypatch.setattr(startup_optimizations, "_explain_spawn", lambda *_: "")  # as on a GPU
    port = free_port(18_320)
    folder = fake_engine.make(port, launches={0: ["hangs"]})
    try:
        assert main(["up", fake_engine.RECIPE, "--wait"]) == 0
        first, second = registry.list_runs()
        assert (FORK in first.plan.start, FORK in second.plan.start) == (True, False)
        assert second.restarted_from == first.id
        assert second.plan.relaunch_request.settings == {"start.fork": "false"}
        assert FORK in environments.read_failed_measures(folder)
        [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith(f"{first.id}: ")]
        assert "spawn" in line
        assert not server_process.is_alive(first)
    finally:
        for run in registry.list_runs():
            asyncio.run(lifecycle.stop_server(run, grace=0.1))
