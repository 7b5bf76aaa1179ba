"""Follow the phases of a start through the lines of vLLM's log. Pure; holds for vLLM 0.20 to 0.33.

The patterns are in `log_patterns`. Time between a line that ends a phase and the line that begins the next one is
unattributed: the log does not say what happened.
"""

from __future__ import annotations

import re

from dflash_tui.events import Phase
from dflash_tui.vllm_output import log_patterns

_PATTERNS = tuple((mark, re.compile(mark.pattern)) for mark in log_patterns.MARKS)
_SECOND_MODEL = re.compile(rf"{log_patterns.CHECKPOINT}|{log_patterns.SHARDS}")
_MODEL_LOADED = re.compile(log_patterns.MODEL_LOADED)
_COMPILING_ALL, _COMPILED_ALL = re.compile(log_patterns.COMPILING_ALL), re.compile(log_patterns.COMPILED_ALL)
_LOADED = re.compile(log_patterns.LOADED)
_UNCOMPILED = re.compile(
    rf"{log_patterns.NOT_COMPILED}|Initializing a V1 LLM .*\b(?:enforce_eager=True|CompilationMode\.NONE)"
)
_HAS_DRAFTER = re.compile(r"Initializing a V1 LLM .*\bspeculative_config=SpeculativeConfig\(.*?\bmodel='[^']")

# A start never goes back to an earlier stage; within the fifth, phases alternate.
_STAGE = {
    Phase.IMPORT: 0,
    Phase.RESOLVE: 1,
    Phase.ENGINE: 2,
    Phase.RANKS: 2,
    Phase.WEIGHTS: 3,
    Phase.DRAFTER: 4,
    Phase.API: 6,
}
_WORKING_STAGE = 5
_UP_STAGE = 7


class PhaseReader:
    """Follows one start through the lines of its log and reports when it enters another phase."""

    def __init__(self) -> None:
        self.phase = Phase.IMPORT
        self._stage = 0
        self._uncompiled = self._drafts = self._loaded = self._all_in_one = False

    @property
    def up(self) -> bool:
        """Whether the log said that the server is up: no phase follows."""
        return self._stage == _UP_STAGE

    def read_line(self, body: str) -> Phase | None:
        """Return the phase that a line begins, or None when the phase stays the same."""
        phase = self._match_phase(body)
        if phase is None or phase is self.phase:
            return None
        stage = self._stage if phase is Phase.UNATTRIBUTED else _stage_of_phase(phase)
        if stage < self._stage:
            return None
        self.phase, self._stage = phase, stage
        return phase

    def _match_phase(self, body: str) -> Phase | None:
        if _UNCOMPILED.match(body):
            self._uncompiled = True
        elif _HAS_DRAFTER.match(body):
            self._drafts = True
        elif _LOADED.match(body):
            self._loaded = True
        elif self._loaded and self._drafts and self.phase is Phase.WEIGHTS and _SECOND_MODEL.match(body):
            return Phase.DRAFTER  # the V2 model runner does not say that it loads the drafter
        for mark, pattern in _PATTERNS:
            if (not mark.only_from or self.phase in mark.only_from) and pattern.match(body):
                return self._resolve_mark(mark.to, body)
        return None

    def _resolve_mark(self, phase: Phase, body: str) -> Phase | None:
        """Return the phase that a mark begins in this start, or None for no other."""
        if _MODEL_LOADED.match(body):
            # A profile run follows; its first pass compiles, unless nothing is compiled.
            return Phase.PROFILE if self._uncompiled else Phase.COMPILE
        if phase is Phase.COMPILE and self._uncompiled:
            # The same words where nothing is compiled: one pass, before it is known how much memory is left, or after.
            return Phase.JIT if self.phase is Phase.KV_CACHE else Phase.PROFILE
        if _COMPILING_ALL.match(body):
            self._all_in_one = True
        elif _COMPILED_ALL.match(body):
            self._all_in_one = False
        elif phase is Phase.PROFILE and self._all_in_one and self.phase is Phase.COMPILE:
            return None  # on a CPU one warm-up compiles the parts one after the other
        return phase


def _stage_of_phase(phase: Phase) -> int:
    return _UP_STAGE if phase is Phase.UP else _STAGE.get(phase, _WORKING_STAGE)
