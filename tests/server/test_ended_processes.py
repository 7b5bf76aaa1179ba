"""Processes that others have started for us are ended with them."""

import subprocess
import sys

from dflash_tui.machine import processes

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
PARENT = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {DEAF!r}]); time.sleep(600)"


def test_children_are_found_and_killed_where_they_do_not_listen():
    """A child ignores SIGTERM; of a process that has ended nothing is found."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        parent.stdout.readline()
        children = processes.list_descendants(parent.pid)
        parent.kill()
        parent.wait()
        processes.end_processes(children, 0.2)
    assert len(children) == 1
    assert not any(map(processes.is_running, children))
    assert processes.list_descendants(parent.pid) == []
