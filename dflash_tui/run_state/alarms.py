"""What is wrong with a running server, from its samples alone. Pure: every observer comes to the same alarms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple, TypeVar

from dflash_tui.common.formatting import (
    GIB,
    format_duration,
    format_gib,
    format_number,
    format_percent,
    format_usage,
    pluralize,
)
from dflash_tui.events import PROBE, Counters, GpuLoad, Health
from dflash_tui.run_state.counters import MAX_GAP, CounterReading
from dflash_tui.run_state.retention import ThinnedSeries, Timestamped
from dflash_tui.run_state.state import RunState

T = TypeVar("T", bound=Timestamped)

# A request that runs makes a token now and then; the first one may have to wait for kernels to be compiled.
HANG_SECONDS = 60.0
_FIRST_REQUEST_HANG_SECONDS = 300.0
_RECENT_SECONDS = 60.0
_BASELINE_SECONDS = 3600.0
_COLLAPSE_RATIO = 0.4
_USELESS_ACCEPTANCE_LENGTH = 1.05
_MIN_STEPS, _MIN_BASELINE_STEPS, _MIN_TOKENS = 30, 100, 64
_PREEMPTION_WINDOW = 300.0
_THROTTLING_SECONDS = 10.0
_HARD_THROTTLE_REASONS = frozenset({"power brake", "thermal (hardware)", "thermal (software)", "hardware slowdown"})
# Most GPUs run into their power cap at full load; it matters when it costs this much of the clock.
_POWER_CAP_CLOCK_RATIO = 0.7
_LOW_MEMORY, _LOW_MEMORY_SHARE = GIB, 0.04
_MIN_FOREIGN_MEMORY = GIB // 2
_MAX_SAMPLES_BACK = 1000


class Alarm(NamedTuple):
    """Something wrong: its kind, since when, what it is, the figures that show it and what to do about it."""

    kind: str
    since: float
    what: str
    evidence: str
    do: str


def find_alarms(state: RunState, now: float) -> list[Alarm]:
    """Return what is wrong with a server at `now`, the worst first; one alarm of each kind."""
    if state.exit is not None or state.stopping:
        return []
    found: dict[str, Alarm] = {}
    for rule in _RULES:
        if alarm := rule(state, now):
            found.setdefault(alarm.kind, alarm)
    return list(found.values())


def _check_suspension(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - every rule is given both
    if not (stopped := state.suspended) or not stopped.pids:
        return None
    pids = " ".join(map(str, stopped.pids))
    what = "the server is suspended by a signal"
    return Alarm("hang", stopped.at, what, f"SIGSTOP or the like to pid {pids}", f"`kill -CONT {pids}` lets it go on")


def _check_health(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    worked = state.warm_at is not None or (state.launched is None and bool(state.readings))
    if state.health is not Health.UNHEALTHY or not worked:
        return None
    do = f"the log may say why{_stop_hint(state, '; if it stays so: S stops the server')}"
    return Alarm("hang", state.health_at, "the server does not answer", state.health_detail, do)


def _check_metrics(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    """The server is well, but what it counts cannot be read; the charts have a hole meanwhile."""
    if state.health not in {Health.HEALTHY, Health.WARM} or not state.health_detail:
        return None
    what, do = "the server's counters cannot be read", "figures are unknown until they can; the log may say why"
    return Alarm("metrics", state.health_at, what, state.health_detail, do)


def _check_token_flow(state: RunState, now: float) -> Alarm | None:
    """Requests run and no token comes."""
    last = _latest_reading(state, now)
    if last is None or not last.counters.running:
        return None
    made = last.counters.generated
    since = _condition_start(state.readings, lambda r: r.counters.running > 0 and r.counters.generated == made)
    if now - since < (HANG_SECONDS if state.warm_at is not None else _FIRST_REQUEST_HANG_SECONDS):
        return None
    evidence = f"{pluralize(last.counters.running, 'request')} running, no token for {format_duration(now - since)}"
    do = f"a very long prompt looks the same at first; if it stays so the engine hangs{_stop_hint(state)}"
    return Alarm("hang", since, "no token comes", evidence, do)


def _check_idle_probe(state: RunState, now: float) -> Alarm | None:
    """A server that rested was asked for a token, in vain."""
    probe = next((done for done in reversed(state.requests) if done.kind == PROBE), None)
    if probe is None or not probe.error:
        return None
    after = state.readings.between(probe.at, now)
    if after and after.tok_s > 0:
        return None
    do = f"the engine hangs although /health answers{_stop_hint(state)}"
    return Alarm("hang", probe.at - probe.total, "an idle server did not answer a probe", probe.error, do)


def _check_memory(state: RunState, now: float) -> Alarm | None:
    """The machine's memory, from which the server takes its own, runs out."""

    def scarce(left: int | None, total: int) -> bool:
        return left is not None and left < max(_LOW_MEMORY, total * _LOW_MEMORY_SHARE)

    last = state.memory.held(now, MAX_GAP)
    if last is None or not scarce(last.available, last.total):
        return None
    since = _condition_start(state.memory, lambda sample: scarce(sample.available, sample.total))
    evidence = (
        f"{format_gib(last.available)} of {format_gib(last.total)} left; at 0 the system kills the largest process"
    )
    return Alarm("memory", since, "memory is nearly used up", evidence, "end other programs, or lower the KV cache")


def _check_acceptance(state: RunState, now: float) -> Alarm | None:
    """Acceptance is far below what it was."""
    recent = state.window(_RECENT_SECONDS, now)
    if recent is None or recent.acceptance is None or recent.steps < _MIN_STEPS:
        return None
    before = state.readings.between(now - _BASELINE_SECONDS, now - _RECENT_SECONDS)
    known = before is not None and before.acceptance is not None and before.steps >= _MIN_BASELINE_STEPS
    usual = before.acceptance if before and known else None
    limit = usual * _COLLAPSE_RATIO if usual is not None else 0.0
    if recent.acceptance >= limit and (recent.acceptance_length or 0) >= _USELESS_ACCEPTANCE_LENGTH:
        return None
    since = now
    while since > now - _BASELINE_SECONDS:
        earlier = state.readings.between(since - 10 - _RECENT_SECONDS, since - 10)
        if earlier is None or earlier.acceptance is None or earlier.acceptance >= max(limit, 1e-9):
            break
        since -= 10
    evidence = f"{format_percent(recent.acceptance, 1)} in the last minute, {format_percent(usual, 1)} before"
    do = "other prompts or a higher temperature do this; if neither changed, suspect the prefix cache or the drafter"
    return Alarm("acceptance", since - _RECENT_SECONDS / 2, "acceptance has collapsed", evidence, do)


def _check_speculation(state: RunState, now: float) -> Alarm | None:
    """Speculation was asked for, and tokens are made without it."""
    wanted = state.launched.num_speculative_tokens if state.launched else None
    end = state.readings.end(now)
    after, before = (state.readings.at(t) if t is not None else None for t in (end, end and end - _RECENT_SECONDS))
    if not wanted or after is None or before is None:
        return None
    # The first token of each request comes from the prompt.
    made = after.generated - before.generated - (after.finished - before.finished)
    drafted = _tokens_from_drafts(after) - _tokens_from_drafts(before)
    if made < _MIN_TOKENS or drafted >= made / 2:
        return None
    evidence = f"{made:.0f} tokens in the last minute, {drafted:.0f} of them from steps with a draft"
    do = "some sampling parameters switch it off for their requests, as does a large batch; the log may say so"
    return Alarm("speculation", now - _RECENT_SECONDS, "speculative decoding is off", evidence, do)


def _tokens_from_drafts(counters: Counters) -> float:
    return (counters.steps or 0.0) + (counters.accepted or 0.0)


def _check_throttling(state: RunState, now: float) -> Alarm | None:
    def limits(gpus: tuple[GpuLoad, ...]) -> list[tuple[GpuLoad, str]]:
        return [(gpu, why) for gpu in gpus if (why := _throttle_reasons(gpu))]

    last = state.gpus.held(now, MAX_GAP)
    if last is None or not (held := limits(last.gpus)):
        return None
    since = _condition_start(state.gpus, lambda sample: bool(limits(sample.gpus)))
    if now - since < _THROTTLING_SECONDS:
        return None
    evidence = "; ".join(f"GPU {gpu.index}: {_describe_throttling(gpu, why)}" for gpu, why in held)
    return Alarm("throttling", since, "the GPU is throttled", evidence, "look after cooling and power supply")


def _describe_throttling(gpu: GpuLoad, why: str) -> str:
    clock = format_usage(gpu.clock_mhz, gpu.clock_max_mhz, "MHz") if gpu.clock_mhz is not None else ""
    heat = format_number(gpu.temperature_c, 0, "°C") if gpu.temperature_c is not None else ""
    return ", ".join(told for told in (why, clock, heat) if told)


def _throttle_reasons(gpu: GpuLoad) -> str:
    """Return what keeps the clocks down that should not, or nothing."""
    hard = [why for why in gpu.throttle or () if why in _HARD_THROTTLE_REASONS]
    slow = gpu.clock_mhz and gpu.clock_max_mhz and gpu.clock_mhz < _POWER_CAP_CLOCK_RATIO * gpu.clock_max_mhz
    if slow and "power cap" in (gpu.throttle or ()):
        hard.append("power cap")
    return ", ".join(hard)


def _check_preemptions(state: RunState, now: float) -> Alarm | None:
    recent = state.window(_PREEMPTION_WINDOW, now)
    if recent is None or recent.preemptions < 1:
        return None
    total = state.readings[-1].counters.preemptions
    since = _condition_start(state.readings, lambda reading: reading.counters.preemptions > total - recent.preemptions)
    evidence = (
        f"{recent.preemptions:.0f} in {format_duration(recent.seconds)}: the KV cache is full, work is done again"
    )
    do = "send fewer requests at once, or give the KV cache more room (max-model-len, gpu-memory-utilization)"
    return Alarm("preemptions", since, "requests are preempted", evidence, do)


def _check_foreign_load(state: RunState, now: float) -> Alarm | None:
    last = state.gpus.held(now, MAX_GAP)
    others = {process.pid: process for gpu in (last.gpus if last else ()) for process in gpu.foreign or ()
              if (process.memory or 0) >= _MIN_FOREIGN_MEMORY}  # fmt: skip
    if not others:
        return None

    def there(gpus: tuple[GpuLoad, ...]) -> bool:
        return any(process.pid in others for gpu in gpus for process in gpu.foreign or ())

    since = _condition_start(state.gpus, lambda sample: there(sample.gpus))
    names = ", ".join(f"{p.name or 'a process'} (pid {p.pid}) holds {format_gib(p.memory)}" for p in others.values())
    return Alarm("foreign load", since, "somebody else uses the GPU", names, "figures suffer while it works there")


def _check_slow_cycle(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    if (found := state.finished.cycle) is None:
        return None
    do = {
        "acceptance length": "suspect the drafter's context: try without prefix caching, or a later vLLM",
        "steps/s": "suspect clocks, memory or other load: see the GPU chart",
    }.get(found.cause, "compare AL and steps/s of fast and slow requests")
    return Alarm("cycle", found.since, str(found), found.evidence, do)


_RULES: tuple[Callable[[RunState, float], Alarm | None], ...] = (
    _check_suspension,
    _check_health,
    _check_token_flow,
    _check_idle_probe,
    _check_metrics,
    _check_memory,
    _check_speculation,
    _check_acceptance,
    _check_throttling,
    _check_preemptions,
    _check_slow_cycle,
    _check_foreign_load,
)


def _stop_hint(state: RunState, how: str = ": S stops it") -> str:
    """Return what to say of the key that stops a server, which none has that we did not launch."""
    return how if state.launched else ""


def _latest_reading(state: RunState, now: float) -> CounterReading | None:
    return state.readings.held(now, MAX_GAP)


def _condition_start(samples: ThinnedSeries[T], true: Callable[[T], bool]) -> float:
    """Return the time of the first of the last samples for all of which something holds, a thousand at most."""
    return min(_times_while(samples, true), default=samples[-1].at)


def _times_while(samples: ThinnedSeries[T], true: Callable[[T], bool]) -> Iterator[float]:
    for sample in islice(reversed(samples), _MAX_SAMPLES_BACK):
        if not true(sample):
            return
        yield sample.at
