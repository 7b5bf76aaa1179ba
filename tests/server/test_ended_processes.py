"""Processes that others have started for us are ended with them."""

import asyncio
import subprocess
import sys

import psutil

from dflash_tui.machine import processes
from tests.support.process_search import find_processes
from tests.support.waiting import wait_until

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
PARENT = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {DEAF!r}]); time.sleep(600)"


def test_children_ignoring_sigterm_are_killed():
    """A child ignores SIGTERM; of a process that has ended nothing is found."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        parent.stdout.readline()
        children = processes.list_descendants(parent.pid)
        parent.kill()
        parent.wait()
        processes.end_processes(children, 0.2)
    assert len(children) == 1
    wait_until(lambda: not any(map(processes.is_running, children)))
    assert processes.list_descendants(parent.pid) == []


STARTS_MORE = "while :; do sleep {seconds} & echo; done"


async def test_process_started_during_stop_ends_too(tmp_path):
    """A process starts others without a pause, as uv asks one Python after another."""
    seconds = f"600.{tmp_path.stat().st_ino}"
    script = STARTS_MORE.format(seconds=seconds)
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", script, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert process.stdout
    await process.stdout.readline()
    await processes.end_group(process, 0.2)
    assert process.returncode
    wait_until(lambda: find_processes(seconds, psutil.process_iter()) == [])
