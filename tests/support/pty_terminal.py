"""The panel in a real terminal: the leader of a session on a pseudo-terminal of its own, as behind SSH."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable

from tests.support.waiting import PATIENCE

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
NO_MOUSE = b"\x1b[?1003l"
PANEL = ("-m", "dflash_tui")
# For what is no program of Python's: its command follows.
ANY_PROGRAM = ("-c", "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])")


class Terminal:
    """A panel, or another program of Python's, and the terminal that it has."""

    def __init__(self, *words: str, program: tuple[str, ...] = PANEL) -> None:
        self._rest = b""  # what came together with what was waited for
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            # A copy: readline, once imported, puts a size into the environment behind Python's back.
            env = os.environ | {"TERM": "xterm-256color"}
            for name in ("COLUMNS", "LINES"):  # so that a worker of a pytest that has imported it has one, too
                env.pop(name, None)
            os.execve(sys.executable, [sys.executable, *program, *words], env)
        self.resize(36, 120)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def read(self, limit: float = 0.1) -> bytes:
        """Return what is written next; empty when that is nothing for `limit` seconds, or the terminal is closed."""
        if self._rest:
            rest, self._rest = self._rest, b""
            return rest
        try:
            return os.read(self.master, 1 << 16) if select.select([self.master], [], [], limit)[0] else b""
        except (OSError, ValueError):
            time.sleep(limit)
            return b""

    def until(self, text: bytes, limit: float = PATIENCE) -> bytes:
        """Return what is written until `text` is, which ends it."""
        seen, deadline = b"", time.monotonic() + limit
        while text not in seen:
            assert time.monotonic() < deadline, seen[-300:]
            seen += self.read()
        before, text, self._rest = seen.partition(text)
        return before + text

    def reading_until(self, true: Callable[[], bool], limit: float = PATIENCE) -> bytes:
        """Return what is written until something is true elsewhere."""
        seen, deadline = b"", time.monotonic() + limit
        while not true():
            assert time.monotonic() < deadline, seen[-300:]
            seen += self.read()
        return seen

    def ended(self, limit: float = PATIENCE) -> int:
        """Return the exit code."""
        deadline = time.monotonic() + limit
        while not (found := os.waitpid(self.pid, os.WNOHANG))[0]:
            assert time.monotonic() < deadline, "it did not end"
            self.read(0.05)
        return os.waitstatus_to_exitcode(found[1])

    def hang_up(self) -> None:
        """Close the terminal, as a lost connection does."""
        os.close(self.master)
        self.master = -1

    def close(self) -> None:
        """End whatever is left of it."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        with contextlib.suppress(OSError):
            os.close(self.master)
