"""What vLLM's log states of a start: figures, what it uses, and the steps of torch.compile. Pure; 0.20 to 0.33.

Which line states what is in `vllm_words`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from dflash_tui.events import AnyEvent, Compiled, Noted, Phase, Progressed, Stated
from dflash_tui.vllm_output import log_patterns

# What a model of two has each: the second is the drafter's.
_PER_MODEL_FIGURES = frozenset({"checkpoint_size", "weights_download", "weights_loading"})

_FIGURES = tuple((name, unit, re.compile(pattern)) for name, unit, pattern in log_patterns.FIGURES)
_NOTES = tuple((name, re.compile(pattern)) for name, pattern in log_patterns.NOTES)
_RUNNERS = tuple((name, re.compile(pattern)) for name, pattern in log_patterns.RUNNERS)
_STEPS = tuple((name, re.compile(pattern)) for name, pattern in log_patterns.STEPS)
_BARS = tuple((phase, re.compile(pattern)) for phase, pattern in log_patterns.BARS)
_ELAPSED = re.compile(r" \[(?:(\d+):)?(\d+):(\d+)[<,]")
_CACHE_FOLDER = re.compile(log_patterns.CACHE_FOLDER)
_DRAFTER_PREFIX = "drafter "


class FactReader:
    """Reads the facts of one start; which model a line means follows from the phase."""

    def __init__(self) -> None:
        self._part = ""
        self._runner = ""
        self._architectures = 0

    def take(self, body: str, at: float, phase: Phase) -> Iterator[AnyEvent]:
        """Yield what this line states."""
        of_drafter = _DRAFTER_PREFIX if phase is Phase.DRAFTER else ""
        for name, unit, pattern in _FIGURES:
            if match := pattern.match(body):
                value = match.groupdict().get("value") or next(group for group in match.groups() if group)
                full = of_drafter + name if name in _PER_MODEL_FIGURES else name
                yield Stated(at, full, float(value.replace(",", "")), unit)
        yield from self._notes(body, at, of_drafter)
        for step, pattern in _STEPS:
            if match := pattern.match(body):
                yield Compiled(at, match["part"] or self._part, step, float(match["s"]) if match["s"] else None)
        if match := _CACHE_FOLDER.match(body):
            # Before 0.32 lines have no tag; the folder of the cache is named after the part.
            self._part = PurePosixPath(match["path"]).name

    def _notes(self, body: str, at: float, of_drafter: str) -> Iterator[AnyEvent]:
        for name, pattern in _NOTES:
            if match := pattern.match(body):
                if name == "architecture":
                    self._architectures += 1
                    of_drafter = _DRAFTER_PREFIX if self._architectures > 1 else ""
                yield Noted(at, of_drafter + name if name != "aux layers" else name, match[1])
        for runner, pattern in _RUNNERS:
            if not self._runner and pattern.match(body):
                self._runner = runner
                yield Noted(at, "model runner", runner)


def parse_progress(body: str, at: float, phase: Phase) -> Progressed | None:
    """Return how far the progress bar in this line is, or None when there is none."""
    for of, pattern in _BARS:
        if match := pattern.match(body):
            clock = _ELAPSED.search(body, match.end())
            seconds = None
            if clock:
                seconds = float(int(clock[1] or 0) * 3600 + int(clock[2]) * 60 + int(clock[3]))
            meant = Phase.DRAFTER if phase is Phase.DRAFTER and of is Phase.WEIGHTS else of
            return Progressed(at, meant, int(match["n"]), int(match["of"]), match["what"], seconds)
    return None
