"""Read the events of a run from its files, once or for as long as the server runs.

All events come from `server.log`, which the server writes, and `samples.jsonl`, which the recorder writes, so that
attaching late shows the same as watching from the start, to any number of observers.
"""

from __future__ import annotations

import asyncio
import math
import operator
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from dflash_tui.common import private_files
from dflash_tui.common.line_buffer import LineBuffer
from dflash_tui.events import AnyEvent, Autopsy, Exited, Stopping, decode_recorded
from dflash_tui.machine import processes
from dflash_tui.monitoring import kernel_log
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import run_files, server_process
from dflash_tui.runs.run import Run
from dflash_tui.vllm_output.log_reader import LogReader

LOG_INTERVAL = 0.25
# Some hundred lines: whatever a panel reads at once delays the next key press.
_CHUNK = 1 << 16
# Of a log larger than this only the start, which holds the launch, and the end are read: 15 MB are read per second, and
# only the last lines are kept.
LONG_LOG_BYTES = 32 << 20
_LOG_END_BYTES = 8 << 20
_MAX_SAMPLE_BYTES = 1 << 20
_EVENT_TIME = operator.attrgetter("at")
_Queue = asyncio.Queue[list[AnyEvent] | BaseException | None]


class _TailReader:
    """Reads what was appended to a file since the last time; a truncated or replaced file is read from its start.

    `find_path` returns the file's present path. Of a file larger than `long` when it was first seen, the middle is
    skipped.
    """

    def __init__(self, find_path: Callable[[], Path], long: float = math.inf) -> None:
        self._find_path, self._position, self._long = find_path, 0, long
        self._file = (0, 0)
        self._gap = (0, 0)

    def read(self) -> bytes:
        """Return at most a chunk of new bytes; empty when there are none or the file is not there."""
        try:
            with private_files.open_file(self._find_path()) as file:
                line_end = self._restart_if_replaced(os.fstat(file.fileno()))
                file.seek(self._position)
                data = file.read(_CHUNK)
                self._position += len(data)
                begin, end = self._gap
                if begin and begin <= self._position < end:
                    # Whole lines on both sides: half a key would not be known as one.
                    file.seek(end - 1)
                    file.readline(_MAX_SAMPLE_BYTES)
                    self._position = file.tell()
                    left_out = f"… {end - begin >> 20} MiB of the log are left out …\n"
                    data = (data[: data.rfind(b"\n") + 1] or b"\n") + left_out.encode()
        except OSError:
            return b""
        return line_end + data

    def _restart_if_replaced(self, now: os.stat_result) -> bytes:
        """Start over in a file that was replaced or truncated; return what ends the half line read before."""
        if (now.st_dev, now.st_ino) == self._file and now.st_size >= self._position:
            return b""
        line_end = b"\n" if self._position else b""
        self._file, self._position = (now.st_dev, now.st_ino), 0
        self._gap = (_LOG_END_BYTES, now.st_size - _LOG_END_BYTES) if now.st_size > self._long else (0, 0)
        return line_end


class _EventSource:
    """Reads the events of a run from its two files, piece by piece."""

    def __init__(self, run: Run) -> None:
        self._log, self._samples = _TailReader(lambda: run.log, LONG_LOG_BYTES), _TailReader(lambda: run.samples)
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
    for event in _launch_events(run):
        state.apply(event)
    source, more = _EventSource(run), True
    while more:
        events, more = source.read()
        for event in events:
            state.apply(event)
    if state.exit is None and not server_process.is_alive(run):
        state.apply(_infer_exit(run))
    return state


@asynccontextmanager
async def observe_run(run: Run) -> AsyncIterator[AsyncIterator[AnyEvent]]:
    """Yield the events of `run` from its launch on, until `Exited`, and `Autopsy` when nobody asked for the exit.

    Leaving the context stops observing, never the server.
    """
    async with observe_batches(run) as read:
        yield (event async for batch in read for event in batch)


@asynccontextmanager
async def fold_run(run: Run) -> AsyncIterator[tuple[RunState, asyncio.Task[None]]]:
    """Fold the events of `run` into a state while the block runs; the task is done when the server has exited."""
    state = RunState()

    async def follow() -> None:
        async with observe_run(run) as events:
            async for event in events:
                state.apply(event)

    task = asyncio.create_task(follow())
    try:
        yield state, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def observe_batches(run: Run) -> AsyncIterator[AsyncIterator[list[AnyEvent]]]:
    """Yield the events of `run` like `observe_run`, in lists of those that were read at once."""
    from dflash_tui.monitoring import recorder

    queue: _Queue = asyncio.Queue()

    async def events() -> AsyncIterator[list[AnyEvent]]:
        while (item := await queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            if item:
                yield item

    # Not a TaskGroup: it would wrap every error of the caller's own block into a group.
    recording = recorder.record_when_free(run, lambda line: queue.put_nowait([line]))
    tasks = [asyncio.create_task(work) for work in (_follow_files(run, queue), recording)]
    for task in tasks:
        task.add_done_callback(lambda finished: _forward_error(finished, queue))
    try:
        yield events()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _forward_error(task: asyncio.Task[None], queue: _Queue) -> None:
    """Forward the error of a finished task to the reader of the events."""
    if not task.cancelled() and (error := task.exception()):
        queue.put_nowait(error)


def _launch_events(run: Run) -> Iterator[AnyEvent]:
    yield from run.prepared
    yield run.launched


def _infer_exit(run: Run) -> Exited:
    """Return the exit of a run that nobody observed: the last write is the best known time."""
    write_times = [path.stat().st_mtime for path in (run.log, run.samples) if path.exists()]
    return Exited(max(write_times, default=run.started_at), None, lost=processes.is_from_another_boot(run.born))


async def _follow_files(run: Run, queue: _Queue) -> None:
    queue.put_nowait(list(_launch_events(run)))
    source, seen, was_alive, kills = _EventSource(run), set[type[AnyEvent]](), False, kernel_log.count_oom_kills()
    while True:
        running = await asyncio.to_thread(server_process.is_alive, run)
        more = True
        while more:
            events, more = source.read()
            seen.update(map(type, events))
            queue.put_nowait(events)
            await asyncio.sleep(0)
        if not running:
            break
        was_alive = True
        await asyncio.sleep(LOG_INTERVAL)
    exit_events: list[Exited | Autopsy] = []
    if Exited not in seen:
        code = await asyncio.to_thread(server_process.read_exit_code, run)
        exit_events.append(Exited(time.time(), code) if was_alive else _infer_exit(run))
    lost = any(
        isinstance(event, Exited) and event.lost for event in exit_events
    )  # the kernel of this boot knows nothing about it
    if not lost and not seen & {Autopsy, Stopping}:
        exit_events.append(await asyncio.to_thread(kernel_log.read_autopsy, run, kills if was_alive else None))
    for event in exit_events:
        if was_alive:  # an exit that nobody observed is inferred anew each time, never recorded as a fact
            run_files.record_event(run, event)
        queue.put_nowait([event])
    queue.put_nowait(None)
