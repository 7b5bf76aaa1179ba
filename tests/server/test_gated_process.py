"""A server begins only once it is recorded: its launcher may be killed between the two."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from dflash_tui.common import paths
from dflash_tui.common.errors import ServerFailed
from dflash_tui.runs import lifecycle, registry
from dflash_tui.runs.detached_process import GatedProcess
from tests.support.fake_runs import free_port, made
from tests.support.waiting import wait_until

_KILLED = """
import os, signal, sys
from dflash_tui.common import private_files
from dflash_tui.runs import lifecycle
from tests.support.fake_runs import made
plan = made(int(sys.argv[1]), "log")
private_files.write_private_file = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # as it is about to write the record
lifecycle.launch_server(plan, engine="fake")
"""


def there(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def test_launcher_killed_before_record_leaves_no_server():
    """What it had started ends by itself and never became a server; the next launch is as any."""
    port = free_port(18_250)
    done = subprocess.run([sys.executable, "-c", _KILLED, str(port)], check=False)
    assert done.returncode == -9
    [folder] = paths.runs_folder().iterdir()
    wait_until(lambda: not there(folder))
    assert (folder / "server.log").read_bytes() == b""
    assert registry.list_runs() == []


def test_released_program_inherits_nothing_from_launcher(tmp_path):
    """No open pipe, no signal that Python ignores, the environment that was given, the pid that was recorded."""
    # A shell ignores no signals of its own accord, as Python does.
    script = 'grep SigIgn /proc/$$/status; readlink /proc/$$/fd/0; ls /proc/$$/fd; env; echo "$$ $0 $1"'
    argv = ["/bin/sh", "-c", script, "a b", "$(id)"]
    with (tmp_path / "log").open("wb") as log:
        held = GatedProcess(argv, {"X": "`id`"}, tmp_path, log)
    assert (tmp_path / "log").read_bytes() == b""
    held.release()
    assert held.process.wait() == 0
    ignored, null, *rest = (tmp_path / "log").read_text().splitlines()
    of_python = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
    assert not int(ignored.split()[1], 16) & of_python
    assert null == "/dev/null"
    assert rest[:3] == ["0", "1", "2"]
    assert "X=`id`" in rest
    assert rest[-1] == f"{held.process.pid} a b $(id)"


def test_missing_interpreter_leaves_no_run(tmp_path):
    program = tmp_path / "vllm"
    program.write_text("#!/nowhere/python\n")
    program.chmod(0o755)
    plan = replace(made(free_port(18_250)), argv=(str(program), "serve"))
    with pytest.raises(ServerFailed, match="could not be started") as caught:
        lifecycle.launch_server(plan, engine="fake")
    assert caught.value.evidence == os.strerror(errno.ENOENT)
    assert list(paths.runs_folder().iterdir()) == []
