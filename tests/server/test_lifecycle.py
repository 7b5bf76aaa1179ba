"""The end of a server: its memory is waited for, what outlives it is ended after asking, and a reboot is told."""

import contextlib
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from dflash_tui.cli.main import main
from dflash_tui.diagnosis import postmortem
from dflash_tui.machine import processes
from dflash_tui.monitoring import observer
from dflash_tui.runs import lifecycle, server_process
from tests import ROOT
from tests.server.faults.test_file_faults import ended
from tests.support import fake_nvml
from tests.support.values import present
from tests.support.waiting import PATIENCE, until

STOP = """
import asyncio, json, os, sys
from msgspec.structs import replace
from dflash_tui.machine import nvml
from dflash_tui.launch import shutdown
from dflash_tui.runs import lifecycle, server_process
from tests.support.fake_runs import made
shutdown.RELEASE_TIMEOUT, shutdown._INTERVAL = float(sys.argv[1]), 0.05
run = lifecycle.launch_server(replace(made(18_600, "deaf"), on_cpu=False), engine="fake")
os.environ["STAND_IN_PID"] = str(run.pid)
told = []
def tell(line):
    told.append(line)
    if sys.argv[2]:
        os.environ["STAND_IN_NVML"] = sys.argv[2]  # the driver has given it back, as its next session says
        nvml._begin_session.cache_clear()
_, stayed = asyncio.run(shutdown.stop_and_release_memory(run, tell))
print(json.dumps([told, stayed, server_process.list_processes(run)]))
"""


def test_stop_waits_until_gpu_memory_is_free(stand_in_nvml):
    """The processes are gone before the driver has their memory: how much is told, and what stays after a while."""
    environ = fake_nvml.environment(stand_in_nvml, "h100", PYTHONPATH=str(ROOT))
    done = fake_nvml.run(environ, "-c", STOP, "0.2", "")
    assert done.returncode == 0, done.stderr
    told, said, left = json.loads(done.stdout)
    assert (told, said.partition(" after")[0], left) == (
        ["releasing 39.0 GiB"],
        "39.0 GiB of 39.0 GiB of GPU memory not released",
        [],
    )


def test_stop_ignores_silent_or_missing_driver(stand_in_nvml):
    """A stop ends in any case."""
    for machine in ("no-gpu", "mismatch"):
        done = fake_nvml.run(fake_nvml.environment(stand_in_nvml, machine, PYTHONPATH=str(ROOT)), "-c", STOP, "20", "")
        assert done.stdout.rstrip() == '[[], "", []]', done.stderr


def dflash(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*words])
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def asked(pid: int, answer: bytes) -> bytes:
    """Run `stop --orphans PID` in a terminal, answer its question, and return what it said."""
    child, master = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-m", "dflash_tui", "stop", "--orphans", str(pid)])
    seen, deadline = b"", time.monotonic() + PATIENCE
    while b"[y/N]" not in seen:
        assert time.monotonic() < deadline
        if select.select([master], [], [], 0.1)[0]:
            seen += os.read(master, 4096)
    os.write(master, answer)
    os.waitpid(child, 0)
    os.close(master)
    return seen


def test_confirmed_orphan_ends_with_its_workers(tree):
    """Listed with its memory; nobody to ask, no: it lives; yes: it and its worker end, and the other orphan lives."""
    leader, core, worker = tree("VLLM::EngineCore", "VLLM::Worker_TP0")
    other, spared = tree("VLLM::EngineCore")
    for each in (leader, other):
        os.kill(each, signal.SIGKILL)
        os.waitpid(each, 0)
    listed = dflash("stop", "--orphans").stdout
    assert f"{core}" in listed
    assert "VLLM::EngineCore" in listed
    assert "0.1 GiB" in listed
    refused = dflash("stop", "--orphans", str(core))
    assert (refused.returncode, f"dflash-tui stop --orphans {core} --yes" in refused.stderr) == (2, True)
    assert b"VLLM::EngineCore" in asked(core, b"n\n")
    assert all(processes.read_process_identity(pid) for pid in (core, worker, spared))
    asked(core, b"y\n")
    assert [bool(processes.read_process_identity(pid)) for pid in (core, worker, spared)] == [False, False, True]


def test_a_run_of_another_boot_is_lost():
    """Neither alive nor failed: `ps` says lost, `why` says that the machine was rebooted; nobody is signalled."""
    run = ended()  # its process was born in a boot that was not this one
    assert not server_process.is_alive(run)
    assert server_process.list_processes(run) == []
    state = observer.replay_run(run)
    assert state.status == "lost"
    found = present(postmortem.build_postmortem(run, state))
    assert (found.diagnosis.kind, found.leftovers) == ("rebooted", "")
    assert "lost" in dflash("ps", "--all").stdout
    assert "the machine was rebooted" in dflash("why").stderr + dflash("why").stdout


async def test_killed_server_leaves_no_shared_memory(launch):
    """As that of a vLLM over several GPUs or hosts: what removes it ends last."""
    name = f"dflash-tui-test-{os.getpid()}"
    run = launch("stubborn", f"shares={name}")
    memory = Path("/dev/shm") / name
    await until(lambda: name in run.log.read_text())
    assert memory.exists()
    await lifecycle.stop_server(run, grace=0.1)
    assert not memory.exists()
    assert server_process.list_processes(run) == []


async def test_lasting_resource_tracker_is_killed(launch, monkeypatch):
    run = launch("stubborn")
    await until(lambda: len(server_process.list_processes(run)) == 2)
    monkeypatch.setattr(lifecycle, "_KILL_ROUNDS", 20)
    monkeypatch.setattr(processes, "is_resource_tracker", lambda _process: True)
    await lifecycle.stop_server(run, grace=0.1)
    assert server_process.list_processes(run) == []
