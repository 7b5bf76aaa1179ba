"""Detect problems of a running server from its recorded samples. Pure: every observer raises the same alarms."""

from __future__ import annotations

import re
from collections.abc import Callable

from dflash_tui.common.formatting import (
    GIB,
    format_duration,
    format_gib,
    format_number,
    format_percent,
    format_usage,
)
from dflash_tui.events import PROBE, Counters, GpuLoad, Health
from dflash_tui.machine.hardware import WITH_FP4
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.run_state import rank_alarms
from dflash_tui.run_state.alarm import Alarm, condition_start, find_token_pause, is_memory_low
from dflash_tui.run_state.counters import MAX_GAP
from dflash_tui.run_state.state import RunState

# A running request generates a token now and then; the first one may have to wait for kernels to be compiled.
HANG_SECONDS = 60.0
_FIRST_REQUEST_HANG_SECONDS = 300.0
_RECENT_SECONDS = 60.0
_BASELINE_SECONDS = 3600.0
_COLLAPSE_RATIO = 0.4
_USELESS_ACCEPTANCE_LENGTH = 1.05
_MIN_STEPS, _MIN_BASELINE_STEPS, _MIN_TOKENS = 30, 100, 64
# They draft what the text repeats: how often that is, and how much of it is accepted, is the text's doing.
_FROM_TEXT = frozenset({Method.NGRAM.value, Method.SUFFIX.value})
_PREEMPTION_WINDOW = 300.0
_THROTTLING_SECONDS = 10.0
_HARD_THROTTLE_REASONS = frozenset({"power brake", "thermal (hardware)", "thermal (software)", "hardware slowdown"})
# Most GPUs run into their power cap at full load; it matters when it costs this much of the clock.
_POWER_CAP_CLOCK_RATIO = 0.7
_MIN_FOREIGN_MEMORY = GIB // 2
_PADDING_SHARE = re.compile(r"at most ([\d.]+)%")
_COSTLY_PADDING = 25.0


def find_alarms(state: RunState, now: float) -> list[Alarm]:
    """Return the problems of a server at `now`, the worst first; one alarm of each kind."""
    if state.exit is not None or state.stopping:
        return []
    alarms: dict[str, Alarm] = {}
    for rule in _RULES:
        if alarm := rule(state, now):
            alarms.setdefault(alarm.kind, alarm)
    return list(alarms.values())


def find_log_alarms(state: RunState) -> list[Alarm]:
    """Return what the log says against the launch of a server that runs or has ended."""
    return [alarm for rule in _RULES_OF_LOG if (alarm := rule(state, 0.0))]


def _check_suspension(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - every rule is given both
    if not (suspended := state.suspended) or not suspended.pids:
        return None
    pids = " ".join(map(str, suspended.pids))
    what = "the server is suspended by a signal"
    hint = f"resume it: kill -CONT {pids}"
    return Alarm("hang", suspended.at, what, f"pid {pids} was stopped, as by SIGSTOP", hint)


def _check_health(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    worked = state.warm_at is not None or (state.launched is None and bool(state.readings))
    if state.health is not Health.UNHEALTHY or not worked:
        return None
    hint = f"see the log{_stop_hint(state, '; if it persists, press S to stop the server')}"
    return Alarm("hang", state.health_at, "the server does not answer", state.health_detail, hint)


def _check_metrics(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    """The server is healthy, but its counters cannot be read; the charts have a gap meanwhile."""
    if state.health not in {Health.HEALTHY, Health.WARM} or not state.health_detail:
        return None
    what, hint = "the server's counters cannot be read", "all figures are unknown until then; see the log"
    return Alarm("metrics", state.health_at, what, state.health_detail, hint)


def _check_token_flow(state: RunState, now: float) -> Alarm | None:
    """Requests are running, and no tokens are generated."""
    pause = find_token_pause(state, now)
    limit = HANG_SECONDS if state.warm_at is not None else _FIRST_REQUEST_HANG_SECONDS
    if pause is None or now - pause.since < limit:
        return None
    hint = f"a very long prompt looks the same at first; if it persists, the engine hangs{_stop_hint(state)}"
    return Alarm("hang", pause.since, "no tokens are generated", pause.describe(now), hint)


def _check_idle_probe(state: RunState, now: float) -> Alarm | None:
    """An idle server did not answer a probe request."""
    probe = next((done for done in reversed(state.requests) if done.kind == PROBE), None)
    if probe is None or not probe.error:
        return None
    after = state.readings.between(probe.at, now)
    if after and after.tok_s > 0:
        return None
    hint = f"the engine hangs although /health answers{_stop_hint(state)}"
    return Alarm("hang", probe.at - probe.total, "an idle server did not answer a probe", probe.error, hint)


def _check_memory(state: RunState, now: float) -> Alarm | None:
    """The machine is running out of the memory that the server uses."""
    last = state.memory.latest(now, MAX_GAP)
    if last is None or not is_memory_low(last.available, last.total):
        return None
    since = condition_start(state.memory, lambda sample: is_memory_low(sample.available, sample.total))
    evidence = (
        f"{format_gib(last.available)} of {format_gib(last.total)} left; at 0 the kernel kills the largest process"
    )
    return Alarm(
        "memory", since, "memory is nearly used up", evidence, "stop other programs, or give the KV cache less"
    )


def _check_acceptance(state: RunState, now: float) -> Alarm | None:
    """Acceptance is far below what it was."""
    recent = state.window(_RECENT_SECONDS, now)
    if _drafts_from_text(state) or recent is None or recent.acceptance is None or recent.steps < _MIN_STEPS:
        return None
    before = state.readings.between(now - _BASELINE_SECONDS, now - _RECENT_SECONDS)
    enough = before is not None and before.acceptance is not None and before.steps >= _MIN_BASELINE_STEPS
    usual = before.acceptance if before and enough else None
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
    hint = "other prompts or a higher temperature do this; if neither changed, suspect the prefix cache or the drafter"
    return Alarm("acceptance", since - _RECENT_SECONDS / 2, "acceptance has collapsed", evidence, hint)


def _check_speculation(state: RunState, now: float) -> Alarm | None:
    """The server was launched with a drafter, and generates tokens without it."""
    expected = state.launched.num_speculative_tokens if state.launched else None
    end = state.readings.known_until(now)
    after, before = (state.readings.at(t) if t is not None else None for t in (end, end and end - _RECENT_SECONDS))
    if not expected or _drafts_from_text(state) or after is None or before is None:
        return None
    # The first token of each request comes from the prompt.
    generated = after.generated - before.generated - (after.finished - before.finished)
    drafted = _tokens_from_drafts(after) - _tokens_from_drafts(before)
    if generated < _MIN_TOKENS or drafted >= generated / 2:
        return None
    evidence = f"{generated:.0f} tokens in the last minute, {drafted:.0f} of them from steps with a draft"
    hint = "some sampling parameters switch it off for their requests, and so does a large batch; see the log"
    return Alarm("speculation", now - _RECENT_SECONDS, "speculative decoding is off", evidence, hint)


def _drafts_from_text(state: RunState) -> bool:
    return state.launched is not None and state.launched.method in _FROM_TEXT


def _tokens_from_drafts(counters: Counters) -> float:
    return (counters.steps or 0.0) + (counters.accepted or 0.0)


def _check_graphs(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    """CUDA graphs were asked for, and vLLM dropped them without an error."""
    lost = state.startup.facts.get("without graphs")
    if not lost or state.launched is None or state.launched.mode != Mode.GRAPHS:
        return None
    part = "the drafter" if all("running the draft eagerly" in line for line in lost) else "the server"
    hint = "choose another attention backend (--set attention-backend=triton_attn), or --mode compile"
    return Alarm("graphs", state.launched.at, f"graphs were asked for, {part} runs eagerly", lost[0], hint)


def _check_kernels(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    """Marlin reads FP4 weights, asked for by no flag, on a GPU that has arithmetic of its own for them."""
    facts, launched = state.startup.facts, state.launched
    lines = facts.get("without FP4")
    if not lines or "marlin asked for" in facts or launched is None:
        return None
    if launched.hardware and launched.hardware not in WITH_FP4:
        return None
    what = "FP4 weights run on Marlin, not on the GPU's FP4 units"
    if not launched.hardware:
        what = "FP4 weights run on Marlin, a fallback if the GPU has FP4 arithmetic (GB10, RTX 50, B200)"
    hint = (
        "unset VLLM_NVFP4_GEMM_BACKEND and VLLM_USE_FLASHINFER_MOE_FP4, and take a vLLM built for this GPU; "
        "an A/B tells which is faster: --vary moe-backend=auto,marlin, or linear-backend"
    )
    return Alarm("kernels", launched.at, what, lines[0], hint)


def _check_logged_acceptance(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    """By the log's own lines, since /metrics of a server that others launched may not be there."""
    totals, logged = state.speculation_totals, state.logged_speculation
    if logged is None or _drafts_from_text(state) or not totals.accepts_nothing:
        return None
    share = format_percent(totals.accepted / totals.drafted, 1)
    return build_acceptance_alarm(logged.at, f"Avg Draft acceptance rate: {share} of {totals.drafted} drafts")


def build_acceptance_alarm(at: float, evidence: str) -> Alarm:
    """Return the alarm of a server that accepts no draft, by its log."""
    hint = (
        "the drafter does not fit the target, or the checkpoint lacks its MTP head: check that its weights have one, "
        "use the drafter that was trained for this target, or serve without speculation, which is faster then"
    )
    return Alarm("acceptance", at, "no draft is accepted", evidence, hint)


def _check_positions(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    totals, logged = state.speculation_totals, state.logged_speculation
    if logged is None or _drafts_from_text(state) or totals.accepts_nothing or "synthetic" in state.startup.facts:
        return None
    if (n := totals.useful_drafts) is None:
        return None
    share = format_percent(totals.accepted / totals.drafted, 1)
    evidence = f"accepted by position: {totals.describe_positions()} (acceptance rate: {share})"
    most = len(totals.positions)
    hint = f"draft fewer tokens a step: num_speculative_tokens={n}; an A/B shows the gain: ab --vary n={n},{most}"
    what = "too many drafts a step: the last positions are never accepted"
    return Alarm("positions", logged.at, what, evidence, hint)


def _check_kv_padding(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    """Layers of target and drafter share pages of the KV cache, and padding makes their groups alike."""
    lines = state.startup.facts.get("kv padding", ())
    shares = [float(match[1]) for line in lines if (match := _PADDING_SHARE.search(line))]
    if not shares or max(shares) < _COSTLY_PADDING:
        return None
    line = lines[shares.index(max(shares))]
    room = state.log_figures.get("kv_cache_memory")
    left = f"; {room.value:.2f} GiB are there for it" if room else ""
    hint = (
        "raise gpu-memory-utilization, lower max-num-seqs or the number of captured graph sizes, or use a newer vLLM; "
        "requests that find no room wait"
    )
    at = state.launched.at if state.launched else 0.0
    return Alarm("kv padding", at, "padding wastes a part of the KV cache", f"{line}{left}", hint)


def _check_throttling(state: RunState, now: float) -> Alarm | None:
    def limits(gpus: tuple[GpuLoad, ...]) -> list[tuple[GpuLoad, str]]:
        return [(gpu, why) for gpu in gpus if (why := _throttle_reasons(gpu))]

    last = state.gpus.latest(now, MAX_GAP)
    if last is None or not (throttled := limits(last.gpus)):
        return None
    since = condition_start(state.gpus, lambda sample: bool(limits(sample.gpus)))
    if now - since < _THROTTLING_SECONDS:
        return None
    evidence = "; ".join(f"GPU {gpu.index}: {_describe_throttling(gpu, why)}" for gpu, why in throttled)
    return Alarm("throttling", since, "the GPU is throttled", evidence, "check the cooling and the power supply")


def _describe_throttling(gpu: GpuLoad, why: str) -> str:
    clock = format_usage(gpu.clock_mhz, gpu.clock_max_mhz, "MHz") if gpu.clock_mhz is not None else ""
    heat = format_number(gpu.temperature_c, 0, "°C") if gpu.temperature_c is not None else ""
    return ", ".join(part for part in (why, clock, heat) if part)


def _throttle_reasons(gpu: GpuLoad) -> str:
    """Return why the clocks are kept low, of the reasons that are a problem; empty for none."""
    hard = [why for why in gpu.throttle or () if why in _HARD_THROTTLE_REASONS]
    slow = gpu.clock_mhz and gpu.clock_max_mhz and gpu.clock_mhz < _POWER_CAP_CLOCK_RATIO * gpu.clock_max_mhz
    if slow and "power cap" in (gpu.throttle or ()):
        hard.append("power cap")
    return ", ".join(hard)


def _check_preemptions(state: RunState, now: float) -> Alarm | None:
    recent = state.window(_PREEMPTION_WINDOW, now)
    if recent is None or not recent.preemptions or recent.preemptions < 1:
        return None
    before = (state.readings[-1].counters.preemptions or 0.0) - recent.preemptions
    since = condition_start(state.readings, lambda reading: (reading.counters.preemptions or 0.0) > before)
    evidence = (
        f"{recent.preemptions:.0f} in {format_duration(recent.seconds)}: the KV cache is full, and work is repeated"
    )
    hint = "send fewer requests at once, or give the KV cache more room (max-model-len, gpu-memory-utilization)"
    return Alarm("preemptions", since, "requests are preempted", evidence, hint)


def _check_foreign_load(state: RunState, now: float) -> Alarm | None:
    last = state.gpus.latest(now, MAX_GAP)
    others = {process.pid: process for gpu in (last.gpus if last else ()) for process in gpu.foreign or ()
              if (process.memory or 0) >= _MIN_FOREIGN_MEMORY}  # fmt: skip
    if not others:
        return None

    def is_shared(gpus: tuple[GpuLoad, ...]) -> bool:
        return any(process.pid in others for gpu in gpus for process in gpu.foreign or ())

    since = condition_start(state.gpus, lambda sample: is_shared(sample.gpus))
    names = ", ".join(f"{p.name or 'a process'} (pid {p.pid}) holds {format_gib(p.memory)}" for p in others.values())
    return Alarm(
        "foreign load",
        since,
        "another program uses the GPU",
        names,
        "it slows the server down and distorts the figures",
    )


def _check_slow_cycle(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    if (cycle := state.finished.cycle) is None:
        return None
    hint = {
        "acceptance length": "suspect the drafter's context: try without prefix caching, or with a later vLLM",
        "steps/s": "suspect clocks, memory or other load: see the GPU chart",
    }.get(cycle.cause, "compare AL and steps/s of fast and slow requests")
    return Alarm("cycle", cycle.since, str(cycle), cycle.evidence, hint)


# What only the log of the start tells, and for as long as the server lives.
_RULES_OF_START: tuple[Callable[[RunState, float], Alarm | None], ...] = (_check_graphs, _check_kernels)
# What the log tells of a server that /metrics tells better while it lives.
_RULES_OF_LOG = (_check_logged_acceptance, _check_positions, *_RULES_OF_START, _check_kv_padding)
_RULES: tuple[Callable[[RunState, float], Alarm | None], ...] = (
    _check_suspension,
    rank_alarms.check_ranks,
    rank_alarms.check_link,
    rank_alarms.check_halves,
    rank_alarms.check_network,
    _check_health,
    _check_token_flow,
    _check_idle_probe,
    rank_alarms.check_first_answer,
    _check_metrics,
    _check_memory,
    rank_alarms.check_far_memory,
    _check_speculation,
    _check_acceptance,
    *_RULES_OF_START,
    _check_throttling,
    _check_preemptions,
    _check_slow_cycle,
    _check_foreign_load,
)


def _stop_hint(state: RunState, how: str = ": press S to stop it") -> str:
    """Return the hint at the key that stops a server; empty for one that dflash-tui did not launch."""
    return how if state.launched else ""
