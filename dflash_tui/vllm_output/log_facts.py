"""Read the facts of a start from vLLM's log: figures, backends, and the steps of torch.compile. Pure; 0.20 to 0.33.

The patterns are in `log_patterns`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from dflash_tui.events import AnyEvent, Compiled, EngineInitialized, Noted, Phase, Progressed, SpeculationLogged, Stated
from dflash_tui.vllm_output import log_patterns, nccl_log

# Figures that target and drafter each have; the second is the drafter's.
_PER_MODEL_FIGURES = frozenset({"checkpoint_size", "weights_download", "weights_loading"})

_FIGURES = tuple((name, unit, re.compile(pattern)) for name, unit, pattern in log_patterns.FIGURES)
_NOTES = tuple((name, re.compile(pattern)) for name, pattern in log_patterns.NOTES)
_RUNNERS = tuple((name, re.compile(pattern)) for name, pattern in log_patterns.RUNNERS)
_STEPS = tuple((name, re.compile(pattern)) for name, pattern in log_patterns.STEPS)
_BARS = tuple((phase, re.compile(pattern)) for phase, pattern in log_patterns.BARS)
_INITIALIZED, _SPECULATION = re.compile(log_patterns.INITIALIZED), re.compile(log_patterns.SPECULATION)
_NUMBER = re.compile(r"\d+(?:\.\d*)?")
_ELAPSED = re.compile(r" \[(?:(\d{1,6}):)?(\d{1,6}):(\d{1,6})[<,]")
# A count of more digits is none of vLLM's: beyond 308 it is no float, beyond 4300 Python reads no number.
_MOST_DIGITS = 18
_CACHE_FOLDER = re.compile(log_patterns.CACHE_FOLDER)
_DRAFTER_PREFIX = "drafter "


class FactReader:
    """Reads the facts of one start; whether a line is about the target or the drafter follows from the phase."""

    def __init__(self) -> None:
        self._part = ""
        self._runner = ""
        self._architectures = 0
        self._nccl, self._network = nccl_log.NetworkLines(), ""

    def read_line(self, body: str, at: float, phase: Phase) -> Iterator[AnyEvent]:
        """Yield the facts that a line states."""
        of_drafter = _DRAFTER_PREFIX if phase is Phase.DRAFTER else ""
        for name, unit, pattern in _FIGURES:
            if match := pattern.match(body):
                value = match.groupdict().get("value") or next(group for group in match.groups() if group)
                full = of_drafter + name if name in _PER_MODEL_FIGURES else name
                if (figure := _read_figure(value.replace(",", ""))) is not None:
                    yield Stated(at, full, figure, unit)
        yield from self._read_notes(body, at, of_drafter)
        for step, pattern in _STEPS:
            if match := pattern.match(body):
                yield Compiled(at, match["part"] or self._part, step, _read_figure(match["s"]))
        if match := _CACHE_FOLDER.match(body):
            # Before 0.32 lines have no tag; the folder of the cache is named after the part.
            self._part = PurePosixPath(match["path"]).name

    def _read_notes(self, body: str, at: float, of_drafter: str) -> Iterator[AnyEvent]:
        for name, pattern in _NOTES:
            if match := pattern.match(body):
                if name == "architecture":
                    self._architectures += 1
                    of_drafter = _DRAFTER_PREFIX if self._architectures > 1 else ""
                yield Noted(at, of_drafter + name if name != "aux layers" else name, "".join(match.groups("")))
        self._nccl.read_line(body)
        if self._nccl.network != self._network:
            self._network = self._nccl.network
            yield Noted(at, nccl_log.FACT, self._network)
        for runner, pattern in _RUNNERS:
            if not self._runner and pattern.match(body):
                self._runner = runner
                yield Noted(at, "model runner", runner)


def parse_initialization(body: str, at: float) -> EngineInitialized | None:
    """Return how long the engine took to initialize, or None when the line is about something else."""
    match = _INITIALIZED.match(body)
    seconds = _read_figure(match["s"]) if match else None
    if match is None or seconds is None:
        return None
    return EngineInitialized(at, seconds, _read_figure(match["compilation"]))


def _read_figure(text: str | None) -> float | None:
    """Return the number in a line; None without one, and for one that is not finite."""
    try:
        figure = float(text) if text else math.inf
    except ValueError:  # it has more than one point, or nothing else
        return None
    return figure if math.isfinite(figure) else None


def parse_speculation(body: str, at: float) -> Iterator[SpeculationLogged]:
    """Yield what a line says of ten seconds of speculation, nothing when it is about something else."""
    if not (match := _SPECULATION.match(body)) or not _are_counts(match["accepted"], match["drafted"]):
        return
    per_position = tuple(map(float, _NUMBER.findall(match["positions"])))
    if all(map(math.isfinite, per_position)):
        length = _read_figure(match["length"])
        yield SpeculationLogged(at, length, int(match["accepted"]), int(match["drafted"]), per_position)


def _are_counts(*texts: str) -> bool:
    return all(len(text) <= _MOST_DIGITS for text in texts)


def parse_progress(body: str, at: float, phase: Phase) -> Progressed | None:
    """Return the state of the progress bar in a line, or None when there is none."""
    for bar_phase, pattern in _BARS:
        if (match := pattern.match(body)) and _are_counts(match["n"], match["of"]):
            elapsed = _ELAPSED.search(body, match.end())
            seconds = None
            if elapsed:
                seconds = float(int(elapsed[1] or 0) * 3600 + int(elapsed[2]) * 60 + int(elapsed[3]))
            of_drafter = phase is Phase.DRAFTER and bar_phase is Phase.WEIGHTS
            return Progressed(
                at, phase if of_drafter else bar_phase, int(match["n"]), int(match["of"]), match["what"], seconds
            )
    return None
