"""A program that waits at its start: whoever launches it may be killed before it is recorded, and it then never begins.

The process is there, with the pid and the start that it will keep, and replaces itself with the program when it is
let go.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

# What it reads ends when its parent does. Python ignores two signals, which a program would inherit.
_WAIT_SCRIPT = """\
import os, signal, sys
told = int(sys.argv[1])
os.set_inheritable(told, False)
if not os.read(0, 1):
    sys.exit()
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
try:
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    os.write(told, os.strerror(error.errno).encode())
"""


class GatedProcess:
    """A process in a session of its own that waits until `release`; `close` without it ends it."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], folder: Path, output: IO[bytes]) -> None:
        wait, self._go = os.pipe()
        self._told, tell = os.pipe()
        self._open = [self._go, self._told]
        try:
            # Not asyncio's: it kills the child when its transport is collected.
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _WAIT_SCRIPT, str(tell), *argv],
                stdin=wait,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=folder,
                start_new_session=True,
                pass_fds=(tell,),
            )
        except OSError:
            self.close()
            raise
        finally:
            os.close(wait)
            os.close(tell)

    def release(self) -> None:
        """Let the program begin.

        Raises:
            OSError: there is no such program, or it is none.
        """
        try:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._go, b"!")
            why = os.read(self._told, 200).decode()
        finally:
            self.close()
        if why:
            self.process.wait()
            raise OSError(why)

    def close(self) -> None:
        """Let it wait no longer."""
        while self._open:
            os.close(self._open.pop())
