"""What was appended to a file is read, whatever became of the file since."""

import os
import time
from pathlib import Path

import pytest

from dflash_tui.monitoring import observer
from dflash_tui.monitoring.observer import TailReader
from tests.tui.conftest import a_run


@pytest.fixture
def tail(tmp_path):
    """A log that was read to its end, and its reader, which looks for the log under the newest name."""
    log = tmp_path / "server.log"
    log.write_bytes(b"first\n")
    reader = TailReader(lambda: max(tmp_path.iterdir(), key=lambda path: path.name))
    assert reader.read() == b"first\n"
    return log, reader


def test_replaced_log_of_same_size_is_read(tail):
    log, reader = tail
    other = log.with_name("other")
    other.write_bytes(b"other\n")
    other.replace(log)
    assert reader.read() == b"\nother\n"


def test_an_empty_log_is_looked_for_again(tmp_path):
    """It may have an older one beside it, which tells of the server."""
    empty, older = tmp_path / "server.log", tmp_path / "server.log.1"
    empty.touch()
    reader = TailReader(lambda: older if older.exists() else empty)
    assert reader.read() == b""
    older.write_bytes(b"first\n")
    assert reader.read() == b"first\n"


LINES = {
    "global": "Out of memory: Killed process 14182 (VLLM::EngineCor) total-vm:31457280kB, anon-rss:23068672kB",
    "cgroup": "Memory cgroup out of memory: Killed process 4182 (python) total-vm:812044kB, anon-rss:518420kB",
    "segfault": "VLLM::EngineCor[14182]: segfault at 10 ip 00007f2c sp 00007ffd error 4 in _C.abi3.so[7f2c+1000]",
    "trap": "traps: vllm[77] general protection fault ip:7f sp:7f error:0 in libtorch_cpu.so[7f+1]",
    "xid": "NVRM: Xid (PCI:0000:01:00): 31, pid=14182, name=VLLM::EngineCor, Ch 00000008, intr 10000000.",
    "bus": "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "other": "EXT4-fs (vda): mounted filesystem",
}


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        ({14182}, {"global", "segfault", "xid", "bus"}),
        ({4182}, {"global", "cgroup", "segfault", "xid", "bus"}),
        ({77}, {"global", "segfault", "trap", "xid", "bus"}),
        (set(), {"global", "segfault", "xid", "bus"}),
    ],
)
def test_kernel_lines_about_our_processes_are_found(ours, expected):
    """By pid, or by vLLM's own names where the kernel counts differently; another's death is not ours."""
    assert set(observer.filter_kernel_lines(LINES.values(), ours)) == {LINES[name] for name in expected}


def test_pids_are_read_from_the_log(folders):
    """VLLM says the pid of each of its processes before its lines."""
    run = a_run(pid=7)
    run.folder.mkdir(parents=True)
    run.log.write_text("(APIServer pid=7) INFO x\n(EngineCore pid=14182) ERROR y\n(Worker_TP0 pid=9) z pid=3\n")
    assert observer.parse_server_pids(run) == {7, 14182, 9}


def test_oom_kill_count_excludes_earlier_kills(folders, monkeypatch):
    """What was killed before the server began is not counted."""
    monkeypatch.setattr(observer, "count_oom_kills", lambda: 5)
    assert observer.read_autopsy(a_run(pid=7), 3).kills == 2


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="the kernel's log is for root here")
def test_kernel_log_lines_have_plausible_times():
    """Every record comes with a time between the boot and now.

    They come in the order of their numbers; two that were written at once on two processors may be timed the other
    way round.
    """
    lines = list(observer.read_kernel_log(0.0))
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    assert lines
    assert all(booted - 5 <= at <= time.time() + 5 for at, _ in lines)


@pytest.fixture
def journal(tmp_path: Path, monkeypatch) -> Path:
    """A journalctl that prints a file, and a kernel log that may not be read."""
    program, said = tmp_path / "journalctl", tmp_path / "said"
    program.write_text(f"#!/bin/sh\ncat {said}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: _refuse() if path == "/dev/kmsg" else real(path, *rest))
    return said


def _refuse() -> int:
    raise PermissionError(13, "Operation not permitted")


def test_journal_replaces_unreadable_kernel_log(journal, folders):
    """Members of adm may read it; lines from before the launch are left out."""
    run = a_run(pid=4182)
    early, late = run.started_at - 60, run.started_at + 60
    journal.write_text(f"{early:.6f} host kernel: {LINES['global']}\n{late:.6f} host kernel: {LINES['cgroup']}\nx\n")
    assert observer.read_autopsy(run, 0).kernel == (LINES["cgroup"],)
