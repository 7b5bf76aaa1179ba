"""Read the events of a run from its files, fold them into a state, and follow the run until its server exits.

The kernel's log may say why a server failed. It is read from /dev/kmsg or, where only root may do so, from the journal.
"""

from __future__ import annotations

import asyncio
import math
import operator
import os
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from dflash_tui.common.sanitizer import clean_line
from dflash_tui.common.untrusted_json import LineBuffer
from dflash_tui.events import AnyEvent, Autopsy, Exited, Stopping, decode_recorded
from dflash_tui.machine import processes, system
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import server_process
from dflash_tui.runs.run import FarRank, Run
from dflash_tui.vllm_output.log_reader import LogReader

# printk's clock and the wall clock drift apart by seconds in a month.
_CLOCK_TOLERANCE = 10.0
_MAX_LOG_BYTES = 8 << 20
_MAX_KERNEL_LINES = 8
_PID = re.compile(rb"\([\w :-]*pid=(\d{1,10})(?!\d)")
# mm/oom_kill.c; the kernel cuts process names to 15 characters.
_OOM = re.compile(r"Killed process (?P<pid>\d+) \((?P<name>[^)]*)\)")
# arch/x86/mm/fault.c and arch/x86/kernel/traps.c
_CRASH = re.compile(r"(?:traps: )?(?P<name>[^\[\]]{1,32})\[(?P<pid>\d+)\]:? (?:segfault at|general protection|trap )")
# NVIDIA's driver; some of its errors name no process, for instance a GPU that has fallen off the bus.
_XID = re.compile(r"NVRM: Xid \(PCI:[^)]*\): \d+(?:, pid='?(?P<pid>\d+)'?(?:, name=(?P<name>[^,]*))?)?")


def count_oom_kills() -> int | None:
    """Return how many processes the kernel's OOM killer has killed since boot; None if unknown."""
    try:
        fields = Path("/proc/vmstat").read_text().split()
        return int(fields[fields.index("oom_kill") + 1])
    except (OSError, ValueError):
        return None


def read_autopsy(run: Run, kills_before: int | None) -> Autopsy:
    """Return what the kernel logged about the exit of `run`; `kills_before` is the number of OOM kills before it."""
    now = count_oom_kills()
    kills = None if kills_before is None or now is None else now - kills_before
    lines = (text for at, text in read_kernel_log(run.started_at) if at >= run.started_at - _CLOCK_TOLERANCE)
    return Autopsy(time.time(), tuple(filter_kernel_lines(lines, parse_server_pids(run)))[-_MAX_KERNEL_LINES:], kills)


def parse_server_pids(run: Run) -> set[int]:
    """Return the pids of the server's processes, which vLLM writes before the lines of its log."""
    try:
        with run.log.open("rb") as log:
            pids = {int(pid) for pid in _PID.findall(log.read(_MAX_LOG_BYTES))}
    except OSError:
        pids = set()
    return pids | {run.pid}


def filter_kernel_lines(lines: Iterable[str], server_pids: set[int]) -> Iterator[str]:
    """Yield the kernel's lines about killed or crashed processes of the server, and about GPU errors.

    The kernel's pids differ from a container's, so vLLM's process names are matched too.
    """
    for line in lines:
        for pattern in (_OOM, _CRASH, _XID):
            if match := pattern.search(line):
                pid, name = match["pid"], (match["name"] or "").strip()
                if pid is None or int(pid) in server_pids or name.startswith("VLLM::"):
                    yield clean_line(line)
                break


def read_kernel_log(since: float) -> Iterator[tuple[float, str]]:
    """Yield time (seconds since the epoch) and text of the kernel's log lines; nothing without permission."""
    try:
        reader = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        yield from _read_journal(since)
        return
    try:
        yield from _read_kmsg(reader)
    finally:
        os.close(reader)


def _read_kmsg(reader: int) -> Iterator[tuple[float, str]]:
    """Yield time and text of the records of /dev/kmsg: `priority,number,microseconds since boot,flags;text`."""
    booted = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    while True:
        try:
            record = os.read(reader, 8192).decode(errors="replace")
        except BrokenPipeError:  # the record was overwritten while we read; the next one is whole
            continue
        except OSError:
            return
        head, _, text = record.partition(";")
        stamp = head.split(",")[2:3]
        if stamp and stamp[0].isdigit():
            yield booted + int(stamp[0]) / 1e6, text.partition("\n")[0]


def _read_journal(since: float) -> Iterator[tuple[float, str]]:
    words = ("-k", "-q", "--no-pager", "-o", "short-unix", "--since", f"@{int(since)}")
    for line in (system.run_helper("journalctl", *words) or "").split("\n"):
        stamp, _, message = line.partition(" ")
        try:
            yield float(stamp), message.partition("kernel: ")[2]
        except ValueError:
            continue


# Some hundred lines: a larger read would delay the panel's reaction to a key.
_CHUNK = 1 << 16
# Of a larger log only the start, which holds the launch, and the end are read: reading takes a second per 15 MB, and
# only the last lines are kept.
LONG_LOG_BYTES = 32 << 20
_LOG_END_BYTES = 8 << 20
_MAX_SAMPLE_BYTES = 1 << 20
_EVENT_TIME = operator.attrgetter("at")


class TailReader:
    """Reads what was appended to a file since the last read; a truncated or replaced file is read from its start.

    `find_path` returns the file's present path. If the file has more than `long` bytes when first seen, its middle is
    skipped.
    """

    def __init__(self, find_path: Callable[[], Path], long: float = math.inf) -> None:
        self._find_path, self._long = find_path, long
        self._file, self._position, self._gap_end = (0, 0), 0, 0

    def read(self) -> bytes:
        """Return at most a chunk of new bytes; empty if there are none or the file is missing."""
        try:
            with self._find_path().open("rb") as file:
                line_end = self._restart_if_replaced(os.fstat(file.fileno()))
                file.seek(self._position)
                data = file.read(_CHUNK)
                self._position += len(data)
                if self._gap_end and self._position >= _LOG_END_BYTES:
                    left_out = f"… {self._gap_end - self._position >> 20} MiB of the log are left out …\n"
                    # Whole lines on both sides: half an API key would not be recognised and redacted.
                    data = (data[: data.rfind(b"\n") + 1] or b"\n") + left_out.encode()
                    file.seek(self._gap_end)
                    while (part := file.readline(_MAX_SAMPLE_BYTES)) and not part.endswith(b"\n"):
                        pass
                    self._position, self._gap_end = file.tell(), 0
        except OSError:
            return b""
        return line_end + data

    def _restart_if_replaced(self, now: os.stat_result) -> bytes:
        """Start over if the file was replaced or truncated; return the line end of the half line read before."""
        if (now.st_dev, now.st_ino) == self._file and now.st_size >= self._position:
            return b""
        line_end = b"\n" if self._position else b""
        self._file, self._position = (now.st_dev, now.st_ino), 0
        self._gap_end = now.st_size - _LOG_END_BYTES if now.st_size > self._long else 0
        return line_end


class EventSource:
    """Reads the events of a run from its log and samples, piece by piece."""

    def __init__(self, run: Run) -> None:
        self._log, self._samples = TailReader(lambda: run.log, LONG_LOG_BYTES), TailReader(lambda: run.samples)
        self._reader = LogReader(run.started_at, run.utc_offset)
        self._lines = LineBuffer(_MAX_SAMPLE_BYTES)

    def read(self) -> tuple[list[AnyEvent], bool]:
        """Return the next events, ordered by time, and whether more may be available already."""
        log, samples = self._log.read(), self._samples.read()
        recorded = [event for line in self._lines.feed(samples) if (event := decode_recorded(line))]
        events = self._reader.feed(log)
        # Both are ordered by time; sorting keeps the order of lines with the same time stamp.
        return sorted([*events, *recorded], key=_EVENT_TIME) if recorded else events, bool(log or samples)


def replay_run(run: Run) -> RunState:
    """Return the state of `run` from its files, without polling the server."""
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
    """Yield the events of preparation and launch, which precede the server's files."""
    yield from run.prepared
    yield run.launched


def infer_exit(run: Run) -> Exited:
    """Return the exit of a run that had no observer; its time is the last write to the run's files."""
    write_times = [path.stat().st_mtime for path in (run.log, run.samples) if path.exists()]
    return Exited(max(write_times, default=run.started_at), None, lost=processes.is_from_another_boot(run.born))


# Pieces that a panel reads per tick; a long log takes several ticks.
_MOST_PIECES = 2


class FarLog:
    """Reads the keeper's copy of the log of a rank on another host into a state of its own."""

    def __init__(self, run: Run, far: FarRank) -> None:
        self.far, self.state = far, RunState()
        path = run.folder / far.log_name
        self._tail = TailReader(lambda: path, LONG_LOG_BYTES)
        self._reader = LogReader(run.started_at, run.utc_offset)

    def read(self) -> bool:
        """Read what was copied since the last call; return whether there was anything."""
        for piece in range(_MOST_PIECES):
            if not (data := self._tail.read()):
                return piece > 0
            for event in self._reader.feed(data):
                self.state.apply(event)
        return True


LOG_INTERVAL = 0.25


@asynccontextmanager
async def observe_run(run: Run) -> AsyncIterator[AsyncIterator[AnyEvent]]:
    """Yield the events of `run` from its launch to `Exited`, then an `Autopsy` unless it was asked to stop.

    Leaving the context stops the observer, never the server.
    """
    async with observe_batches(run) as batches:
        yield (event async for batch in batches for event in batch)


@asynccontextmanager
async def fold_run(run: Run) -> AsyncIterator[tuple[RunState, asyncio.Task[None]]]:
    """Fold the events of `run` into a state while the block runs; the task ends when the server has exited."""
    state = RunState()

    async def follow() -> None:
        async with observe_batches(run) as batches:
            async for batch in batches:
                state.apply_all(batch)

    task = asyncio.create_task(follow())
    try:
        yield state, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def observe_batches(run: Run) -> AsyncIterator[AsyncIterator[list[AnyEvent]]]:
    """Yield the events of `run` like `observe_run`, in lists of events read together."""
    from dflash_tui.monitoring import recorder

    lines: list[AnyEvent] = []
    recording = asyncio.create_task(recorder.record_when_free(run, lines.append))
    batches = _follow_files(run, lines, recording)
    try:
        yield batches
    finally:
        recording.cancel()
        await asyncio.gather(recording, batches.aclose(), return_exceptions=True)


async def _follow_files(
    run: Run, lines: list[AnyEvent], recording: asyncio.Task[None]
) -> AsyncGenerator[list[AnyEvent]]:
    """Yield the events of the files and the recorder's `lines`; raise the recorder's error."""
    yield list(list_launch_events(run))
    source, event_types = EventSource(run), set[type[AnyEvent]]()
    was_alive, kills = False, count_oom_kills()
    while True:
        running, more = server_process.is_alive(run), True
        while more:
            events, more = source.read()
            event_types.update(map(type, events))
            if batch := [*events, *lines]:
                lines.clear()
                yield batch
            await asyncio.sleep(0)
        if not running:
            break
        was_alive = True
        if recording.done():
            recording.result()
        await asyncio.sleep(LOG_INTERVAL)
    end: list[AnyEvent] = []
    if Exited not in event_types:
        code = await asyncio.to_thread(server_process.read_exit_code, run)
        end.append(Exited(time.time(), code) if was_alive else infer_exit(run))
    lost = any(isinstance(event, Exited) and event.lost for event in end)  # this boot's kernel log does not cover it
    if not lost and not event_types & {Autopsy, Stopping}:
        end.append(await asyncio.to_thread(read_autopsy, run, kills if was_alive else None))
    for event in end if was_alive else ():  # an exit that was not observed is inferred each time, never recorded
        run.record(event)
    yield end
