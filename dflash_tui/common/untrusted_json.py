"""JSON and lines of bytes from files and sockets, with limits."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from dflash_tui.common import private_files

T = TypeVar("T")
_LARGEST = 64 << 20


def register_type(kind: type[msgspec.Struct]) -> None:
    """Let msgspec inspect a type, and all types in it, while its module is imported.

    Otherwise msgspec does so on first use, and msgspec 0.22 exposes a half-inspected type to other threads, which then
    read a null pointer. Call it for every type given to `msgspec.json.decode` or `msgspec.convert`.
    """
    msgspec.json.Decoder(kind)


def read_own_json(path: Path, kind: type[T]) -> T | None:
    """Return the value in one of our JSON files; None if the file is missing or invalid."""
    try:
        return msgspec.json.decode(private_files.read_file(path, _LARGEST), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def decode_json(data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Return the value of JSON text.

    Raises:
        msgspec.MsgspecError: it is not JSON, not UTF-8, nested too deeply, or does not fit the decoder's type.
    """
    try:
        return decoder.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None


class LineBuffer:
    """Collects bytes and returns them as lines, however the bytes were split.

    A line of more than `limit` bytes is dropped; with `keep_end` it is cut to its last `limit` bytes instead.
    """

    def __init__(self, limit: int, *, keep_end: bool = False) -> None:
        self._limit, self._keep_end = limit, keep_end
        self._is_dropping = False
        self._unfinished = bytearray()  # appending costs only the appended bytes
        self.dropped = 0
        """How many lines exceeded the limit and were dropped, including the unfinished one."""

    @property
    def unfinished_line(self) -> bytes:
        """The beginning of the unfinished line, or with `keep_end` its end."""
        return bytes(self._unfinished)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes, without their line ends."""
        first, *others = data.split(b"\n")
        self._unfinished += first
        if not others:
            self._bound_unfinished()
            return []
        *lines, beginning = [self.unfinished_line, *others]
        self._unfinished = bytearray(beginning)
        if self._keep_end:
            self._bound_unfinished()
            return [line[-self._limit :] for line in lines]
        if self._is_dropping:
            self._is_dropping = False
            del lines[0]
        within_limit = [line for line in lines if len(line) <= self._limit]
        self.dropped += len(lines) - len(within_limit)
        self._bound_unfinished()
        return within_limit

    def _bound_unfinished(self) -> None:
        if len(self._unfinished) > self._limit and self._keep_end:
            del self._unfinished[: -self._limit]
        elif len(self._unfinished) > self._limit and not self._is_dropping:
            self._is_dropping = True
            self.dropped += 1
        if self._is_dropping:
            self._unfinished.clear()
