"""Read a log that somebody names, from a file or a pipe: in pieces of whole lines, and never for ever.

Of a very large file the beginning and the end are read. A pipe may go on without an end, or send nothing.
"""

from __future__ import annotations

import codecs
import os
import re
import select
import stat
import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from dflash_tui.common.errors import UsageError

STDIN = "-"
_PIECE = 1 << 20
_LARGEST_FILE = 128 << 20
_HEAD = 16 << 20
# Of a pipe; `docker logs` of a busy server is slower than a disk, but it goes on.
_SILENCE = 10.0
_MOST_SECONDS = 30.0
_LOOKED_AT = 1 << 16
_MOST_ODD = 0.1
_ODD = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f]")
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_HINT = "name the log of a vLLM server, or pipe it: docker logs NAME 2>&1 | dflash-tui why -"


class LogSource:
    """A log that is read once. `notes` say what was left out of it."""

    def __init__(self, name: str) -> None:
        self.name = "the input" if name == STDIN else name
        self.notes: list[str] = []
        self._fd = _find_stdin() if name == STDIN else _open_file(name)
        self._owned = name != STDIN
        self._is_gap_passed = False  # what is read next may begin within a line

    def read_pieces(self) -> Iterator[bytes]:
        """Yield the log in pieces that end with whole lines.

        Raises:
            UsageError: it is empty, no text, or nothing comes.
        """
        try:
            pieces = self._read()
            begin = b""
            for piece in pieces:
                begin += piece
                if len(begin) >= _LOOKED_AT:  # so that what wraps it can be told from its first piece
                    break
            if not begin.strip():
                raise UsageError(f"{self.name} is empty", hint=_HINT)
            yield from self._join_lines(chain((begin,), pieces), self._check_text(begin))
        finally:
            if self._owned:
                os.close(self._fd)

    def _join_lines(self, pieces: Iterator[bytes], decoder: codecs.IncrementalDecoder | None) -> Iterator[bytes]:
        """Yield pieces that end with whole lines; of a line without an end the beginning, of none the rest."""
        unfinished_line, is_within_line = b"", False
        for piece in pieces:
            text = decoder.decode(piece).encode(errors="replace") if decoder else piece
            if self._is_gap_passed:
                unfinished_line, is_within_line, self._is_gap_passed = b"", True, False
            if is_within_line:
                _, ended, text = text.partition(b"\n")
                is_within_line = not ended
            data = unfinished_line + text
            whole, end, unfinished_line = data.rpartition(b"\n")
            if len(unfinished_line) > _PIECE:
                whole, end, unfinished_line, is_within_line = data, b"\n", b"", True
            if end:
                yield whole + end
        if unfinished_line:
            yield unfinished_line + b"\n"

    def _check_text(self, piece: bytes) -> codecs.IncrementalDecoder | None:
        if piece.startswith(_UTF_16):  # as PowerShell writes what it is told to keep
            return codecs.getincrementaldecoder("utf-16")(errors="replace")
        looked_at = piece[:_LOOKED_AT]
        if b"\x00" in looked_at or len(_ODD.findall(looked_at)) > _MOST_ODD * len(looked_at):
            raise UsageError(
                f"{self.name} is not a text file",
                hint="what is compressed can be piped: zcat FILE | dflash-tui why -",
            )
        return None

    def _read(self) -> Iterator[bytes]:
        mode = os.fstat(self._fd).st_mode
        if stat.S_ISREG(mode):
            return self._read_file(os.fstat(self._fd).st_size)
        return self._read_pipe(is_terminal=os.isatty(self._fd))

    def _read_file(self, size: int) -> Iterator[bytes]:
        left = size  # a server may write as fast as it is read
        if size > _LARGEST_FILE:
            left = tail = _LARGEST_FILE - _HEAD
            self.notes.append(
                f"{self.name} has {size >> 20:,} MB: its first {_HEAD >> 20} and last {tail >> 20} were read"
            )
            for place in range(0, _HEAD, _PIECE):
                yield os.pread(self._fd, _PIECE, place)
            os.lseek(self._fd, size - tail, os.SEEK_SET)
            self._is_gap_passed = True
        while left > 0 and (piece := os.read(self._fd, min(_PIECE, left))):
            left -= len(piece)
            yield piece

    def _read_pipe(self, *, is_terminal: bool) -> Iterator[bytes]:
        began = heard = time.monotonic()
        some = False
        while is_terminal or time.monotonic() < began + _MOST_SECONDS:
            wait = None if is_terminal else max(0.0, heard + _SILENCE - time.monotonic())
            if not select.select([self._fd], [], [], wait)[0]:
                break
            try:
                piece = os.read(self._fd, _PIECE)
            except BlockingIOError:
                continue
            if not piece and (some or not stat.S_ISFIFO(os.fstat(self._fd).st_mode) or not self._owned):
                return
            if not piece:  # nobody writes into it yet
                if time.monotonic() > heard + _SILENCE:
                    break
                time.sleep(0.05)
                continue
            some, heard = True, time.monotonic()
            yield piece
        if not some:
            raise UsageError(f"nothing came from {self.name} within {_SILENCE:.0f} s", hint=_HINT)
        self.notes.append(f"{self.name} did not end: this is about what came in {time.monotonic() - began:.0f} s")


def _find_stdin() -> int:
    try:
        return sys.stdin.fileno()
    except (AttributeError, ValueError, OSError):  # it was closed, or is none of the system's
        raise UsageError("there is no input to read", hint=_HINT) from None


def _open_file(name: str) -> int:
    """Return the descriptor of a file, whose opening waits for nobody.

    Raises:
        UsageError: it cannot be opened, or is a folder.
    """
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {(error.strerror or str(error)).lower()}", hint=_HINT) from None
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        logs = [path.name for path in sorted(Path(name).glob("*.log"))[:3]]
        raise UsageError(
            f"{name} is a folder, not a log", hint=f"it holds {', '.join(logs)}: name one of them" if logs else _HINT
        )
    return descriptor
