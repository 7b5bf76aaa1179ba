"""Start processes that outlive this one: servers, drivers of experiments, keepers and guards of hosts."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from dflash_tui.common import private_files
from dflash_tui.common.formatting import truncate
from dflash_tui.common.sanitizer import join_last_lines
from dflash_tui.machine.process_environment import build_own_environment


class DetachedProcess(NamedTuple):
    """A process in its own session, with the file of its output."""

    process: subprocess.Popen[bytes]
    log: Path
    began: int
    """The offset in the file at which its own output begins."""

    def read_last_words(self) -> str:
        """Return the last three lines of its output as one clean line."""
        output = self.log.read_bytes()[self.began :].decode(errors="replace")
        return truncate(join_last_lines(output, 3), 500)


def start_detached(log: Path, module: str, *words: str) -> DetachedProcess:
    """Start one of our modules as a detached process, in the folder of `log`, to which its output is appended."""
    with open(log, "ab", opener=private_files.open_private) as file:
        began = file.tell()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=build_own_environment(),
            cwd=log.parent,
            start_new_session=True,
        )
        return DetachedProcess(process, log, began)


# Its stdin closes when its parent exits. Python ignores two signals; the program would inherit that.
_WAIT_SCRIPT = """\
import os, signal, sys
report = int(sys.argv[1])
os.set_inheritable(report, False)
if not os.read(0, 1):
    sys.exit()
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
try:
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    os.write(report, os.strerror(error.errno).encode())
"""


class GatedProcess:
    """A process that executes its program when released, and exits if its launcher is killed before that.

    The program replaces the process, and so keeps its pid and start time.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], folder: Path, output: IO[bytes]) -> None:
        wait, self._gate = os.pipe()
        self._exec_error, report = os.pipe()
        self._open = [self._gate, self._exec_error]
        try:
            # Not asyncio's, which kills the child when its transport is collected.
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _WAIT_SCRIPT, str(report), *argv],
                stdin=wait,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=folder,
                start_new_session=True,
                pass_fds=(report,),
            )
        except OSError:
            self.close()
            raise
        finally:
            os.close(wait)
            os.close(report)

    def release(self) -> None:
        """Execute the program; raise OSError if that fails."""
        try:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._gate, b"!")
            error = os.read(self._exec_error, 200).decode()
        finally:
            self.close()
        if error:
            self.process.wait()
            raise OSError(error)

    def close(self) -> None:
        """Close the pipes; a process that still waits exits."""
        while self._open:
            os.close(self._open.pop())
