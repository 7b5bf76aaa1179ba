"""The start of one server, folded from its events, and whether a silent start works or has stalled. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from dflash_tui.events import (
    GREEDY_WARM_UP,
    LONG_WARM_UP,
    WARM_UP,
    Activity,
    AnyEvent,
    Compiled,
    Health,
    HealthChanged,
    Noted,
    Phase,
    PhaseStarted,
    Progressed,
    RequestDone,
)

_MAX_ACTIVITIES = 30
_MAX_FACTS_PER_NAME = 4


class PhaseSpan(NamedTuple):
    """A phase of a start: when it first began, its total seconds so far, and whether it is finished."""

    phase: Phase
    began: float
    seconds: float
    finished: bool


@dataclass
class Startup:
    """The start of one server; only `apply` changes it. Times are in seconds since the epoch."""

    phase_changes: list[PhaseStarted] = field(default_factory=list)
    """Each time a phase was entered; a phase may be entered more than once."""
    progress_bars: dict[tuple[Phase, str], Progressed] = field(default_factory=dict)
    """The latest state of each progress bar, by phase and label."""
    facts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What the log says that the server uses, by name: attention backend, sampler, model runner …"""
    compiled: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """The seconds of each torch.compile step, by part of the model; None if the log does not say."""
    activities: deque[Activity] = field(default_factory=lambda: deque(maxlen=_MAX_ACTIVITIES))
    """The latest samples of CPU time, disk bytes and log size."""
    healthy_at: float | None = None
    """When /health first answered 200."""
    first_request: RequestDone | None = None
    """The first request that succeeded; until then the last one that failed."""
    greedy_request: RequestDone | None = None
    """The last greedy request before the first request; None if none was sent."""
    long_seconds: float = 0.0
    """The total seconds of the longer prompts sent between the two."""

    @property
    def samplers(self) -> tuple[str, ...]:
        """The samplers that the log names; empty for PyTorch's."""
        return self.facts.get("sampler", ())

    def apply(self, event: AnyEvent) -> None:
        """Update the start by one event; unrelated events are ignored."""
        match event:
            case PhaseStarted():
                self.phase_changes.append(event)
            case Progressed(phase=phase, what=what):
                self.progress_bars[phase, what] = event
            case Noted(name=name, text=text):
                texts = self.facts.get(name, ())
                if text not in texts and len(texts) < _MAX_FACTS_PER_NAME:
                    self.facts[name] = (*texts, text)
            case Compiled(part=part, step=step, seconds=seconds):
                self.compiled.setdefault(part, {})[step] = seconds
            case HealthChanged(health=Health.HEALTHY | Health.WARM, at=at) if self.healthy_at is None:
                self.healthy_at = at
            case RequestDone():
                self._take_request(event)
            case Activity():
                self.activities.append(event)
            case _:
                pass

    def _take_request(self, done: RequestDone) -> None:
        if self.first_request is None or self.first_request.error:
            if done.kind == GREEDY_WARM_UP:
                self.greedy_request, self.long_seconds = done, 0.0
            elif done.kind == LONG_WARM_UP:
                self.long_seconds += done.total
            elif done.kind == WARM_UP:
                self.first_request = done

    @property
    def phase(self) -> Phase | None:
        """The phase that was entered last; None before the launch."""
        return self.phase_changes[-1].phase if self.phase_changes else None

    @property
    def up_at(self) -> float | None:
        """When the log said that the server is up, or None; it may still fail on its first request."""
        return next((change.at for change in self.phase_changes if change.phase is Phase.UP), None)

    @property
    def ready_at(self) -> float | None:
        """When the server was up and had generated once, or None.

        Computed as `up_at` plus the first requests' own seconds, since they may have been sent later.
        """
        if self.up_at is None or self.first_request is None or self.first_request.error:
            return None
        return self.up_at + self.warm_up_seconds + self.first_request.total

    @property
    def warm_up_seconds(self) -> float:
        """The total seconds of the warm-up requests before the first request."""
        return (self.greedy_request.total if self.greedy_request else 0.0) + self.long_seconds

    @property
    def cache(self) -> str:
        """The state of torch.compile's cache: `cached`, `partly cached`, `recompiled`, `cold`; empty while unknown."""
        steps = {step for part in self.compiled.values() for step in part}
        if "again" in steps:
            return "recompiled"
        if "loaded" in steps:
            return "partly cached" if "inductor" in steps else "cached"
        return "cold" if steps & {"inductor", "saved"} else ""

    def spans(self, now: float, ended: float | None = None) -> list[PhaseSpan]:
        """Return the phases in order of first occurrence, unattributed time last.

        The last phase lasts until the server is up, until it `ended`, or until `now`.
        """
        last_end = self.up_at if self.up_at is not None else ended
        changes = [change for change in self.phase_changes if change.phase is not Phase.UP]
        spans: dict[Phase, PhaseSpan] = {}
        for index, change in enumerate(changes):
            end = changes[index + 1].at if index + 1 < len(changes) else last_end
            seconds = max(0.0, (now if end is None else end) - change.at)
            earlier = spans.get(change.phase)
            began, so_far = (earlier.began, earlier.seconds) if earlier else (change.at, 0.0)
            spans[change.phase] = PhaseSpan(change.phase, began, so_far + seconds, end is not None)
        return sorted(spans.values(), key=lambda span: span.phase is Phase.UNATTRIBUTED)


QUIET_SECONDS = 15.0  # a silence of this length is reported
STALL_SECONDS = 30.0  # ... with a warning, unless the processes work or the phase usually takes as long
_SAMPLE_MAX_AGE = 10.0  # seconds; older samples are ignored
_MIN_CORES = 0.1
_MIN_DISK_RATE = 1e6  # bytes per second

_JIT = "it runs kernels of this GPU for the first time and compiles those that are not cached (Triton, nvcc)"
_FLASHINFER = (
    "FlashInfer compiles its sampling kernels with nvcc, one to three minutes the first time on a machine; "
    "VLLM_USE_FLASHINFER_SAMPLER=0 does without them"
)
_LIKELY_CAUSE: dict[Phase, str] = {
    Phase.IMPORT: "it imports torch and vLLM, slowly when the disk is cold or on the network",
    Phase.RESOLVE: "it reads the model's configuration (from the hub, when the model is not here) and imports its code",
    Phase.ENGINE: "the engine process imports everything again, then sets up CUDA and NCCL",
    Phase.RANKS: "it waits for the ranks on the other hosts, which start as slowly; see dflash-tui logs --rank 1",
    Phase.WEIGHTS: "it reads the checkpoint, or downloads it: vLLM shows no progress of a download",
    Phase.DRAFTER: "it reads the drafter's checkpoint, or downloads it: vLLM shows no progress of a download",
    Phase.COMPILE: "Dynamo and Inductor compile the model, for minutes without a line when nothing is cached",
    Phase.PROFILE: "it runs the largest batch once to measure the memory, and compiles the kernels for that",
    Phase.KV_CACHE: "it allocates the KV cache and warms up kernels",
    Phase.AUTOTUNE: "FlashInfer tries its kernels on this GPU",
    Phase.GRAPHS: "it warms up before the first CUDA graph, or captures large ones",
    Phase.JIT: _JIT,
    Phase.API: "it loads the tokenizer and the chat template",
    Phase.UP: "the first request waits for kernels that are compiled for it",
    Phase.UNATTRIBUTED: _JIT,
}


class Silence(NamedTuple):
    """How long a start has logged nothing, and the work of its processes meanwhile."""

    seconds: float
    cores: float | None
    """Cores in use; None if not measured, like `disk`, in bytes per second."""
    disk: float | None
    likely_cause: str
    warning: bool
    """Whether the start seems to have stalled."""


def detect_silence(startup: Startup, last_line: float, now: float, usual: float | None = None) -> Silence | None:
    """Return the silence since the last log line at `last_line`; None while it is short.

    `usual` is the duration of the running phase in earlier starts; if the processes were not measured, there is no
    warning before it is over.
    """
    phase = startup.phase
    # A healthy server logs nothing until it gets a request.
    seconds = now - max(last_line, _log_growth_time(startup), startup.healthy_at or 0.0)
    if phase is None or seconds < QUIET_SECONDS or startup.ready_at is not None:
        return None
    cores, disk = _measure_work(startup, now)
    if cores is not None and disk is not None:
        stalled = cores < _MIN_CORES and disk < _MIN_DISK_RATE
    else:
        in_phase = now - startup.phase_changes[-1].at
        stalled = usual is None or in_phase > usual
    likely_cause = _LIKELY_CAUSE[phase]
    if phase in {Phase.JIT, Phase.UNATTRIBUTED} and startup.facts.get("sampler") == ("FlashInfer",):
        likely_cause = _FLASHINFER
    return Silence(seconds, cores, disk, likely_cause, stalled and seconds >= STALL_SECONDS)


def _log_growth_time(startup: Startup) -> float:
    return max((after.at for before, after in pairwise(startup.activities) if after.log > before.log), default=0.0)


def _measure_work(startup: Startup, now: float) -> tuple[float | None, float | None]:
    """Return the cores and disk bytes per second in use over the last samples; None if these are too old."""
    recent = [sample for sample in startup.activities if now - sample.at <= 2 * _SAMPLE_MAX_AGE]
    if len(recent) < 2 or now - recent[-1].at > _SAMPLE_MAX_AGE:
        return None, None
    first, last = recent[0], recent[-1]
    seconds = max(last.at - first.at, 1e-3)
    # The sums fall when a process exits.
    return max(0.0, last.cpu - first.cpu) / seconds, max(0, last.disk - first.disk) / seconds
