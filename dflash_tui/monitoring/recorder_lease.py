"""The lease of a run: which of its observers records."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from dflash_tui.common import private_files

LEASE_SECONDS = 5.0


class RecorderLease:
    """A file that names the one observer that records; whoever does not renew it in time has lost it.

    A lock would be kept by an observer that was suspended or waits for its terminal, and everybody with it.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._me = path, f"{os.getpid()}-{time.time_ns()}"
        self.trouble = ""  # why it could not be written the last time

    def take(self) -> bool:
        """Take the lease if nobody has it, and say whether it is ours; the last of two that try has it."""
        with contextlib.suppress(OSError):
            if 0 <= time.time() - self._path.stat().st_mtime < LEASE_SECONDS:
                return self.renew()
        return self._write()

    def renew(self) -> bool:
        """Keep the lease and say whether it was still ours."""
        try:
            return self._path.read_text() == self._me and self._write()
        except (OSError, UnicodeDecodeError):
            return False

    def release(self) -> None:
        """Let the next observer have it at once."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if self._path.read_text() == self._me:
                self._path.unlink()

    def _write(self) -> bool:
        temporary = self._path.with_name(f"recorder.{self._me}")
        try:
            private_files.write_private_file(temporary, self._me.encode())
            temporary.replace(self._path)
        except OSError as error:
            self.trouble = error.strerror or str(error)
            with contextlib.suppress(OSError):
                temporary.unlink()
            return False
        self.trouble = ""
        return True
