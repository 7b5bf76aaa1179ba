"""Recorded runs: read from a run folder, an exported file or the sample, played, and exported.

Recordings are not trusted: only three file names are read, with size limits, texts are cleaned, and no pid in them is
used. Exports contain no access tokens, prompts, answers or path of the home folder.
"""

from __future__ import annotations

import contextlib
import heapq
import re
import statistics
import struct
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any

import msgspec

from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.sanitizer import clean_text
from dflash_tui.common.secrets import LEFT_OUT, redact_argv, redact_prompts, redact_secrets, redact_variables
from dflash_tui.common.untrusted_json import LineBuffer, register_type
from dflash_tui.events import (
    OURS,
    AnyEvent,
    Exited,
    HealthChanged,
    Recorded,
    RequestDone,
    Stopping,
    decode_recorded,
    encode,
)
from dflash_tui.planning.plan import upgrade_record
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import LOG_NAME, Run, find_log
from dflash_tui.vllm_output.log_reader import LogReader

SAMPLE = "sample"
RUN_PART, LOG_PART, SAMPLES_PART = "run.json", LOG_NAME, "samples.jsonl"
# Logs compress by a factor of 10 to 50; a higher ratio is an attack on memory or time.
MAX_COMPRESSION = 200
_ALWAYS_ALLOWED = 16 << 20
_MAX_RUN_FILE = _MAX_SAMPLE_BYTES = 1 << 20
_CHUNK = 1 << 12  # about 30 lines, a few milliseconds of reading
_TAIL_BYTES = 1 << 16
# Seconds of the start to show before the server is up.
_LEAD = 8.0
_RUN_ID = re.compile(r"[\w][\w.+-]{0,200}")
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_READ_ERRORS = (
    OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError,
    UnicodeDecodeError, struct.error,  # a name or header field that is malformed
)  # fmt: skip


class Recording(Run, frozen=True):
    """A read-only run, from its folder or from an exported file."""

    source: str = ""
    """The path of the run folder or of the exported file."""

    @property
    def folder(self) -> Path:
        """The run folder or the exported file."""
        return Path(self.source)

    @property
    def name(self) -> str:
        """The name to display."""
        return SAMPLE if self.folder == paths.sample_folder() else self.id

    def events(self) -> Iterator[AnyEvent]:
        """Yield all events in order of time, read in chunks.

        Raises:
        DflashError: the recording cannot be read completely.
        """
        yield from self.prepared
        yield self.launched
        exited = False
        try:
            for event in heapq.merge(self._read_log(), self._read_samples(), key=lambda event: event.at):
                exited = exited or isinstance(event, Exited)
                yield event
        except _READ_ERRORS as error:
            raise DflashError(f"{self.source} cannot be read completely", evidence=str(error)) from None
        if not exited and self._exited_unrecorded:
            yield Exited(self.last_event_time(), None)

    @property
    def _exited_unrecorded(self) -> bool:
        """Whether the server exited but its exit was not recorded; always False for an exported file."""
        own = next((run for run in registry.list_runs() if run.id == self.id), None) if self.folder.is_dir() else None
        return own is not None and not server_process.is_alive(own)

    def find_opening(self) -> float:
        """Return the position, in seconds after the launch, shortly before the server was up or ended."""
        moments = (HealthChanged, RequestDone, Stopping, Exited)
        with contextlib.suppress(*_READ_ERRORS):
            first = next((event.at for event in self._read_samples() if isinstance(event, moments)), self.started_at)
            return max(0.0, first - self.started_at - _LEAD)
        return 0.0

    def last_event_time(self) -> float:
        """Return the time of the last event, from the ends of both files."""
        reader = LogReader(self.started_at, self.utc_offset)
        logged = [event.at for event in reader.feed(self._read_tail(LOG_PART) + b"\n")]
        return max([self.started_at, *logged, *(event.at for event in self.last_recorded_events())])

    def last_recorded_events(self) -> list[Recorded]:
        """Return the last recorded samples, including the exit if recorded."""
        lines = self._read_tail(SAMPLES_PART).split(b"\n")
        return [event for line in lines if (event := decode_recorded(line))]

    def _read_log(self) -> Iterator[AnyEvent]:
        reader = LogReader(self.started_at, self.utc_offset)
        for chunk in self._read_chunks(LOG_PART):
            yield from reader.feed(chunk)
        yield from reader.feed(b"\n")

    def _read_samples(self) -> Iterator[AnyEvent]:
        buffer = LineBuffer(_MAX_SAMPLE_BYTES)
        for chunk in self._read_chunks(SAMPLES_PART):
            for line in buffer.feed(chunk):
                if event := decode_recorded(line):
                    yield event

    def _read_chunks(self, part: str) -> Iterator[bytes]:
        try:
            file = self._open_part(part)
        except (FileNotFoundError, KeyError):
            return
        with file:
            while chunk := file.read(_CHUNK):
                yield chunk

    def _read_tail(self, part: str) -> bytes:
        tail = b""
        with contextlib.suppress(KeyError, *_READ_ERRORS), self._open_part(part) as file:
            if self.folder.is_dir():
                file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            while chunk := file.read(1 << 20):
                tail = (tail + chunk)[-_TAIL_BYTES:]
        return tail

    def _open_part(self, part: str) -> IO[bytes]:
        if self.folder.is_dir():
            return (find_log(self.folder) if part == LOG_PART else self.folder / part).open("rb")
        with zipfile.ZipFile(self.folder) as archive:  # the part keeps the file open
            return archive.open(part)


register_type(Recording)


def find_recording(name: str) -> Recording:
    """Return the recording called `name`: `sample`, an exported file, a run folder, or a run as in `find_run`.

    Raises:
    UsageError: it does not exist, or `export` did not write it.
    """
    if name == SAMPLE:
        return read_recording(paths.sample_folder())
    path = paths.expand_home(name)
    if path.is_dir() or path.is_file():
        return read_recording(path)
    if "/" in name or name.endswith(".zip"):
        raise UsageError(f"there is no file {name}", hint="dflash-tui export RUN writes one")
    return open_recording(registry.find_run(name))


def open_recording(run: Run) -> Recording:
    """Return the recording of a run of this machine; a recording is returned as it is."""
    return run if isinstance(run, Recording) else read_recording(run.folder)


def measure_newest_speeds() -> dict[str, float]:
    """Return tok/s by recipe: the median of the last five measured requests of its newest run with any."""
    speeds: dict[str, float] = {}
    for run in reversed(registry.list_runs()):
        if run.plan.recipe not in speeds:
            try:
                recorded = open_recording(run).last_recorded_events()
            except DflashError:
                continue
            done = [event for event in recorded if isinstance(event, RequestDone) and event.kind not in OURS]
            if known := [request.decode_tok_s for request in done if request.decode_tok_s]:
                speeds[run.plan.recipe] = statistics.median(known[-5:])
    return speeds


def read_recording(path: Path) -> Recording:
    """Return the recording in a run folder or an exported file; raise UsageError if it is not one."""
    what = f"{path} is not a recording"
    try:
        data = _read_run_part(path)
        if len(data) > _MAX_RUN_FILE:
            raise UsageError(what, evidence=f"{RUN_PART} is larger than {_MAX_RUN_FILE >> 20} MiB")
        # An empty `born` ensures that no pid in it is taken for a process of dflash-tui.
        fields = upgrade_record(msgspec.json.decode(data))
        fields |= {"born": "", "source": str(paths.resolve_links(path))}
        recording = msgspec.convert(fields, Recording)
    except (*_READ_ERRORS, KeyError, TypeError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        do = "dflash-tui export RUN writes one; dflash-tui ps --all lists the runs"
        raise UsageError(what, evidence=str(error), hint=do) from None
    if not _RUN_ID.fullmatch(recording.id):
        raise UsageError(what, evidence=f"its run is called {recording.id!r}")
    if not (recording.started_at and recording.has_possible_times):
        raise UsageError(what, evidence="its launch time is invalid")
    return recording


def _read_run_part(path: Path) -> bytes:
    if path.is_dir():
        with (path / RUN_PART).open("rb") as file:
            return file.read(_MAX_RUN_FILE + 1)
    with zipfile.ZipFile(path) as archive:
        _check_members(path, archive.infolist())
        with archive.open(RUN_PART) as member:
            return member.read(_MAX_RUN_FILE + 1)


def _check_members(path: Path, members: Sequence[zipfile.ZipInfo]) -> None:
    """Raise UsageError if an archive holds other files than the three, or unpacks to far more than its size."""
    if foreign := sorted({member.filename for member in members} - {RUN_PART, LOG_PART, SAMPLES_PART}):
        raise UsageError(f"{path} is not a recording", evidence=f"it holds {', '.join(foreign)}")
    # others use as much memory as the file says
    if any(member.compress_type not in _METHODS for member in members):
        raise UsageError(f"{path} is not a recording", evidence="it is compressed in a way that export never uses")
    size = sum(member.file_size for member in members)
    if size > _ALWAYS_ALLOWED + MAX_COMPRESSION * path.stat().st_size:
        raise UsageError(f"{path} is refused", evidence=f"it would unpack to {size >> 20} MiB")


_LONGEST_LINE = 1 << 20
_LINE_ENDS = re.compile(rb"(?<=\r)(?!\n)")


def export_run(run: Run, output: str | None = None, *, with_prompts: bool = False) -> Path:
    """Write `run` into a zip file and return its path: `output`, or the run's name in the current folder.

    Raises:
    UsageError: the file already exists.
    DflashError: it cannot be written.
    """
    path = paths.expand_home(output or f"{run.id}.zip").absolute()
    temporary = path.with_name(f".{path.name}.{time.time_ns()}")
    if path.exists():
        raise UsageError(f"{path} already exists", hint="choose another file with -o")
    try:
        with temporary.open("xb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            archive.writestr(RUN_PART, msgspec.json.format(msgspec.json.encode(_redact_run(run)), indent=1))
            for name, lines in ((LOG_PART, _redact_log(run, with_prompts)), (SAMPLES_PART, _redact_samples(run))):
                with archive.open(name, "w", force_zip64=True) as member:
                    for line in lines:
                        member.write(line)
        temporary.rename(path)
    except OSError as error:
        raise DflashError(f"{path} cannot be written", evidence=error.strerror or str(error)) from None
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _redact_text(text: str) -> str:
    text, home = redact_secrets(text), str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text


def _redact_run(run: Run) -> Any:
    fields = _redact_value(msgspec.to_builtins(run))
    # A secret may follow its flag as the next argument; a variable's name tells whether its value is secret.
    fields["plan"]["argv"] = redact_argv(fields["plan"]["argv"])
    fields["plan"]["env"] = redact_variables(fields["plan"]["env"])
    return fields | {"born": ""}


def _redact_value(value: Any) -> Any:
    if isinstance(value, str):
        return _redact_text(clean_text(value))
    if isinstance(value, list | tuple):
        return [_redact_value(item) for item in value]
    return {key: _redact_value(item) for key, item in value.items()} if isinstance(value, dict) else value


def _redact_log(run: Run, with_prompts: bool) -> Iterator[bytes]:
    for line in chain.from_iterable(map(_LINE_ENDS.split, _read_lines(run.log))):
        body = line.rstrip(b"\r\n")
        text, is_cut = body.decode("utf-8", "surrogateescape"), len(body) > _LONGEST_LINE
        text = clean_text(text, len(text) - is_cut)
        if is_cut:  # half a word may be part of a secret
            text = f"{text.rpartition(' ')[0]} {LEFT_OUT}"
        redacted = _redact_text(text if with_prompts else redact_prompts(text))
        yield redacted.encode("utf-8", "surrogateescape") + (line[len(body) :] or b"\n" * is_cut)


def _redact_samples(run: Run) -> Iterator[bytes]:
    exited = False
    for line in _read_lines(run.samples):
        try:
            event = msgspec.json.decode(line)
            redacted = msgspec.json.encode(_redact_value(event))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue  # incomplete or not an event
        exited = exited or (isinstance(event, dict) and event.get("event") == "exited")
        yield redacted + b"\n"
    if not exited and not server_process.is_alive(run):  # only this machine knows, and no observer recorded the exit
        yield encode(Exited(open_recording(run).last_event_time(), None)) + b"\n"


def _read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file with their ends, cut after 1 MiB; nothing if the file does not exist.

    Lines are kept whole because redaction depends on the preceding text of the line.
    """
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        while line := file.readline(_LONGEST_LINE + 1):
            yield line
            while line and not line.endswith(b"\n"):
                line = file.readline(_LONGEST_LINE)


SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
# The default speed of the panel: a start of two minutes takes half a minute.
PANEL_SPEED = 4.0
_EVENTS_PER_CLOCK_CHECK = 32


class PlaybackClock:
    """A playback position in seconds, up to `duration`, that moves `speed` times as fast as `clock`."""

    def __init__(self, duration: float, speed: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.duration, self.speed, self.paused, self._clock = duration, speed, False, clock
        self._since, self._from = clock(), 0.0

    @property
    def position(self) -> float:
        """The position in seconds, at most `duration`."""
        played = 0.0 if self.paused else (self._clock() - self._since) * self.speed
        return min(self.duration, self._from + played)

    @property
    def finished(self) -> bool:
        """Whether the position is at the end."""
        return self.position >= self.duration

    def pause(self, paused: bool) -> None:
        """Pause or resume; resuming at the end restarts."""
        if self.finished and not paused:
            self.seek(0.0)
        self._set_position(self.position)
        self.paused = paused

    def change_speed(self, steps: int) -> None:
        """Change the speed by a number of entries of `SPEEDS`."""
        slower = sum(speed < self.speed for speed in SPEEDS)
        at = slower + steps - (steps > 0 and self.speed not in SPEEDS)
        self._set_position(self.position)
        self.speed = SPEEDS[max(0, min(len(SPEEDS) - 1, at))]

    def seek(self, position: float) -> bool:
        """Move to a position; return True if it is before the current one."""
        position = max(0.0, min(self.duration, position))
        back = position < self.position
        self._set_position(position)
        return back

    def _set_position(self, position: float) -> None:
        self._since, self._from = self._clock(), position


class Player(PlaybackClock):
    """Yields the events of a recording when they are due, starting `at` seconds after the launch.

    `behind` is True if events are due that were not yet yielded.
    """

    def __init__(
        self, recording: Recording, *, at: float = 0.0, speed: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(recording.last_event_time() - recording.started_at, speed, clock)
        self.recording = recording
        self._events: Iterator[AnyEvent] = recording.events()
        self._next: AnyEvent | None = None
        self.behind = True
        self.seek(at)

    def now(self) -> float:
        """Return the position as seconds since the epoch, for a `RunState`."""
        return self.recording.started_at + self.position

    def seek(self, position: float) -> bool:
        """Move to a position; return True if events restart from the first, as after moving back."""
        if back := super().seek(position):
            self._events, self._next = self.recording.events(), None
        self.behind = True
        return back

    def due_events(self, seconds: float) -> Iterator[AnyEvent]:
        """Yield the due events for at most `seconds`; sets `behind` if more are due."""
        until, now, count = time.perf_counter() + seconds, self.now(), 0
        self.behind = False
        while (event := self._next or next(self._events, None)) and (event.at <= now or self.finished):
            self._next = None
            yield event
            count += 1
            if count % _EVENTS_PER_CLOCK_CHECK == 0 and time.perf_counter() >= until:
                self.behind = True
                return
        self._next = event
