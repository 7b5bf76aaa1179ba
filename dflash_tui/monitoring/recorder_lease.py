"""The recorder lease of a run: a file that decides which of its observers records."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from dflash_tui.common import private_files

LEASE_SECONDS = 5.0
_LARGEST = 1 << 10


class RecorderLease:
    """A file that names the one observer that records, and that expires when it is not renewed.

    A lock would be held by an observer that is suspended or waits for its terminal, and nobody would record.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._me = path, f"{os.getpid()}-{time.time_ns()}"
        self.write_error = ""  # of the last attempt; empty when it succeeded

    def acquire(self) -> bool:
        """Acquire the lease if it is free, and return whether it is ours; of two at once the last one wins."""
        with contextlib.suppress(OSError):
            if 0 <= time.time() - self._path.stat().st_mtime < LEASE_SECONDS:
                return self.renew()
        return self._write()

    def renew(self) -> bool:
        """Renew the lease and return whether it was still ours."""
        try:
            return self._is_ours() and self._write()
        except OSError:
            return False

    def release(self) -> None:
        """Give the lease up, so that another observer can acquire it at once."""
        with contextlib.suppress(OSError):
            if self._is_ours():
                self._path.unlink()

    def _is_ours(self) -> bool:
        return private_files.read_file(self._path, _LARGEST) == self._me.encode()

    def _write(self) -> bool:
        temporary = self._path.with_name(f"recorder.{self._me}")
        try:
            private_files.write_private_file(temporary, self._me.encode())
            temporary.replace(self._path)
        except OSError as error:
            self.write_error = error.strerror or str(error)
            with contextlib.suppress(OSError):
                temporary.unlink()
            return False
        self.write_error = ""
        return True
