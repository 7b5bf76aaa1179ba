"""Detect that a starting server logs nothing, and tell whether it works, and on what, or has stalled. Pure."""

from __future__ import annotations

from typing import NamedTuple

from dflash_tui.events import Activity, Phase
from dflash_tui.run_state.startup import Startup

QUIET_SECONDS = 15.0  # seconds without a line that are reported
STALL_SECONDS = 30.0  # ... with a warning, unless the processes work or such a start was as quiet before
_SAMPLE_MAX_AGE = 10.0  # seconds; an older sample says nothing about now
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
    """Seconds without a log line, cores and disk bytes per second in use (None if not measured), and the likely cause.

    `warning` is whether the start seems to have stalled.
    """

    seconds: float
    cores: float | None
    disk: float | None
    likely_cause: str
    warning: bool


def detect_silence(startup: Startup, last_line: float, now: float, usual: float | None = None) -> Silence | None:
    """Return the silence since the last log line, or None while it is short.

    Args:
        startup: the start.
        last_line: the time of the last log line, in seconds since the epoch.
        now: the time, in seconds since the epoch.
        usual: the seconds that the running phase took in earlier starts: for as long there is no warning when the
            processes were not measured.
    """
    phase = startup.phase
    # What answers already has nothing to say until it is asked: by who watches, who may have come late.
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
    """Return when the log was last seen to grow; progress bars have no time stamp."""
    grown_at = 0.0
    before: Activity | None = None
    for sample in startup.activities:
        if before is not None and sample.log > before.log:
            grown_at = sample.at
        before = sample
    return grown_at


def _measure_work(startup: Startup, now: float) -> tuple[float | None, float | None]:
    """Return the cores and the disk bytes per second in use over the last samples, or None when they are old."""
    recent = [sample for sample in startup.activities if now - sample.at <= 2 * _SAMPLE_MAX_AGE]
    if len(recent) < 2 or now - recent[-1].at > _SAMPLE_MAX_AGE:
        return None, None
    first, last = recent[0], recent[-1]
    seconds = max(last.at - first.at, 1e-3)
    # The sums of a process that exited are no longer counted.
    return max(0.0, last.cpu - first.cpu) / seconds, max(0, last.disk - first.disk) / seconds
