"""Turn the log of `vllm serve` into events. Pure; holds for vLLM 0.20 to 0.33.

Up to 0.30 a wrapper of stdout puts `(EngineCore pid=123)` before every line, later the log formatter does so
and tracebacks and uvicorn's lines carry nothing. Progress bars end in a carriage return. Source files and
line numbers in brackets change with every release and are never matched. The meaning of lines is in `log_phases`,
`log_facts` and `known_failures`.
"""

from __future__ import annotations

import calendar
import contextlib
import re
import time
from functools import lru_cache

from dflash_tui.common.own_secrets import read_own_secrets
from dflash_tui.common.sanitizer import LINE_LIMIT, clean_line
from dflash_tui.events import AnyEvent, LogLine, Phase, PhaseStarted, Problem
from dflash_tui.vllm_output.known_failures import recognize_failure
from dflash_tui.vllm_output.log_facts import FactReader, parse_progress
from dflash_tui.vllm_output.log_phases import PhaseReader

_BUFFER_LIMIT = 1 << 20
_PROCESS = r"(?:\((?:[^()=]* )?pid=\d+[^()]*\)\s*)"
# Level, stamp and file of vLLM's own lines, only a level of uvicorn's. Every line passes through it.
_PREFIX = re.compile(
    rf"{_PROCESS}*+(?:(DEBUG|INFO|WARNING|ERROR|CRITICAL)(?:: +| (\d\d-\d\d [\d:]{{8}}) "
    rf"\[([^\]:]+):\d+\]\s?))?{_PROCESS}?"
)
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w]*\.)*[A-Z]\w*(?:Error|Exception|NotFound|Interrupt)(?:: .+)?$|"
                        r"^(?:\w+: )?Value error, |^Input should be ")  # fmt: skip


_PROBLEM_LEVELS = frozenset({"", "ERROR", "CRITICAL"})
# A failing server logs the same lines over and over; 512 of maximal length take 1 MB.
_recognize_cached = lru_cache(maxsize=512)(recognize_failure)
# Thousands of lines are kept, and they have a few levels and files: one copy of each.
_intern_name = lru_cache(maxsize=256)(str)


class LogReader:
    """Turns the bytes of one server log into events, in order; the same bytes always give the same events.

    Lines get their time from vLLM's own stamps (whole seconds, local time, no year); a line without a stamp
    has the time of the line before it. `started_at` (seconds since the epoch) is the launch, `utc_offset` the
    seconds that local time was ahead of UTC then. Lines are clean, without our own secrets.
    """

    def __init__(self, started_at: float, utc_offset: float) -> None:
        self._secrets, self._may_have_secrets = read_own_secrets(), False
        self._at, self._offset = started_at, utc_offset
        self._rest, self._is_overlong = b"", False
        self._stamp = ""
        self._begun = self._exception_ignored = False
        self._phases, self._facts = PhaseReader(), FactReader()

    def feed(self, chunk: bytes) -> list[AnyEvent]:
        """Return the events of the lines that `chunk` completes."""
        events: list[AnyEvent] = []
        data = (self._rest + chunk).replace(b"\r", b"\n")
        if self._is_overlong:  # nobody is shown more of a line than its beginning, which was read
            _, end, data = data.partition(b"\n")
            self._is_overlong = not end
        whole, _, self._rest = data.rpartition(b"\n")
        self._may_have_secrets = self._secrets.occurs_in(whole)
        lines = whole.decode(errors="replace").split("\n")
        if len(self._rest) > _BUFFER_LIMIT:
            lines.append(self._rest.decode(errors="replace"))
            self._rest, self._is_overlong = b"", True
        self._begin_import(events)
        read_line = self._read_line
        for line in lines:
            if line:
                read_line(line, None, events)
        return events

    def feed_line(self, raw: str, at: float | None = None) -> list[AnyEvent]:
        """Return the events of one line; `at` overrides the time stamp of the line."""
        events: list[AnyEvent] = []
        self._begin_import(events)
        self._may_have_secrets = self._secrets.occurs_in(raw.encode(errors="surrogatepass"))
        self._read_line(raw, at, events)
        return events

    @property
    def up(self) -> bool:
        """Whether the log has said that the server is up."""
        return self._phases.up

    def _begin_import(self, events: list[AnyEvent]) -> None:
        if not self._begun:
            self._begun = True
            events.append(PhaseStarted(self._at, Phase.IMPORT))

    def _read_line(self, raw: str, at: float | None, events: list[AnyEvent]) -> None:
        plain = not self._may_have_secrets and raw.isascii() and raw.isprintable() and len(raw) <= LINE_LIMIT
        text = raw if plain else clean_line(raw)
        prefix = _PREFIX.match(text)
        assert prefix is not None  # noqa: S101 - every part of it is optional
        body = text[prefix.end() :].rstrip()
        if not body:
            return
        level, stamp, source = prefix.groups("")
        if at is not None:
            self._at = at
        elif stamp and stamp != self._stamp:  # most lines come in the same second as the one before
            self._stamp = stamp
            self._at = max(self._at, self._parse_stamp(stamp))
        if self._phases.up:
            events.append(LogLine(self._at, body, _intern_name(level), _intern_name(source)))
        else:
            self._read_startup_line(body, level, source, events)
        if level in _PROBLEM_LEVELS:
            self._detect_problem(body, events)

    def _read_startup_line(self, body: str, level: str, source: str, events: list[AnyEvent]) -> None:
        """Append the events of a line while the server starts; a progress bar is logged only when it is complete."""
        if phase := self._phases.read_line(body):
            events.append(PhaseStarted(self._at, phase))
        bar = parse_progress(body, self._at, self._phases.phase)
        if bar is None or bar.done == bar.total:
            events.append(LogLine(self._at, body, _intern_name(level), _intern_name(source)))
        if bar is not None:
            events.append(bar)
        else:
            events.extend(self._facts.read_line(body, self._at, self._phases.phase))

    def _parse_stamp(self, stamp: str) -> float:
        """Return the time of `MM-DD HH:MM:SS`; it has no year, so the one that is nearest to the line before."""
        year = time.gmtime(self._at + self._offset).tm_year
        candidates = []
        for candidate in (year - 1, year, year + 1):
            with contextlib.suppress(ValueError):  # the 29th of February
                parsed = time.strptime(f"{candidate}-{stamp}", "%Y-%m-%d %H:%M:%S")
                candidates.append(calendar.timegm(parsed) - self._offset)
        return min(candidates, key=lambda at: abs(at - self._at), default=self._at)

    def _detect_problem(self, body: str, events: list[AnyEvent]) -> None:
        if body.startswith("Exception ignored in"):
            self._exception_ignored = True
            return
        if body.startswith("    "):  # the source lines of a traceback
            return
        text = body.strip()
        kind = _recognize_cached(text)
        headline = bool(_EXCEPTION.match(text))
        if self._exception_ignored and headline:
            self._exception_ignored = False
        elif kind or headline:
            events.append(Problem(self._at, text, kind))
