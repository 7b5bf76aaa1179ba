"""Turn the log of `vllm serve` into events. Pure; for vLLM 0.20 to 0.33.

Up to 0.30 a wrapper of stdout puts `(EngineCore pid=123)` before every line. In later releases the log formatter does,
so tracebacks and uvicorn's lines have no prefix. Progress bars end in a carriage return. Source files and line numbers
in brackets change with every release and are never matched. `log_facts` and `known_failures` interpret the lines.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections import deque
from datetime import UTC, datetime
from functools import lru_cache

from dflash_tui.common.sanitizer import LINE_LIMIT, clean_line
from dflash_tui.events import AnyEvent, LogLine, Phase, PhaseStarted, Problem
from dflash_tui.vllm_output.known_failures import recognize_failure
from dflash_tui.vllm_output.log_facts import (
    FactReader,
    PhaseReader,
    is_information,
    parse_initialization,
    parse_load,
    parse_progress,
    parse_speculation,
)

MOST_FRAMES = 8
_MOST_LINES = 24
_MOST_CHARACTERS = 6000
_MOST_PROCESSES = 64
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w]*\.)*[A-Z]\w*(?:Error|Exception|NotFound|Interrupt|Timeout|OutOfResources)"
                        r"(?:: .+)?$|^(?:\w+: )?Value error, |^Input should be ")  # fmt: skip
_RAISED = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:\[[^\]]*\])?(?:: |$)")
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
_FRAME = re.compile(r'^ {0,3}File [\'"*<‹].+')
_SOURCE = re.compile(
    r"^ {4}|^\s*[\^~]+\s*$|^(?:raise|return|await|self\.|from|import|with|if|for|assert|yield)\b[^:]*[(.)=]"
)
# Lines that torch adds to every CUDA error, and the frames of its native code.
_ADDED = re.compile(r"CUDA kernel errors might be|For debugging consider passing|Compile with `TORCH_USE_CUDA_DSA`|"
                    r"Search for `cuda|frame #\d+: |other API call, so the stacktrace|https?://\S+$|Process \S+:$|"
                    r"\[repeated \d+x")  # fmt: skip


_WARNING_OF_TORCH = re.compile(r"\[[DIW]\d{3,4} [\d:.]+ ")


class _Place:
    """The position of one process: the frames of its traceback, and the error whose message may continue."""

    __slots__ = ("frames", "ignored", "lines", "problem", "source")

    def __init__(self, source: str) -> None:
        self.source = source
        self.frames: deque[str] = deque(maxlen=MOST_FRAMES)
        self.problem: Problem | None = None
        self.lines = 0
        self.ignored = False


class ErrorReader:
    """Reads the lines of one log that may belong to an error, and returns each error at its first line.

    If a message continues on the next line, the error is returned again with the longer text.
    """

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}

    @property
    def is_reading(self) -> bool:
        """Whether some process is inside a traceback or a message."""
        return bool(self._places)

    def end_message(self, process: str) -> None:
        """End the message of a process, which logged something else."""
        self._places.pop(process, None)

    def read_line(self, process: str, source: str, body: str, at: float) -> tuple[Problem, ...]:
        """Return the error in a line that a process logged from a source file, or nothing."""
        place = self._places.get(process)
        if place and place.source != source:  # another log record
            self.end_message(process)
            place = None
        if body.startswith("    "):
            if place is None or place.ignored or place.problem is None:
                return ()
            return self._read_message(process, place, body, at)
        if "File" in body[:8] and _FRAME.match(body):
            place = place or self._enter(process, source)
            place.frames.append(body.strip())
            place.problem = None
        elif body.startswith("Traceback (most recent call last)"):
            self._enter(process, source).ignored = bool(place and place.ignored)
        elif body.startswith(_CHAINED):
            self.end_message(process)
        elif body.startswith("Exception ignored in"):
            self._enter(process, source).ignored = True
        else:
            return self._read_message(process, place or _Place(source), body, at)
        return ()

    def _read_message(self, process: str, place: _Place, body: str, at: float) -> tuple[Problem, ...]:
        text = body.strip()
        frames = tuple(place.frames)
        in_traceback = place.problem is None and bool(frames)
        headline = bool(_EXCEPTION.match(text)) or (in_traceback and bool(_RAISED.match(text)))
        if place.ignored and headline:
            self.end_message(process)
            return ()
        if in_traceback and not headline and _SOURCE.match(body):
            return ()
        if _WARNING_OF_TORCH.match(text) or is_information(text):
            return ()
        kind = recognize_failure(text, frames)
        if headline or kind:
            self._enter(process, place.source, place)
            place.problem, place.lines = Problem(at, text, kind, process, frames), 1
            return (place.problem,)
        if place.problem and (process or body[0] == " "):  # else any program may have written the line
            return self._go_on(place, place.problem, text)
        self.end_message(process)
        return ()

    def _go_on(self, place: _Place, problem: Problem, text: str) -> tuple[Problem, ...]:
        place.lines += 1
        if place.lines > _MOST_LINES or len(problem.text) + len(text) > _MOST_CHARACTERS or _ADDED.match(text):
            return ()
        place.problem = Problem(problem.at, f"{problem.text}\n{text}", problem.kind, problem.process, problem.frames)
        return (place.problem,)

    def _enter(self, process: str, source: str, place: _Place | None = None) -> _Place:
        self._places.pop(process, None)
        if len(self._places) >= _MOST_PROCESSES:
            self._places.pop(next(iter(self._places)))
        self._places[process] = place or _Place(source)
        return self._places[process]


_BUFFER_LIMIT = 1 << 20
_CONTROLS = bytes({*range(32), 127} - {10})  # all but the line end
_PROCESS = r"(?:\(((?:[^()]* )?pid=\d+[^()]*)\) ?)"
# Level, stamp and file of vLLM's own lines, or only the level of uvicorn's. It is matched against every line.
_PREFIX = re.compile(
    rf"{_PROCESS}*+(?:\[(rank\d+)\]: ?)?(?:(DEBUG|INFO|WARNING|ERROR|CRITICAL)(?:: +| (\d\d-\d\d [\d:]{{8}}) "
    rf"\[?([^\]: ]+):\d+\]\s?))?{_PROCESS}?"
)

_PROBLEM_LEVELS = frozenset({"", "ERROR", "CRITICAL"})
_SPECULATION = "SpecDecoding"


class LogReader:
    """Turns the bytes of one server log into events, in order; the same bytes always give the same events.

    Lines have the time of vLLM's own stamps (whole seconds, local time, no year); a line without a stamp has the time
    of the line before it. `started_at` is the launch in seconds since the epoch, `utc_offset` the seconds that local
    time was ahead of UTC then. The text of lines is sanitised.
    """

    def __init__(self, started_at: float, utc_offset: float) -> None:
        self._at, self._offset = started_at, utc_offset
        self._unfinished_line, self._is_overlong = b"", False
        self._stamp = ""
        self._begun = self._is_up = self._is_plain = False
        self._phases, self._facts, self._errors = PhaseReader(), FactReader(), ErrorReader()

    def feed(self, chunk: bytes) -> list[AnyEvent]:
        """Return the events of the lines that `chunk` completes."""
        events: list[AnyEvent] = []
        data = (self._unfinished_line + chunk).replace(b"\r", b"\n")
        if self._is_overlong:  # only the beginning of an overlong line is read
            _, end, data = data.partition(b"\n")
            self._is_overlong = not end
        whole, _, self._unfinished_line = data.rpartition(b"\n")
        # Most chunks are plain ASCII, which one check shows; in others each line is checked.
        self._is_plain = whole.isascii() and len(whole.translate(None, _CONTROLS)) == len(whole)
        lines = whole.decode(errors="replace").split("\n")
        if len(self._unfinished_line) > _BUFFER_LIMIT:
            lines.append(self._unfinished_line.decode(errors="replace"))
            self._unfinished_line, self._is_overlong, self._is_plain = b"", True, False
        self._begin_import(events)
        for line in lines:
            if line:
                self._read_line(line, None, events)
        return events

    def feed_line(self, raw: str, at: float | None = None) -> list[AnyEvent]:
        """Return the events of one line; `at` overrides its time stamp."""
        events: list[AnyEvent] = []
        self._begin_import(events)
        self._is_plain = False
        self._read_line(raw, at, events)
        return events

    @property
    def up(self) -> bool:
        """Whether the log has said that the server is up."""
        return self._is_up

    def _begin_import(self, events: list[AnyEvent]) -> None:
        if not self._begun:
            self._begun = True
            events.append(PhaseStarted(self._at, Phase.IMPORT))

    def _read_line(self, raw: str, at: float | None, events: list[AnyEvent]) -> None:
        plain = self._is_plain or (raw.isascii() and raw.isprintable())
        text = raw if plain and len(raw) <= LINE_LIMIT else clean_line(raw)
        prefix = _PREFIX.match(text)
        assert prefix is not None  # noqa: S101 - every part of it is optional
        process, rank, level, stamp, source, process_after = prefix.groups("")
        process = process_after or process or rank
        # Interned, as thousands of lines are kept with few different levels and files.
        level, source = sys.intern(level), sys.intern(source)
        body = text[prefix.end() :].rstrip()
        if not body:
            if self._errors.is_reading:
                self._errors.end_message(process)
            return
        if at is not None:
            self._at = at
        elif stamp and stamp != self._stamp:  # most lines have the stamp of the line before
            self._stamp = stamp
            self._at = max(self._at, self._parse_stamp(stamp))
        if not self._is_up:
            self._read_startup_line(body, level, source, events)
        else:
            events.append(LogLine(self._at, body, level, source))
        if body.startswith(_SPECULATION):  # even before `up`: a partial log may begin after the start
            events.extend(parse_speculation(body, self._at))
        elif "Avg prompt throughput" in body and (load := parse_load(body, self._at)):
            events.append(load)
        if level in _PROBLEM_LEVELS:
            events.extend(self._errors.read_line(process, source, body, self._at))
        elif self._errors.is_reading:
            self._errors.end_message(process)

    def _read_startup_line(self, body: str, level: str, source: str, events: list[AnyEvent]) -> None:
        """Append the events of a line of the start; a progress bar is logged only once it is complete."""
        if phase := self._phases.read_line(body):
            events.append(PhaseStarted(self._at, phase))
            self._is_up = self._phases.up
        bar = parse_progress(body, self._at, self._phases.phase)
        if bar is None or bar.done == bar.total:
            events.append(LogLine(self._at, body, level, source))
        if bar is not None:
            events.append(bar)
        elif initialized := parse_initialization(body, self._at):
            events.append(initialized)
        else:
            events.extend(self._facts.read_line(body, self._at, self._phases.phase))

    def _parse_stamp(self, stamp: str) -> float:
        """Return the time of a stamp `MM-DD HH:MM:SS`, in the year that brings it nearest to the line before."""
        year = time.gmtime(self._at + self._offset).tm_year
        try:
            hour, minute, second = int(stamp[6:8]), int(stamp[9:11]), int(stamp[12:14])
        except ValueError:
            return self._at
        if hour > 23 or minute > 59 or second > 59:
            return self._at
        in_day = 3600 * hour + 60 * minute + second - self._offset
        candidates = (midnight + in_day for midnight in _list_midnights(stamp[:5], year))
        return min(candidates, key=lambda at: abs(at - self._at), default=self._at)


@lru_cache(maxsize=64)
def _list_midnights(day: str, year: int) -> tuple[float, ...]:
    """Return when the day `MM-DD` begins in UTC, in the year and the years beside it that have that day."""
    midnights = []
    for candidate in (year - 1, year, year + 1):
        with contextlib.suppress(ValueError):  # 29 February
            midnights.append(datetime(candidate, int(day[:2]), int(day[3:]), tzinfo=UTC).timestamp())
    return tuple(midnights)
