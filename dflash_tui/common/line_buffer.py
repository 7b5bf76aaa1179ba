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
        # To append to it costs what is appended, also when a line comes byte by byte.
        self._unfinished = bytearray()
        self.dropped = 0
        """How many lines were longer than the limit and were dropped, the unfinished one included."""

    @property
    def unfinished_line(self) -> bytes:
        """The beginning of the line that has not ended yet, or with `keep_end` its end."""
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
