"""The recorder lease of a run: a file that decides which of its observers records."""

from __future__ import annotations

import contextlib
import math
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
        self.write_error = ""  # of the last attempt of anybody; empty when it succeeded

    def acquire(self) -> bool:
        """Acquire the lease if it is free, and return whether it is ours; of two at once the last one wins."""
        holder, renewed_at = self._read()
        if not 0 <= time.monotonic() - renewed_at < LEASE_SECONDS:
            return self._write()
        if holder != self._me:
            self.write_error = ""  # somebody else could write there
            return False
        return self._write()

    def renew(self) -> bool:
        """Renew the lease and return whether it was still ours."""
        return self._read()[0] == self._me and self._write()

    def release(self) -> None:
        """Give the lease up, so that another observer can acquire it at once."""
        with contextlib.suppress(OSError):
            if self._read()[0] == self._me:
                self._path.unlink()

    def _read(self) -> tuple[str, float]:
        """Return who records, and when that was renewed, by a clock that nobody sets; long ago when it says neither."""
        try:
            holder, renewed_at = private_files.read_file(self._path, _LARGEST).decode().split()
            return holder, float(renewed_at)
        except (OSError, ValueError):
            return "", -math.inf

    def _write(self) -> bool:
        temporary = self._path.with_name(f"recorder.{self._me}")
        try:
            private_files.write_private_file(temporary, f"{self._me} {time.monotonic()}".encode())
            temporary.replace(self._path)
        except OSError as error:
            self.write_error = error.strerror or str(error)
            with contextlib.suppress(OSError):
                temporary.unlink()
            return False
        self.write_error = ""
        return True
