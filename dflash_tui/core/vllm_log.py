"""The log of `vllm serve` -> events. Pure; holds for vLLM 0.18 to 0.33.

Up to 0.30 a wrapper of stdout puts `(EngineCore pid=123)` before every line, later the log formatter does so
and tracebacks and uvicorn's lines carry nothing. Progress bars end in a carriage return. Source files and
line numbers in brackets change with every release and are never matched.
"""

from __future__ import annotations

import calendar
import re
import time

from dflash_tui.core.events import (
    AnyEvent,
    LogLine,
    Phase,
    PhaseStarted,
    Problem,
    Progressed,
    Stated,
)
from dflash_tui.core.failures import recognise

LINE_LIMIT = 2000
_BUFFER_LIMIT = 1 << 20
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
# Control characters, and the marks that reorder or hide text on a terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_PROCESS = r"(?:\([^()]*?pid=\d+[^()]*\)\s*)"
_PREFIX = re.compile(
    rf"^{_PROCESS}*(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<stamp>\d\d-\d\d \d\d:\d\d:\d\d) "
    rf"\[(?P<source>[^\]]+?):\d+\]\s?|(?P<uvicorn>INFO|WARNING|ERROR|CRITICAL): +)?{_PROCESS}?"
)
_TAG = r"^(?:\[[\w./:-]+\] )?"

_MARKS: tuple[tuple[Phase, re.Pattern[str]], ...] = tuple(
    (phase, re.compile(pattern))
    for phase, pattern in (
        (Phase.CONFIG, r"^vLLM (?:API )?server version \S+|█.*\bversion \d\S*\s*$|^non-default args: "),
        (Phase.ENGINE, r"^Initializing a V1 LLM engine \(v[^)]+\) with config:"),
        (Phase.WEIGHTS, r"^(?:Starting to load model .+\.\.\.|Loading model from scratch\.\.\.)"),
        (Phase.PROFILE, r"^Model loading took [\d.]+ GiB"),
        (Phase.COMPILE, r"^Warming up model for the compilation|"
                        rf"{_TAG}Using cache directory: .+ for vLLM's torch\.compile|"
                        rf"{_TAG}Dynamo bytecode transform time: |{_TAG}Compiling a graph for compile range |"
                        rf"{_TAG}Directly load (?:the compiled graph|AOT compilation)"),
        (Phase.KV_CACHE, r"^Available KV cache memory: |^[A-Z]+ KV cache size: "),
        (Phase.WARMUP, r"\[Autotuner\]: Autotuning process starts|^\[AutoTuner\]: Tuning |"
                       r"^(?:Running|Skipping) FlashInfer autotune"),
        (Phase.GRAPHS, r"^Capturing CUDA graphs \(|^Capturing model for .*speculator\.\.\."),
        (Phase.API, r"^init engine \(profile, create kv cache, warmup model\) took "),
        (Phase.READY, r"^Application startup complete\.$"),
    )
)  # fmt: skip
_STATED: tuple[tuple[str, str, re.Pattern[str]], ...] = tuple(
    (name, unit, re.compile(pattern))
    for name, unit, pattern in (
        ("checkpoint_size", "GiB", r"^Filesystem type for checkpoints: .*Checkpoint size: ([\d.]+) GiB"),
        ("weights_download", "s", r"^Time spent downloading weights for .+: ([\d.]+) seconds"),
        ("weights_loading", "s", r"^Loading weights took ([\d.]+) seconds"),
        ("model_memory", "GiB", r"^Model loading took ([\d.]+) GiB"),
        ("dynamo", "s", rf"{_TAG}Dynamo bytecode transform time: ([\d.]+) s"),
        ("torch_compile", "s", rf"{_TAG}torch\.compile took ([\d.]+) s in total"),
        ("kv_cache_memory", "GiB", r"^Available KV cache memory: (-?[\d.]+) GiB"),
        ("kv_cache_size", "tokens", r"^[A-Z]+ KV cache size: ([\d,]+) tokens"),
        ("graph_capture", "s", r"^Graph capturing finished in (\d+) secs"),
        ("init_engine", "s", r"^init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s"),
    )
)
_BARS: tuple[tuple[Phase, re.Pattern[str]], ...] = (
    (
        Phase.WEIGHTS,
        re.compile(r"^(?:Multi-thread loading|Loading) [^:]{3,80}?: +\d+% Completed \| (\d+)/(\d+)"),
    ),
    (Phase.GRAPHS, re.compile(r"^Capturing CUDA graphs \([^)]*\): +\d+%\|.*?\| *(\d+)/(\d+)")),
)
_EAGER = re.compile(r"^Enforce eager set, disabling torch\.compile|^Initializing a V1 LLM .*\benforce_eager=True")
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w]*\.)*[A-Z]\w*(?:Error|Exception|NotFound|Interrupt)(?:: .+)?$|"
                        r"^(?:\w+: )?Value error, |^Input should be ")  # fmt: skip


def clean(line: str) -> str:
    """Return `line` without escape sequences and control characters, cut at `LINE_LIMIT` characters."""
    text = _CONTROL.sub("", _ESCAPES.sub("", line)).expandtabs(4).rstrip()
    return text if len(text) <= LINE_LIMIT else text[: LINE_LIMIT - 1] + "…"


class LogReader:
    """Turns the bytes of one server log into events, in order; the same bytes always give the same events.

    Lines get their time from vLLM's own stamps (whole seconds, local time, no year); a line without a stamp
    has the time of the line before it. `started_at` (seconds since the epoch) is the launch, `utc_offset` the
    seconds that local time was ahead of UTC then.
    """

    def __init__(self, started_at: float, utc_offset: float) -> None:
        self._at, self._started, self._offset = started_at, started_at, utc_offset
        self._rest = b""
        self._seen: set[Phase] = set()
        self._eager = False
        self._exception_ignored = False

    def feed(self, chunk: bytes) -> list[AnyEvent]:
        """Return the events of the lines that `chunk` completes."""
        events = self._begin()
        *lines, self._rest = re.split(rb"[\r\n]", self._rest + chunk)
        if len(self._rest) > _BUFFER_LIMIT:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            events += self.line(line.decode(errors="replace"))
        return events

    def line(self, raw: str, at: float | None = None) -> list[AnyEvent]:
        """Return the events of one line; `at` replaces the time that the line's own stamp says."""
        events = self._begin()
        text = clean(raw)
        prefix = _PREFIX.match(text)
        body = text[prefix.end() :] if prefix else text
        if not body:
            return events
        stamp = prefix["stamp"] if prefix else None
        self._at = at if at is not None else max(self._at, self._epoch(stamp) if stamp else self._at)
        level = (prefix["level"] or prefix["uvicorn"] or "") if prefix else ""
        source = (prefix["source"] or "") if prefix else ""
        bar = self._bar(body)
        events += self._phase(body)
        if bar is None or bar.done == bar.total:
            events.append(LogLine(self._at, body, level, source))
        if bar is not None:
            events.append(bar)
        events += self._stated(body)
        events += self._problem(body, level)
        return events

    def _begin(self) -> list[AnyEvent]:
        return [] if self._seen else [self._enter(Phase.IMPORT)]

    def _epoch(self, stamp: str) -> float:
        """Return the time of `MM-DD HH:MM:SS`; it has no year, so the one that does not precede the launch."""
        year = time.gmtime(self._started + self._offset).tm_year
        for candidate in (year, year + 1):
            try:
                parsed = time.strptime(f"{candidate}-{stamp}", "%Y-%m-%d %H:%M:%S")
            except ValueError:
                continue
            at = calendar.timegm(parsed) - self._offset
            if at > self._started - 86_400:
                return at
        return self._at

    def _enter(self, phase: Phase) -> PhaseStarted:
        self._seen.add(phase)
        return PhaseStarted(self._at, phase)

    def _phase(self, body: str) -> list[AnyEvent]:
        if Phase.READY in self._seen:
            return []
        self._eager = self._eager or bool(_EAGER.search(body))
        for phase, pattern in _MARKS:
            if not pattern.search(body):
                continue
            # What follows the loading of the weights is tracing and compiling, or in eager mode a profile run.
            actual = Phase.COMPILE if phase is Phase.PROFILE and not self._eager else phase
            return [] if actual in self._seen else [self._enter(actual)]
        return []

    def _bar(self, body: str) -> Progressed | None:
        for phase, pattern in _BARS:
            if match := pattern.search(body):
                return Progressed(self._at, phase, int(match[1]), int(match[2]))
        return None

    def _stated(self, body: str) -> list[AnyEvent]:
        return [
            Stated(self._at, name, float(match[1].replace(",", "")), unit)
            for name, unit, pattern in _STATED
            if (match := pattern.search(body))
        ]

    def _problem(self, body: str, level: str) -> list[AnyEvent]:
        if body.startswith("Exception ignored in"):
            self._exception_ignored = True
            return []
        if level not in {"", "ERROR", "CRITICAL"}:
            return []
        if body.startswith("    "):  # the source lines of a traceback
            return []
        text = body.strip()
        kind = recognise(text)
        headline = bool(_EXCEPTION.match(text))
        if self._exception_ignored and headline:
            self._exception_ignored = False
            return []
        return [Problem(self._at, text, kind)] if kind or headline else []
