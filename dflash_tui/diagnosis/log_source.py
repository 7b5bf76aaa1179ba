"""Read the log that a user names, from a file or a pipe, and strip the prefixes of containers and clusters.

Of a very large file only the beginning and the end are read; a pipe may never end, or send nothing. The first lines
show the wrappers, which may be nested: compose's `vllm-1  | `, the stamps of docker and Kubernetes, journalctl's host
and unit, Docker's JSON files.
A posted log is untrusted, and a line may have 1 MB: patterns must not backtrack over a line.
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

import msgspec

from dflash_tui.common.errors import UsageError

_ANSI = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_STAMP = rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)"
_WRAPPERS = tuple(
    re.compile(rb"(?m)^" + pattern)
    for pattern in (
        rb"[\w.-]+ +\| ?",  # docker compose
        rb"(?:[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d|" + _STAMP + rb") [\w.-]+ [\w./@-]+\[\d+\]: ",  # journalctl
        _STAMP + rb" (?:std(?:out|err) [FP] )?",  # docker logs -t, kubectl logs --timestamps, files of containerd
        rb"\[(?:pod/)?[\w.-]+(?:/[\w.-]+)+\] ",  # kubectl logs --prefix
        rb"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?\]:? ",  # stamps of other loggers
        rb" *+\[? *+(?:\d+:\d\d:\d\d|\d+(?=\.\d))(?:[.,]\d+)?\]?:? ",  # seconds since the start, as of ts -s
        rb" *\d{1,4}: ",  # srun --label
        rb"> ?",  # a quotation
    )
)
_JSON = re.compile(rb'^\{"log": ?"')
_SAMPLE_LINES = 300
_MOST_WRAPPERS = 4
_LEAST_SHARE = 0.6


class _Entry(msgspec.Struct, frozen=True, gc=False):
    log: str


_decode_entry = msgspec.json.Decoder(_Entry).decode


class Unwrapper:
    """Strips the wrappers of one log, piece by piece; every piece ends with a whole line."""

    def __init__(self) -> None:
        self._wrappers: tuple[re.Pattern[bytes], ...] | None = None
        self._is_json = False

    def unwrap(self, lines: bytes) -> bytes:
        """Return the lines as the server wrote them."""
        if b"\x1b" in lines:
            lines = _ANSI.sub(b"", lines)
        if self._wrappers is None:
            self._is_json = _share_of(_JSON, _sample(lines)) >= _LEAST_SHARE
        if self._is_json:
            lines = b"\n".join(_read_json_line(line) for line in lines.split(b"\n"))
        if self._wrappers is None:
            self._wrappers = _find_wrappers(lines)
        for wrapper in self._wrappers:
            lines = wrapper.sub(b"", lines)
        return lines


def _sample(lines: bytes) -> list[bytes]:
    return [line for line in lines[: 1 << 17].split(b"\n")[:_SAMPLE_LINES] if line.strip()]


def _share_of(pattern: re.Pattern[bytes], lines: list[bytes]) -> float:
    return sum(bool(pattern.match(line)) for line in lines) / max(1, len(lines))


def _find_wrappers(lines: bytes) -> tuple[re.Pattern[bytes], ...]:
    """Return the wrappers that most of the first lines begin with, the outermost first."""
    sample, wrappers = _sample(lines), []
    for _ in range(_MOST_WRAPPERS):
        wrapper = next((wrapper for wrapper in _WRAPPERS if _share_of(wrapper, sample) >= _LEAST_SHARE), None)
        if wrapper is None:
            break
        wrappers.append(wrapper)
        sample = [wrapper.sub(b"", line) for line in sample]
    return tuple(wrappers)


def _read_json_line(line: bytes) -> bytes:
    try:
        return _decode_entry(line).log.rstrip("\n").encode(errors="replace")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return line


STDIN = "-"
_PIECE = 1 << 20
_LARGEST_FILE = 128 << 20
_HEAD = 16 << 20
# Limits of a pipe; `docker logs` of a busy server is slower than a disk, but keeps sending.
_SILENCE, _MOST_SECONDS = 10.0, 30.0
_LOOKED_AT = 1 << 16
_HINT = "name the log of a vLLM server, or pipe it: docker logs NAME 2>&1 | dflash-tui why -"


class LogSource:
    """A log that is read once; `notes` list the parts left out."""

    def __init__(self, name: str) -> None:
        self.name = "the input" if name == STDIN else name
        self.notes: list[str] = []
        self._fd = _find_stdin() if name == STDIN else _open_file(name)
        self._owned = name != STDIN

    def read_pieces(self) -> Iterator[bytes]:
        """Yield the log in pieces that end with whole lines; raise UsageError if it is empty or not text."""
        try:
            is_file = stat.S_ISREG(os.fstat(self._fd).st_mode)
            pieces = self._read_file() if is_file else self._read_pipe()
            begin = b""
            for piece in pieces:
                begin += piece
                if len(begin) >= _LOOKED_AT:  # enough to recognise the wrappers
                    break
            if not begin.strip():
                raise UsageError(f"{self.name} is empty", hint=_HINT)
            if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # as PowerShell redirects
                decode = codecs.getincrementaldecoder("utf-16")("replace").decode
                pieces, begin = (decode(piece).encode(errors="replace") for piece in chain((begin,), pieces)), b""
            elif b"\x00" in begin[:_LOOKED_AT]:
                hint = "a compressed log can be piped: zcat FILE | dflash-tui why -"
                raise UsageError(f"{self.name} is not a text file", hint=hint)
            yield from _join_lines(chain((begin,), pieces))
        finally:
            if self._owned:
                os.close(self._fd)

    def _read_file(self) -> Iterator[bytes]:
        left = size = os.fstat(self._fd).st_size  # bounded, as a server may write as fast as the file is read
        if size > _LARGEST_FILE:
            left = tail = _LARGEST_FILE - _HEAD
            self.notes.append(
                f"{self.name} has {size >> 20:,} MB: its first {_HEAD >> 20} and last {tail >> 20} were read"
            )
            for place in range(0, _HEAD, _PIECE):
                piece = os.pread(self._fd, _PIECE, place)
                yield piece if place + _PIECE < _HEAD else piece[: piece.rfind(b"\n") + 1]
            os.lseek(self._fd, size - tail, os.SEEK_SET)
            piece = os.read(self._fd, min(_PIECE, left))
            left -= len(piece)
            yield piece.partition(b"\n")[2]
        while left > 0 and (piece := os.read(self._fd, min(_PIECE, left))):
            left -= len(piece)
            yield piece

    def _read_pipe(self) -> Iterator[bytes]:
        began, is_terminal = time.monotonic(), os.isatty(self._fd)
        is_silent = True
        while is_terminal or time.monotonic() < began + _MOST_SECONDS:
            if not select.select([self._fd], [], [], None if is_terminal else _SILENCE)[0]:
                break
            if not (piece := os.read(self._fd, _PIECE)):
                return
            is_silent = False
            yield piece
        if is_silent:
            raise UsageError(f"nothing came from {self.name} within {_SILENCE:.0f} s", hint=_HINT)
        self.notes.append(f"{self.name} did not end: this is about what came in {time.monotonic() - began:.0f} s")


def _join_lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield pieces that end with whole lines; a line longer than a piece is cut."""
    unfinished, is_overlong = b"", False
    for piece in pieces:
        if is_overlong:
            _, end, piece = piece.partition(b"\n")  # noqa: PLW2901
            is_overlong = not end
        whole, end, unfinished = (unfinished + piece).rpartition(b"\n")
        if len(unfinished) > _PIECE:
            whole, end, unfinished, is_overlong = whole + end + unfinished, b"\n", b"", True
        if end:
            yield whole + end
    if unfinished:
        yield unfinished + b"\n"


def _find_stdin() -> int:
    try:
        return sys.stdin.fileno()
    except (AttributeError, ValueError, OSError):
        raise UsageError("there is no input to read", hint=_HINT) from None


def _open_file(name: str) -> int:
    """Return the descriptor of a file, without blocking if it is a named pipe."""
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
