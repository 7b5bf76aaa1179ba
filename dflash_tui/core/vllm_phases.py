"""Which line of vLLM's log begins or ends which phase of a start. Pure; holds for vLLM 0.20 to 0.33.

The patterns are matched at the beginning of a line's text. What lies between a line that ends a phase and the line
that begins the next one is unattributed: the log does not say what it was.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dflash_tui.core.events import Phase

TAG = r"(?:\[[\w./:-]+\] )?"
_SHARDS = r"(?:Multi-thread loading|Loading) [^:]{3,80}?: +\d+% Completed"
_CAPTURING = r"Capturing (?:model for .*speculator\.\.\.|CUDA graphs \()"


class Mark(NamedTuple):
    """A line that moves a start on: the phase that it begins, and the phases that it moves on from (empty: any)."""

    to: Phase
    pattern: str
    only_from: frozenset[Phase] = frozenset()


def _from(*phases: Phase) -> frozenset[Phase]:
    return frozenset(phases)


# The engine process imports everything again before it says a word; the last lines of resolving are where it starts.
_RESOLVED = (
    r"Enforce eager set, disabling torch\.compile|Asynchronous scheduling is |Final IR op priority after setting|"
    r"Cudagraph is disabled under eager mode|max_num_scheduled_tokens is set to "
)
_COMPILING = (
    rf"Warming up model for the compilation|{TAG}(?:Starting torch\.compile|Using cache directory: .+ for vLLM's torch|"
    r"Dynamo bytecode transform time: |Cache the graph of compile range |Compiling a graph for compile range |"
    r"Compiling model again due to a load failure|Directly load (?:the compiled graph|AOT compilation))"
)
_AUTOTUNING = (
    r"Using FlashInfer (?:managed )?autotune cache|Running FlashInfer (?:BF16-only )?autotune with |"
    r"Autotuning FlashInfer |\[AutoTuner\]: Tuning |[\d: ,-]+- INFO - .*\[Autotuner\]: Autotuning process starts"
)
_AUTOTUNED = (
    r"Skipping FlashInfer autotune because|No FlashInfer autotune cache entries found|"
    r"[\d: ,-]+- INFO - .*\[Autotuner\]: Autotuning process ends"
)
_WARMING = (
    r"JIT kernel warmup starting\.|Warming up (?!model for|done)|CUDA graph pool memory: |"
    r"Graph capturing finished in |Free memory on device \("
)
_WARM = r"JIT kernel warmup finished in |Kernel JIT monitor activated|CuTeDSL warmup compiled "

MARKS: tuple[Mark, ...] = (
    Mark(Phase.RESOLVE, r"vLLM (?:API )?server version \S+|[^\w]*█.*\bversion \d\S*$|non-default args: "),
    Mark(Phase.RESOLVE, r"Resolved architecture: \S"),
    Mark(Phase.ENGINE, _RESOLVED, _from(Phase.RESOLVE)),
    Mark(Phase.ENGINE, r"Initializing a V1 LLM engine \(v"),
    Mark(Phase.WEIGHTS, r"Starting to load model .+\.\.\.$|Loading model from scratch\.\.\.$"),
    Mark(Phase.DRAFTER, r"Loading drafter model\.\.\.$|Using Eagle3 auxiliary layers from ", _from(Phase.WEIGHTS)),
    Mark(Phase.PROFILE, r"Model loading took [\d.]+ GiB"),
    Mark(Phase.COMPILE, _COMPILING),
    Mark(Phase.UNATTRIBUTED, r"Warming up done\.$", _from(Phase.COMPILE)),
    Mark(Phase.PROFILE, rf"{TAG}torch\.compile took |{TAG}Initial profiling/warmup run took ", _from(Phase.COMPILE)),
    Mark(Phase.PROFILE, r"Profiling CUDA graph memory: |Estimated CUDA graph memory: "),
    Mark(Phase.KV_CACHE, r"Available KV cache memory: |[A-Z]+ KV cache size: |Explicitly set \(.* for KV cache"),
    Mark(Phase.AUTOTUNE, _AUTOTUNING),
    Mark(Phase.UNATTRIBUTED, _AUTOTUNED, _from(Phase.AUTOTUNE)),
    Mark(Phase.GRAPHS, rf"Rank \d+: Torch profiler disabled for CUDA graph capture|{_CAPTURING}"),
    Mark(Phase.JIT, _WARMING),
    Mark(Phase.UNATTRIBUTED, _WARM, _from(Phase.JIT)),
    Mark(Phase.API, r"init engine \(profile, create kv cache, warmup model\) took "),
    Mark(Phase.UP, r"Application startup complete\.$"),
)
_PATTERNS = tuple((mark, re.compile(mark.pattern)) for mark in MARKS)
_SECOND_MODEL = re.compile(rf"Filesystem type for checkpoints: |{_SHARDS}")
_LOADED = re.compile(r"Loading weights took ")
_EAGER = re.compile(r"Enforce eager set, disabling torch\.compile|Initializing a V1 LLM .*\benforce_eager=True")
_DRAFTS = re.compile(r"Initializing a V1 LLM .*\bspeculative_config=SpeculativeConfig\(.*?\bmodel='[^']")

# Nothing goes back from one stage to an earlier one; within the fifth, work alternates.
_STAGE = {Phase.IMPORT: 0, Phase.RESOLVE: 1, Phase.ENGINE: 2, Phase.WEIGHTS: 3, Phase.DRAFTER: 4, Phase.API: 6}
_WORKING = 5
_UP = 7


class Phases:
    """Follows one start through its lines and says when it enters another phase."""

    def __init__(self) -> None:
        self.now = Phase.IMPORT
        self._stage = 0
        self._eager = self._drafts = self._loaded = self._all_in_one = False

    @property
    def up(self) -> bool:
        """Whether the log said that the server serves: no phase follows."""
        return self._stage == _UP

    def take(self, body: str) -> Phase | None:
        """Return the phase that this line begins, or None when it begins no other than the present one."""
        phase = self._phase(body)
        if phase is None or phase is self.now:
            return None
        stage = self._stage if phase is Phase.UNATTRIBUTED else _stage(phase)
        if stage < self._stage:
            return None
        self.now, self._stage = phase, stage
        return phase

    def _phase(self, body: str) -> Phase | None:
        if _EAGER.match(body):
            self._eager = True
        elif _DRAFTS.match(body):
            self._drafts = True
        elif _LOADED.match(body):
            self._loaded = True
        elif self._loaded and self._drafts and self.now is Phase.WEIGHTS and _SECOND_MODEL.match(body):
            return Phase.DRAFTER  # the V2 model runner does not say that it loads the drafter
        for mark, pattern in _PATTERNS:
            if (not mark.only_from or self.now in mark.only_from) and pattern.match(body):
                return self._meant(mark.to, body)
        return None

    def _meant(self, phase: Phase, body: str) -> Phase | None:
        """Return what a mark means in this start, or None for nothing."""
        if body.startswith("Model loading took "):
            # A profile run follows; its first pass compiles, unless the mode is eager.
            return Phase.PROFILE if self._eager else Phase.COMPILE
        if body.startswith("Warming up model for the compilation"):
            self._all_in_one = True
        elif body.startswith("Warming up done."):
            self._all_in_one = False
        elif phase is Phase.PROFILE and self._all_in_one and self.now is Phase.COMPILE:
            return None  # on a CPU one warm-up compiles the parts one after the other
        return phase


def _stage(phase: Phase) -> int:
    return _UP if phase is Phase.UP else _STAGE.get(phase, _WORKING)
