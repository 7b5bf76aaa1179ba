"""Splits a stream of bytes that comes in pieces into lines, with a limit on the length of a line."""

from __future__ import annotations


class LineBuffer:
    """Collects bytes and returns them as lines; which lines depends on the bytes, not on how they were cut.

    A line of more than `limit` bytes is dropped, however much of it has come; with `keep_end` its last `limit` bytes
    stand for it instead.
    """

    def __init__(self, limit: int, *, keep_end: bool = False) -> None:
        self._limit, self._keep_end = limit, keep_end
        self._is_dropping = False
        self.rest = b""
        """The beginning of the line that has not ended yet, or with `keep_end` its end."""
        self.dropped = 0
        """How many lines were longer than the limit and were dropped, the unfinished one included."""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes, without their line ends."""
        *lines, rest = (self.rest + data).split(b"\n")
        if self._keep_end:
            self.rest = rest[-self._limit :]
            return [line[-self._limit :] for line in lines]
        if self._is_dropping and lines:
            self._is_dropping = False
            del lines[0]
        kept = [line for line in lines if len(line) <= self._limit]
        self.dropped += len(lines) - len(kept)
        if len(rest) > self._limit and not self._is_dropping:
            self._is_dropping = True
            self.dropped += 1
        self.rest = b"" if self._is_dropping else rest
        return kept
