"""Read the events of a run from its two files, piece by piece; fold them into a state.

`observer` goes on reading for as long as the server runs.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from dflash_tui.common.untrusted_json import LineBuffer
from dflash_tui.events import AnyEvent, Exited, decode_recorded
from dflash_tui.machine import process_identity
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import server_process
from dflash_tui.runs.run import Run
from dflash_tui.vllm_output.log_reader import LogReader

# Some hundred lines: whatever a panel reads at once delays the next key press.
_CHUNK = 1 << 16
# Of a log larger than this only the start, which holds the launch, and the end are read: 15 MB are read per second, and
# only the last lines are kept.
LONG_LOG_BYTES = 32 << 20
_LOG_END_BYTES = 8 << 20
_MAX_SAMPLE_BYTES = 1 << 20
_EVENT_TIME = operator.attrgetter("at")


class TailReader:
    """Reads what was appended to a file since the last time; a truncated or replaced file is read from its start.

    `find_path` returns the file's present path. Of a file larger than `long` when it was first seen, the middle is
    skipped.
    """

    def __init__(self, find_path: Callable[[], Path], long: float = math.inf) -> None:
        self._find_path, self._position, self._long = find_path, 0, long
        self._path: Path | None = None
        self._file = (0, 0)
        self._gap = (0, 0)
        self._is_within_line = False  # whose beginning was left out

    def read(self) -> bytes:
        """Return at most a chunk of new bytes; empty when there are none or the file is not there."""
        if self._is_unchanged():
            return b""
        try:
            self._path = self._find_path()
            with self._path.open("rb") as file:
                line_end = self._restart_if_replaced(os.fstat(file.fileno()))
                file.seek(self._position)
                data = file.read(_CHUNK)
                self._position += len(data)
                if self._is_within_line:
                    _, ended, data = data.partition(b"\n")
                    self._is_within_line = not ended
                begin, end = self._gap
                if begin and begin <= self._position < end:
                    # Whole lines on both sides: half a key would not be known as one.
                    file.seek(end - 1)
                    self._is_within_line = not _skip_line(file)
                    self._position = file.tell()
                    left_out = f"… {end - begin >> 20} MiB of the log are left out …\n"
                    data = (data[: data.rfind(b"\n") + 1] or b"\n") + left_out.encode()
        except OSError:
            return b""
        return line_end + data

    def _is_unchanged(self) -> bool:
        """Whether the file lies where it was read last, with nothing behind that: to find and open it costs tenfold."""
        if self._path is None or not self._position:  # an empty log may have an older one beside it
            return False
        try:
            now = self._path.lstat()
        except OSError:
            return False
        return (now.st_dev, now.st_ino, now.st_size) == (*self._file, self._position)

    def _restart_if_replaced(self, now: os.stat_result) -> bytes:
        """Start over in a file that was replaced or truncated; return what ends the half line read before."""
        if (now.st_dev, now.st_ino) == self._file and now.st_size >= self._position:
            return b""
        line_end = b"\n" if self._position else b""
        self._file, self._position, self._is_within_line = (now.st_dev, now.st_ino), 0, False
        self._gap = (_LOG_END_BYTES, now.st_size - _LOG_END_BYTES) if now.st_size > self._long else (0, 0)
        return line_end


def _skip_line(file: IO[bytes]) -> bool:
    """Skip the rest of a line in pieces; return whether it has ended."""
    while part := file.readline(_MAX_SAMPLE_BYTES):
        if part.endswith(b"\n"):
            return True
    return False


class EventSource:
    """Reads the events of a run from its two files, piece by piece."""

    def __init__(self, run: Run) -> None:
        self._log, self._samples = TailReader(lambda: run.log, LONG_LOG_BYTES), TailReader(lambda: run.samples)
        self._reader = LogReader(run.started_at, run.utc_offset)
        self._lines = LineBuffer(_MAX_SAMPLE_BYTES)

    def read(self) -> tuple[list[AnyEvent], bool]:
        """Return the next events, by time, and whether there may be more at once."""
        log, samples = self._log.read(), self._samples.read()
        recorded = [event for line in self._lines.feed(samples) if (event := decode_recorded(line))]
        events = self._reader.feed(log)
        # Both are ordered by time; sorting keeps the order of lines with the same time stamp.
        return sorted([*events, *recorded], key=_EVENT_TIME) if recorded else events, bool(log or samples)


def replay_run(run: Run) -> RunState:
    """Return the state of `run` according to its files, without asking the server."""
    state = RunState()
    for event in list_launch_events(run):
        state.apply(event)
    source, more = EventSource(run), True
    while more:
        events, more = source.read()
        state.apply_all(events)
    if state.exit is None and not server_process.is_alive(run):
        state.apply(infer_exit(run))
    return state


def list_launch_events(run: Run) -> Iterator[AnyEvent]:
    """Yield what happened before there were files."""
    yield from run.prepared
    yield run.launched


def infer_exit(run: Run) -> Exited:
    """Return the exit of a run that nobody observed: the last write is the best known time."""
    write_times = [path.stat().st_mtime for path in (run.log, run.samples) if path.exists()]
    return Exited(max(write_times, default=run.started_at), None, lost=process_identity.is_from_another_boot(run.born))
