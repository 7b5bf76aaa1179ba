"""A server that is killed leaves its engine, and a forked one has the server's socket: who has the port is named."""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable

import psutil
import pytest
from msgspec.structs import replace

from dflash_tui.cli.main import main
from dflash_tui.common.errors import UsageError
from dflash_tui.launch import planner, session
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.planning.request import LaunchRequest
from dflash_tui.runs import lifecycle, server_process
from dflash_tui.runs.run import Run
from tests.support.fake_runs import free_port, made
from tests.support.process_search import read_command_line
from tests.support.waiting import wait_until

# A front end that listens on its port, and forks an engine as vLLM calls it.
_SERVER = """\
import os, socket, sys, time
held = socket.socket()
held.bind(("127.0.0.1", int(sys.argv[2])))
held.listen()
held.set_inheritable(sys.argv[3] != "spawns")
if os.fork() == 0:
    os.execv(sys.executable, ["VLLM::EngineCore", "-c", "import time; time.sleep(600)"])
time.sleep(600)
"""


@pytest.fixture
def left() -> Callable[[str], tuple[Run, int]]:
    """Return a function that launches such a server, kills it, and returns the run and the engine's pid."""

    def kill(words: str) -> tuple[Run, int]:
        port = free_port(18_340)
        plan = replace(made(port), argv=(sys.executable, "-c", _SERVER, "serve", str(port), words))
        run = lifecycle.launch_server(plan, engine="fake")
        wait_until(lambda: len(engines(run)) == 1)
        [engine] = engines(run)
        os.kill(run.pid, signal.SIGKILL)
        wait_until(lambda: not server_process.is_alive(run))
        return run, engine.pid

    return kill


def engines(run: Run) -> list[psutil.Process]:
    return [each for each in server_process.list_processes(run) if read_command_line(each)[:1] == ["VLLM::EngineCore"]]


def test_leftover_engine_holding_port_is_named(left, capsys):
    """Stopping it by what the message says frees the port."""
    run, engine = left("listens")
    try:
        owner = lifecycle.port_owner(run.plan.port)
        assert f"pid {engine}" in owner
        assert run.id in owner
        assert f"dflash-tui stop --orphans {engine}" in owner
        request = LaunchRequest(recipe="demo-cpu", port=run.plan.port)
        with pytest.raises(UsageError) as refused:
            session._admit(planner.plan_launch(request, GpuProbe()), print)
        assert f"pid {engine}" in refused.value.what
        assert main(["stop"]) == 2
        assert "dflash-tui stop --orphans" in capsys.readouterr().err
        assert main(["stop", "--orphans", "--json"]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        [row] = [row for row in rows if row["pid"] == engine]
        assert row["port"] == run.plan.port
        assert main(["stop", "--orphans", str(engine), "--yes"]) == 0
        assert lifecycle.find_free_port(run.plan.port) == run.plan.port
    finally:
        for process in server_process.list_processes(run):
            process.kill()


def test_other_program_on_port_is_no_engine(left):
    """A spawned engine has not got the socket; who listens now is somebody else."""
    run, engine = left("spawns")
    try:
        with socket.create_server(("127.0.0.1", run.plan.port)):
            assert f"pid {os.getpid()}" in lifecycle.port_owner(run.plan.port)
    finally:
        psutil.Process(engine).kill()
