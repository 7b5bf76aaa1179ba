"""Engine processes without a server, told from those of living servers by real process trees."""

import os
import signal
import subprocess

import psutil
import pytest

from dflash_tui.cli.commands import servers as orphans_command
from dflash_tui.cli.main import main
from dflash_tui.machine.processes import Orphan, find_orphans
from tests.support.waiting import wait_until

MIB = 1 << 20


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def lost() -> dict[int, Orphan]:
    return {orphan.pid: orphan for orphan in find_orphans()}


@pytest.mark.parametrize("title", ["VLLM::EngineCore_DP1", "VLLM::Worker_TP0"])
def test_engine_without_its_server_is_orphan(tree, title):
    """As long as its parent lives it is none; once that is killed it is one, with the memory that it holds."""
    server, engine = tree(title)
    assert engine not in lost()
    end(server)
    found = lost()[engine]
    assert found.name == title
    assert 64 * MIB < found.resident < 128 * MIB


def test_orphan_includes_its_workers(tree):
    """A core with a worker is one orphan with the memory of both; when the core goes, too, the worker is one."""
    server, core, worker = tree("VLLM::EngineCore", "VLLM::Worker_TP0")
    end(server)
    assert worker not in lost()
    assert 128 * MIB < lost()[core].resident < 256 * MIB
    os.kill(core, signal.SIGKILL)
    wait_until(lambda: worker in lost())
    assert core not in lost()


def test_detached_server_or_program_is_no_orphan(tree):
    """A server does, and so may a program that has nothing to do with vLLM."""
    for title in ("VLLM::APIServer", "sleeper"):
        launcher, launched = tree(title)
        end(launcher)
        assert psutil.Process(launched).cmdline()[0] == title
        assert launched not in lost()


def test_orphan_that_already_ended_is_no_error(monkeypatch, capsys):
    """Between the moment in which it was found and that in which it would be stopped."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    monkeypatch.setattr(orphans_command, "find_orphans", lambda: [Orphan(gone.pid, "VLLM::EngineCore", MIB, "boot:1")])
    assert main(["stop", "--orphans", str(gone.pid), "--yes"]) == 0
    assert str(gone.pid) in capsys.readouterr().err
