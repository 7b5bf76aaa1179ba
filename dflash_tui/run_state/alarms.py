"""Detect problems of a running server from its recorded samples. Pure: every observer raises the same alarms."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby, islice, pairwise, takewhile
from typing import NamedTuple, TypeVar

from dflash_tui.common.formatting import (
    GIB,
    format_duration,
    format_gib,
    format_number,
    format_percent,
    format_usage,
    pluralize,
    truncate,
)
from dflash_tui.events import (
    PROBE,
    Counters,
    GpuLoad,
    Health,
    LoadLogged,
    MemorySampled,
    ProcessorsSampled,
    RankState,
)
from dflash_tui.machine.hardware import WITH_FP4
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.run_state.series import MAX_GAP, ThinnedSeries, Timestamped
from dflash_tui.run_state.state import RunState
from dflash_tui.vllm_output.log_facts import KERNEL_COMPILED, NCCL_NETWORK, SLOW_SAMPLER, SOCKETS

T = TypeVar("T", bound=Timestamped)

_LOW_MEMORY, _LOW_MEMORY_SHARE = GIB, 0.04
_MAX_SAMPLES_BACK = 1000


class Alarm(NamedTuple):
    """A problem of a running server: its kind, its start, a description, the figures that show it, and a hint."""

    kind: str
    since: float
    what: str
    evidence: str
    hint: str

    def __str__(self) -> str:
        return f"{self.what}: {self.evidence}\n  → {self.hint}"


def condition_start(samples: ThinnedSeries[T], condition: Callable[[T], bool]) -> float:
    """Return when the present run of samples that meet `condition` began, looking back 1000 samples at most."""
    recent = islice(reversed(samples), _MAX_SAMPLES_BACK)
    return min((sample.at for sample in takewhile(condition, recent)), default=samples[-1].at)


def is_memory_low(left: int | None, total: int) -> bool:
    """Whether so little of a machine's memory is left that its kernel may soon kill the largest process."""
    return left is not None and left < max(_LOW_MEMORY, total * _LOW_MEMORY_SHARE)


class TokenPause(NamedTuple):
    """Running requests that get no token: how many, and since when."""

    running: int
    since: float

    def describe(self, now: float) -> str:
        """Return the pause as text: the number of requests, and its duration."""
        return f"{pluralize(self.running, 'request')} running, no token for {format_duration(now - self.since)}"


def find_token_pause(state: RunState, now: float) -> TokenPause | None:
    """Return the pause of running requests without a token; None if none runs or the counters are unknown."""
    last = state.readings.latest(now, MAX_GAP)
    if last is None or not last.counters.running:
        return None
    generated = last.counters.generated
    since = condition_start(state.readings, lambda r: bool(r.counters.running) and r.counters.generated == generated)
    return TokenPause(last.counters.running, since)


# The keeper records another host every 5 s.
_KEEPER_SILENT_SECONDS = 20.0
_LONGEST_ANSWER = 60
# Ranks wait for each other within a step, which takes far less than seconds.
HALF_SECONDS = 10.0
# The load of an idle GPU that a process only holds is at most `_IDLE`; one that computes, or waits for another GPU in
# an NCCL kernel, has at least `_BUSY`. Also in busy processors.
_IDLE, _BUSY = 0.1, 0.5


_RANK_TROUBLES = {
    RankState.ENDED: (
        "has ended",
        "rank 0 is being stopped, since it cannot continue alone; dflash-tui why shows the cause",
    ),
    RankState.SUSPENDED: ("is suspended", "on {host}: dflash-tui ps names the run, kill -CONT resumes its processes"),
    RankState.LOST: (
        "is silent",
        "check the cable and the host: ping {host}; the server continues if the connection is back within seconds",
    ),
}


def check_ranks(state: RunState, now: float) -> Alarm | None:
    """Return the alarm of a lost rank on another host; rank 0 stays healthy until it gets a request."""
    for sample in state.far_ranks.values():
        name = f"rank {sample.rank} on {sample.host}"
        if trouble := _RANK_TROUBLES.get(sample.state):
            what, hint = trouble
            return Alarm("rank", sample.since, f"{name} {what}", sample.why, hint.format(host=sample.host))
        if sample.state is RankState.RUNNING and now - sample.at > _KEEPER_SILENT_SECONDS:
            evidence = f"the keeper has not reported on it for {format_duration(now - sample.at)}"
            hint = "press S to stop the server, on all hosts"
            return Alarm("rank", sample.at, f"{name} is not watched", evidence, hint)
    return None


def check_link(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - every rule is given both
    """Return the alarm of a broken link between the ranks while ssh, which watches them, uses another path."""
    sample = next((far for far in state.far_ranks.values() if far.state is RankState.RUNNING and far.why), None)
    if sample is None:
        return None
    since = condition_start(state.rank_samples[sample.rank], lambda earlier: earlier.why == sample.why)
    hint = "check the cable: a request ends when vLLM has waited for VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
    return Alarm("link", since, "the link between the ranks is down", sample.why, hint)


def check_far_memory(state: RunState, now: float) -> Alarm | None:
    """Return the alarm of low memory on another host of the server."""
    for sample in state.far_ranks.values():
        left, total = sample.available, sample.total
        if total is not None and now - sample.at <= _KEEPER_SILENT_SECONDS and is_memory_low(left, total):
            evidence = f"{format_gib(left)} of {format_gib(total)} left; at 0 its kernel kills the largest process"
            hint = f"stop other programs on {sample.host}, or give the KV cache less"
            return Alarm("far memory", sample.at, f"memory of {sample.host} is nearly used up", evidence, hint)
    return None


def check_first_answer(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    """Return the alarm of a suspicious first answer, as wrong weights on another host give it; None if it is right."""
    answer = state.first_answer
    if answer is None or not (answer.noise or answer.is_like_before is False):
        return None
    words = f"now “{truncate(answer.text, _LONGEST_ANSWER)}”"
    hint = "ask it something; if it answers noise, stop it, and remove the model's files on the other hosts"
    if answer.noise:
        return Alarm("answer", answer.at, "the first answer looks like noise", f"{answer.noise}: {words}", hint)
    what = "the first answer differs from the one these models gave before"
    before = f"before “{truncate(answer.before, _LONGEST_ANSWER)}”, {answer.run}"
    return Alarm("answer", answer.at, what, f"{words}; {before}", f"{hint}; if that one was wrong: rm {answer.record}")


class _RankLoad(NamedTuple):
    """The load of a rank: of its busiest GPU, or in busy processors without a GPU; `since` when it is idle or busy."""

    name: str
    load: float
    text: str
    since: float


def check_halves(state: RunState, now: float) -> Alarm | None:
    """Return the alarm of a rank that idles while requests get no token and no rank is lost.

    vLLM's ranks wait for each other within every step, if need be for minutes. Long prompts and kernel compilation keep
    every GPU busy, since a GPU waits for another one in a kernel.
    """
    pause = find_token_pause(state, now) if state.far_ranks and state.warm_at is not None else None
    if pause is None or (state.suspended and state.suspended.pids):
        return None
    if any(sample.state is not RankState.RUNNING for sample in state.far_ranks.values()):
        return None
    loads = _list_loads(state, now)
    if len(loads) <= len(state.far_ranks) or any(_IDLE < load.load < _BUSY for load in loads):
        return None
    idle, since = [load for load in loads if load.load <= _IDLE], max(pause.since, *(load.since for load in loads))
    if not idle or now - since < HALF_SECONDS:
        return None
    if len(idle) < len(loads):
        what = f"half a server: {' and '.join(load.name for load in idle)} is idle"
        hint = "see both logs, and the kernel's log there; if it persists, press S to stop the server, on all hosts"
    else:
        what = "half a server: all ranks are idle, as if they waited for each other"
        hint = "check the link between the hosts; if it persists, press S to stop the server, on all hosts"
    return Alarm("half a server", since, what, f"{pause.describe(now)}; {', '.join(load.text for load in loads)}", hint)


def _list_loads(state: RunState, now: float) -> list[_RankLoad]:
    """Return the known loads: of rank 0 by its own samples, of the others by their keeper's."""
    loads: list[_RankLoad | None] = []
    if gpus := state.gpus.latest(now, MAX_GAP):
        loads.append(_measure_load("rank 0", state.gpus, gpus, lambda sample: _find_busiest(sample.gpus), of="GPU"))
    elif processors := state.processors.latest(now, MAX_GAP):
        loads.append(_measure_load("rank 0", state.processors, processors, lambda sample: sample.busy))
    for rank, samples in state.rank_samples.items():
        if last := samples.latest(now, _KEEPER_SILENT_SECONDS):
            name, of = f"rank {rank} on {last.host}", "GPU" if last.gpus else ""
            load = _measure_load(name, samples, last, lambda s: _find_busiest(s.gpus) if s.gpus else s.busy, of=of)
            loads.append(load)
    return [load for load in loads if load]


def _find_busiest(gpus: Sequence[GpuLoad]) -> float | None:
    return max((gpu.utilisation for gpu in gpus if gpu.utilisation is not None), default=None)


def _measure_load(
    name: str, samples: ThinnedSeries[T], last: T, read: Callable[[T], float | None], *, of: str = ""
) -> _RankLoad | None:
    """Return the load of a rank, as a share of a GPU (`of`) or in busy processors; None if unknown."""
    if (load := read(last)) is None:
        return None

    def is_alike(sample: T) -> bool:
        before = read(sample)
        return before is not None and (before <= _IDLE, before >= _BUSY) == (load <= _IDLE, load >= _BUSY)

    host = name.partition(" on ")[2] or "this machine"
    text = f"{of} at {format_percent(load)} on {host}" if of else f"{load:.1f} processors busy on {host}"
    return _RankLoad(name, load, text, condition_start(samples, is_alike))


def check_network(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    """Return the alarm of ranks that use sockets, by NCCL's log, although RoCE was found or set."""
    if state.launched is None or not state.launched.roce:
        return None
    networks = {"this machine": state.startup.facts.get(NCCL_NETWORK, ("",))[-1]}
    networks |= {sample.host: sample.network for sample in state.far_ranks.values()}
    slow = [host for host, network in networks.items() if network == SOCKETS]
    if not slow:
        return None
    evidence = f"NCCL's log on {' and '.join(slow)} says Socket, with {state.launched.roce} for RoCE there"
    hint = "see why: dflash-tui logs | grep NET/; a setting NCCL_NET or NCCL_IB_DISABLE of the recipe does it, too"
    return Alarm("sockets", state.launched.at, "NCCL uses sockets instead of RoCE", evidence, hint)


# A running request gets a token at least this often; the first one may wait for kernels to be compiled.
HANG_SECONDS = 60.0
_FIRST_REQUEST_HANG_SECONDS = 300.0
_RECENT_SECONDS = 60.0
_BASELINE_SECONDS = 3600.0
_COLLAPSE_RATIO = 0.4
_MIN_STEPS, _MIN_BASELINE_STEPS, _MIN_TOKENS = 30, 100, 64
# They copy drafts from the text, so that the number of drafts and their acceptance depend on the text.
_FROM_TEXT = frozenset({Method.NGRAM.value, Method.SUFFIX.value})
_PREEMPTION_WINDOW, _MANY_PREEMPTED = 300.0, 0.05
_PREEMPTION_HINT = (
    "send fewer requests at once, or give the KV cache more room (gpu-memory-utilization, a lower max-num-seqs): each "
    "preempted request is computed again"
)
_THROTTLING_SECONDS = 10.0
_COOLING = "check the cooling: fans, dust, the air around it"
_POWER_SUPPLY = "check the power supply and its cables"
_HARD_THROTTLE_REASONS = {
    "thermal (hardware)": _COOLING,
    "thermal (software)": _COOLING,
    "power brake": _POWER_SUPPLY,
    "hardware slowdown": _POWER_SUPPLY,
}
# Most GPUs reach their power cap at full load, which matters only below this ratio of the maximum clock.
_LOW_CLOCK_RATIO, _LEAST_WORK = 0.7, 0.9
_SOFT_THROTTLE_REASONS = {
    "power cap": "raise the power limit: nvidia-smi -q -d POWER shows its range, sudo nvidia-smi -pl WATTS sets it; "
    "give a laptop its own power supply and performance mode (published: 1.4 times the tok/s)",
    "clocks set by the user": "remove the limit of the clocks: sudo nvidia-smi -rgc",
}
_NO_REASON = "no reason from the driver"
_NO_REASON_HINT = (
    "see nvidia-smi -q -d CLOCK,PERFORMANCE; owners of a GB10 with low clocks unplugged its power supply for a minute"
)
_MIN_FOREIGN_MEMORY = GIB // 2
_NEIGHBOUR_SHARE, _NEIGHBOUR_SECONDS = 0.4, 10.0
_MUCH_SWAPPED = GIB // 2
_MUCH_STALLED, _MUCH_CACHED = 0.1, 0.1
_PUBLISHED_WINDOW, _MIN_PUBLISHED_STEPS, _FAR_BELOW = 600.0, 500, 0.6
_GROWING_PROMPTS, _LONG_PROMPT = 5, 256
_QUEUE_WINDOW, _QUEUE_SECONDS, _KV_FULL = 300.0, 8.0, 0.95
# Kernels for a server's first requests are compiled within a minute.
_FIRST_KERNELS, _LATE_KERNELS = 60.0, 2
_PADDING_SHARE = re.compile(r"at most ([\d.]+)%")
_COSTLY_PADDING = 25.0


def find_alarms(state: RunState, now: float) -> list[Alarm]:
    """Return the problems of a server at `now`, the worst first, one per kind."""
    if state.exit is not None or state.stopping:
        return []
    alarms: dict[str, Alarm] = {}
    for rule in _RULES:
        if rule.live and (alarm := rule.find(state, now)):
            alarms.setdefault(alarm.kind, alarm)
    return list(alarms.values())


def find_log_alarms(state: RunState) -> list[Alarm]:
    """Return the problems shown by a server's whole log and all counters, also after its end."""
    return [alarm for rule in _RULES if rule.logged and (alarm := rule.find(state, 0.0))]


def find_all_alarms(state: RunState, now: float) -> list[Alarm]:
    """Return the problems of a server at `now`, then its earlier ones, one per kind."""
    alarms = {alarm.kind: alarm for alarm in find_log_alarms(state)}
    return [*({alarm.kind: alarm for alarm in find_alarms(state, now)} | alarms).values()]


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
    if state.health not in {Health.HEALTHY, Health.WARM} or not state.health_detail:
        return None
    what, hint = "the server's counters cannot be read", "all figures are unknown until then; see the log"
    return Alarm("metrics", state.health_at, what, state.health_detail, hint)


def _check_token_flow(state: RunState, now: float) -> Alarm | None:
    pause = find_token_pause(state, now)
    limit = HANG_SECONDS if state.warm_at is not None else _FIRST_REQUEST_HANG_SECONDS
    if pause is None or now - pause.since < limit:
        return None
    hint = f"a very long prompt looks the same at first; if it persists, the engine hangs{_stop_hint(state)}"
    return Alarm("hang", pause.since, "no tokens are generated", pause.describe(now), hint)


def _check_idle_probe(state: RunState, now: float) -> Alarm | None:
    probe = next((done for done in reversed(state.requests) if done.kind == PROBE), None)
    if probe is None or not probe.error:
        return None
    after = state.readings.between(probe.at, now)
    if after and after.tok_s > 0:
        return None
    hint = f"the engine hangs although /health answers{_stop_hint(state)}"
    return Alarm("hang", probe.at - probe.total, "an idle server did not answer a probe", probe.error, hint)


def _check_memory(state: RunState, now: float) -> Alarm | None:
    last = state.memory.latest(now, MAX_GAP)
    if last is None or not is_memory_low(last.available, last.total):
        return None
    since = condition_start(state.memory, lambda sample: is_memory_low(sample.available, sample.total))
    left = f"{format_gib(last.available)} of {format_gib(last.total)} left"
    evidence = f"{left}; at 0 the kernel kills the largest process"
    hint = "stop other programs, or give the KV cache less"
    return Alarm("memory", since, "memory is nearly used up", evidence, hint)


def _check_acceptance(state: RunState, now: float) -> Alarm | None:
    recent = state.readings.window(_RECENT_SECONDS, now)
    if _drafts_from_text(state) or recent is None or recent.acceptance is None or recent.steps < _MIN_STEPS:
        return None
    before = state.readings.between(now - _BASELINE_SECONDS, now - _RECENT_SECONDS)
    if before is None or before.acceptance is None or before.steps < _MIN_BASELINE_STEPS:
        return None
    limit = before.acceptance * _COLLAPSE_RATIO
    if recent.acceptance >= limit:
        return None
    since = now
    while since > now - _BASELINE_SECONDS:
        earlier = state.readings.between(since - 10 - _RECENT_SECONDS, since - 10)
        if earlier is None or earlier.acceptance is None or earlier.acceptance >= limit:
            break
        since -= 10
    usual = format_percent(before.acceptance, 1)
    evidence = f"{format_percent(recent.acceptance, 1)} in the last minute, {usual} before"
    hint = "other prompts or a higher temperature do this; if neither changed, suspect the prefix cache or the drafter"
    return Alarm("acceptance", since - _RECENT_SECONDS / 2, "acceptance has collapsed", evidence, hint)


def _check_speculation(state: RunState, now: float) -> Alarm | None:
    expected = state.launched.num_speculative_tokens if state.launched else None
    end = state.readings.known_until(now)
    after, before = (state.readings.at(t) if t is not None else None for t in (end, end and end - _RECENT_SECONDS))
    if not expected or _drafts_from_text(state) or after is None or before is None:
        return None
    # The first token of each request comes from the prefill.
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
    facts, launched = state.startup.facts, state.launched
    lost, pieces = facts.get("without graphs"), facts.get("in pieces")
    if launched is None or launched.mode == Mode.EAGER or not (lost or pieces):
        return None
    if pieces and not lost:
        hint = (
            "choose an attention backend that takes whole graphs with speculation (--attention-backend FLASH_ATTN or "
            "TRITON_ATTN); published for a GB10: 55.2 instead of 47.5 tok/s (vllm#49547)"
        )
        return Alarm("graphs", launched.at, "CUDA graphs are piecewise", pieces[0], hint)
    part = "the drafter" if all("running the draft eagerly" in line for line in lost or ()) else "the server"
    hint = "choose another attention backend (--set attention-backend=triton_attn), or --mode compile"
    return Alarm("graphs", launched.at, f"vLLM dropped the CUDA graphs of {part}", (lost or ("",))[0], hint)


def _check_kernels(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    """Return the alarm of FP4 weights on Marlin, if no flag chose it and the GPU has FP4 arithmetic."""
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
        "unset VLLM_NVFP4_GEMM_BACKEND and VLLM_USE_FLASHINFER_MOE_FP4, and use a vLLM built for this GPU; "
        "an A/B tells which is faster: --vary moe-backend=auto,marlin, or linear-backend"
    )
    return Alarm("kernels", launched.at, what, lines[0], hint)


def _check_drafter(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    totals = state.drafts
    if _drafts_from_text(state) or not totals.accepts_nothing:
        return None
    evidence = f"Avg Draft acceptance rate: {totals.accepted / totals.drafted:.1%} of {totals.drafted:.0f} drafts"
    return build_acceptance_alarm(_find_start(state), evidence)


def build_acceptance_alarm(at: float, evidence: str) -> Alarm:
    """Return the alarm of a server that accepts no drafts."""
    hint = (
        "the drafter or its --method does not fit the target, or the checkpoint lacks its MTP head: check that its "
        "weights have one, use the drafter that was trained for this target, or serve without speculation, which is "
        "faster then (published: 6.9 instead of 5.1 tok/s on a GB10)"
    )
    return Alarm("acceptance", at, "no draft is accepted", evidence, hint)


def _check_positions(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    totals = state.drafts
    if _drafts_from_text(state) or totals.accepts_nothing or "synthetic" in state.startup.facts:
        return None
    if (n := totals.useful_drafts) is None:
        return None
    rate = f"{totals.accepted / totals.drafted:.1%}"
    evidence = f"accepted by position: {totals.describe_positions()} (Avg Draft acceptance rate: {rate})"
    most = len(totals.positions)
    hint = f"draft fewer tokens a step: num_speculative_tokens={n}; an A/B shows the gain: ab --vary n={n},{most}"
    what = "too many drafts a step: the last positions are hardly ever accepted"
    return Alarm("positions", _find_start(state), what, evidence, hint)


def _find_start(state: RunState) -> float:
    return state.up_at or (state.launched.at if state.launched else state.readings[0].at if state.readings else 0.0)


def _check_published(state: RunState, now: float) -> Alarm | None:
    least = state.launched.published_length if state.launched else None
    recent = state.readings.mean(_PUBLISHED_WINDOW, now) if least else None
    if least is None or recent is None or recent.acceptance_length is None or recent.steps < _MIN_PUBLISHED_STEPS:
        return None
    if recent.acceptance_length >= _FAR_BELOW * least or state.drafts.accepts_nothing:
        return None
    evidence = f"{recent.acceptance_length:.2f} over {recent.steps:.0f} steps, published: {least:.2f} and more"
    hint = (
        "prose and a high temperature accept less than code; if the prompts are alike, check the drafter's revision, "
        "the target's quantization and the chat template; tok/s falls as much as the acceptance length"
    )
    return Alarm("below published", now - _PUBLISHED_WINDOW, "few drafts are accepted", evidence, hint)


def _check_prefix_cache(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    last = state.readings[-1].counters if state.readings else None
    is_off = state.startup.facts.get("prefix cache", ("",))[-1] == "False"
    if last is None or last.prefix_hits or not (is_off or last.prefix_queries) or not (prompts := _list_growing(state)):
        return None
    sizes = " → ".join(f"{size:.0f}" for size in prompts[-_GROWING_PROMPTS:])
    what = "the prefix cache is off" if is_off else "the prefix cache has no hits"
    evidence = f"prompts of {sizes} tokens, {last.prefix_hits:.0f} of {last.prefix_queries:.0f} tokens from the cache"
    hint = (
        "each turn reads the whole conversation again: --enable-prefix-caching (with a DFlash drafter from vLLM 0.23 "
        "on); of hybrid models with a drafter, patch dflash-no-block-drop; published: the first token 14 to 24 times "
        "sooner in long conversations"
    )
    return Alarm("prefix cache", _find_start(state), f"{what}, and the prompts grow", evidence, hint)


def _list_growing(state: RunState) -> list[float]:
    """Return the last prompt sizes if each is larger than the one before, else nothing."""
    sizes = [r.prompt_tokens for r in state.finished.requests if r.prompt_tokens and r.averaged_over == 1]
    last = sizes[-_GROWING_PROMPTS:]
    grows = len(last) == _GROWING_PROMPTS and all(a < b for a, b in pairwise(last)) and last[-1] >= _LONG_PROMPT
    return last if grows else []


class _Queue(NamedTuple):
    """A period in which requests waited, with the running requests and the most waiting ones."""

    since: float
    seconds: float
    running: int
    waiting: int
    usage: float | None
    """The highest share of the KV cache in use."""


def _find_queue(state: RunState, now: float) -> _Queue | None:
    """Return the longest queue with a constant number of running requests; None without any."""
    begin = now - _QUEUE_WINDOW if now else 0.0
    readings = state.readings[state.readings.count_until(begin) :]
    loads = [LoadLogged(r.at, r.counters.running or 0, r.counters.waiting or 0, r.counters.kv_usage) for r in readings]
    loads = loads or state.loads[state.loads.count_until(begin) :]
    queues = []
    for (running, waits), run in groupby(loads, lambda load: (load.running, load.waiting > 0)):
        samples = list(run)
        if running and waits and len(samples) > 1:
            usage = max((sample.kv_usage for sample in samples if sample.kv_usage is not None), default=None)
            most = max(sample.waiting for sample in samples)
            queues.append(_Queue(samples[0].at, samples[-1].at - samples[0].at, running, most, usage))
    return max((queue for queue in queues if queue.seconds >= _QUEUE_SECONDS), key=lambda q: q.seconds, default=None)


def _check_queue(state: RunState, now: float) -> Alarm | None:
    if (queue := _find_queue(state, now)) is None:
        return None
    running = pluralize(queue.running, "request")
    evidence = f"{running} running, up to {queue.waiting} waiting for {format_duration(queue.seconds)}"
    limit = state.startup.facts.get("max-num-seqs", ("",))[-1]
    if queue.usage is not None and queue.usage * (queue.running + 1) / queue.running > _KV_FULL:
        what = f"the KV cache holds {running} at a time, the others wait"
        hint = (
            "lower max-model-len where it is that large for no reason, raise gpu-memory-utilization, or halve the "
            "cache with --kv-cache-dtype fp8"
        )
        return Alarm("kv cache", queue.since, what, f"{evidence}, {queue.usage:.0%} of it used", hint)
    if str(queue.running) != limit and queue.seconds < 2 * _QUEUE_SECONDS:
        return None
    what = f"requests queue behind --max-num-seqs {limit}" if limit == str(queue.running) else "requests queue"
    hint = "raise --max-num-seqs, or send fewer at once: queued requests get a first token only after another ends"
    return Alarm("queue", queue.since, what, evidence, hint)


def _check_late_kernels(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    """Return the alarm of kernels compiled after the first requests, which later requests wait for."""
    lines = [line for line in state.lines if KERNEL_COMPILED in line.text]
    late = [line for line in lines if line.at > lines[0].at + _FIRST_KERNELS]
    if len(late) < _LATE_KERNELS:
        return None
    names = ", ".join(dict.fromkeys(line.text.partition(KERNEL_COMPILED)[2].partition(". ")[0] for line in late))
    hint = (
        "the requests that needed them waited for the compiler: send prompts of these lengths and sampling parameters "
        "once after the start, and keep TRITON_CACHE_DIR on a disk that stays"
    )
    what = "kernels are compiled while serving"
    return Alarm("compiled", late[0].at, what, f"{len(late)} after the first minute: {names}", hint)


def _check_sampler(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    pattern = re.compile(SLOW_SAMPLER)
    lines = (line for line in state.lines if "FlashInfer" in line.text and pattern.search(line.text))
    if (line := next(lines, None)) is None:
        return None
    hint = (
        "send no `seed` and no logprobs with a request, or fix what the line names (the nvcc of FlashInfer); what it "
        "costs is not published, an A/B shows it: --vary env.VLLM_USE_FLASHINFER_SAMPLER=0,1"
    )
    return Alarm("sampler", line.at, "tokens are drawn by PyTorch, not by FlashInfer's kernel", line.text, hint)


def _check_swap(state: RunState, now: float) -> Alarm | None:
    def is_short(sample: MemorySampled) -> bool:
        return sample.swapped >= _MUCH_SWAPPED or (sample.stalled or 0.0) >= _MUCH_STALLED

    last = state.memory.latest(now, MAX_GAP)
    if last is None or last.available is None or not is_short(last):
        return None
    is_cached = (last.cached or 0) >= _MUCH_CACHED * last.total
    evidence = (
        f"{format_gib(last.swapped)} swapped out" if last.swapped else "",
        f"all programs wait for memory {format_percent(last.stalled)} of the time" if last.stalled else "",
        f"{format_gib(last.cached)} of {format_gib(last.total)} are page cache" if is_cached else "",
    )
    recipe = state.launched.recipe if state.launched else "RECIPE"
    release = f"release the models' files (dflash-tui doctor {recipe} --release-page-cache), " if is_cached else ""
    hint = (
        f"{release}stop other programs or give the KV cache less (gpu-memory-utilization), then "
        "restart the server; sudo swapoff -a keeps it in memory"
    )
    what = "a part of the server is on a disk" if last.swapped >= _MUCH_SWAPPED else "programs wait for memory"
    return Alarm("swap", condition_start(state.memory, is_short), what, ", ".join(filter(None, evidence)), hint)


def _check_neighbour(state: RunState, now: float) -> Alarm | None:
    def is_crowded(sample: ProcessorsSampled) -> bool:
        return (sample.others or 0.0) >= _NEIGHBOUR_SHARE * sample.total and sample.busy > _IDLE

    last = state.processors.latest(now, MAX_GAP)
    if last is None or not is_crowded(last):
        return None
    since = condition_start(state.processors, is_crowded)
    if now - since < _NEIGHBOUR_SECONDS:
        return None
    evidence = f"other programs keep {last.others:.1f} of {last.total} processors busy, the server {last.busy:.1f}"
    hint = "stop them (see top), or run the server under taskset or with a higher priority"
    return Alarm("foreign load", since, "other programs use the processors", evidence, hint)


def _check_kv_padding(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    """Return the alarm of costly padding, which makes KV cache pages of target and drafter layers the same size."""
    lines = state.startup.facts.get("kv padding", ())
    shares = [float(match[1]) for line in lines if (match := _PADDING_SHARE.search(line))]
    if not shares or max(shares) <= _COSTLY_PADDING:
        return None
    line = lines[shares.index(max(shares))]
    room = state.log_figures.get("kv_cache_memory")
    left = f"; {room.value:.2f} GiB are available" if room else ""
    hint = (
        "raise gpu-memory-utilization, lower max-num-seqs or the number of captured graph sizes, or use a newer vLLM; "
        "requests that find no room wait"
    )
    at = state.launched.at if state.launched else 0.0
    return Alarm("kv padding", at, "padding wastes a part of the KV cache", f"{line}{left}", hint)


def _check_throttling(state: RunState, now: float) -> Alarm | None:
    last = state.gpus.latest(now, MAX_GAP)
    if last is None or not (throttled := [gpu for gpu in last.gpus if _list_limits(gpu)]):
        return None
    since = condition_start(state.gpus, lambda sample: any(map(_list_limits, sample.gpus)))
    if now - since < _THROTTLING_SECONDS:
        return None
    limits = {why: hint for gpu in throttled for why, hint in _list_limits(gpu).items()}
    what = "the GPU's clocks are low" if _NO_REASON in limits else "the GPU is throttled"
    evidence = "; ".join(f"GPU {gpu.index}: {_describe_throttling(gpu)}" for gpu in throttled)
    return Alarm("throttling", since, what, evidence, "; ".join(dict.fromkeys(limits.values())))


def _describe_throttling(gpu: GpuLoad) -> str:
    clock = format_usage(gpu.clock_mhz, gpu.clock_max_mhz, "MHz") if gpu.clock_mhz is not None else ""
    power = format_usage(gpu.power_w, gpu.power_limit_w, "W") if gpu.power_w is not None else ""
    heat = format_number(gpu.temperature_c, 0, "°C") if gpu.temperature_c is not None else ""
    return ", ".join(part for part in (*_list_limits(gpu), clock, power, heat) if part)


def _list_limits(gpu: GpuLoad) -> dict[str, str]:
    given = gpu.throttle or ()
    limits = {why: hint for why, hint in _HARD_THROTTLE_REASONS.items() if why in given}
    if not (gpu.clock_mhz and gpu.clock_max_mhz and gpu.clock_mhz < _LOW_CLOCK_RATIO * gpu.clock_max_mhz):
        return limits
    limits |= {why: hint for why, hint in _SOFT_THROTTLE_REASONS.items() if why in given}
    is_working = (gpu.utilisation or 0.0) >= _LEAST_WORK
    return {_NO_REASON: _NO_REASON_HINT} if is_working and gpu.throttle == () else limits


def _check_preemptions(state: RunState, now: float) -> Alarm | None:
    recent = state.readings.window(_PREEMPTION_WINDOW, now)
    if recent is None or not recent.preemptions or recent.preemptions < 1:
        return None
    before = (state.readings[-1].counters.preemptions or 0.0) - recent.preemptions
    since = condition_start(state.readings, lambda reading: (reading.counters.preemptions or 0.0) > before)
    often = f"{recent.preemptions:.0f} in {format_duration(recent.seconds)}"
    evidence = f"{often}: the KV cache is full, and work is repeated"
    return Alarm("preemptions", since, "requests are preempted", evidence, _PREEMPTION_HINT)


def _check_past_preemptions(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    last = state.readings[-1].counters if state.readings else None
    if last is None or not last.preemptions or last.preemptions < max(2.0, _MANY_PREEMPTED * last.finished):
        return None
    evidence = f"{last.preemptions:.0f} preemptions, {last.finished:.0f} requests finished since the start"
    return Alarm("preemptions", _find_start(state), "requests were preempted", evidence, _PREEMPTION_HINT)


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
    hint = "it slows the server down and distorts the figures"
    return Alarm("foreign load", since, "another program uses the GPU", names, hint)


def _check_slow_cycle(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    if (cycle := state.finished.cycle) is None:
        return None
    hint = {
        "acceptance length": "suspect the drafter's context: try without prefix caching, or with a later vLLM",
        "steps/s": "suspect clocks, memory or other load: see the GPU chart",
    }.get(cycle.cause, "compare AL and steps/s of fast and slow requests")
    return Alarm("cycle", cycle.since, cycle.what, cycle.evidence, hint)


class _Rule(NamedTuple):
    """A rule: `live` ones apply to a running server now, `logged` ones to its whole log, also after its end."""

    find: Callable[[RunState, float], Alarm | None]
    logged: bool = False
    live: bool = True


# In order of severity.
_RULES = (
    _Rule(_check_suspension),
    _Rule(check_ranks),
    _Rule(check_link),
    _Rule(check_halves),
    _Rule(check_network),
    _Rule(_check_health),
    _Rule(_check_token_flow),
    _Rule(_check_idle_probe),
    _Rule(check_first_answer),
    _Rule(_check_metrics),
    _Rule(_check_memory),
    _Rule(check_far_memory),
    _Rule(_check_speculation),
    _Rule(_check_drafter, logged=True),
    _Rule(_check_acceptance),
    _Rule(_check_positions, logged=True),
    _Rule(_check_published),
    _Rule(_check_graphs, logged=True),
    _Rule(_check_kernels, logged=True),
    _Rule(_check_kv_padding, logged=True),
    _Rule(_check_queue, logged=True),
    _Rule(_check_prefix_cache, logged=True),
    _Rule(_check_swap),
    _Rule(_check_throttling),
    _Rule(_check_preemptions),
    _Rule(_check_past_preemptions, logged=True, live=False),
    _Rule(_check_late_kernels, logged=True),
    _Rule(_check_sampler, logged=True),
    _Rule(_check_slow_cycle),
    _Rule(_check_foreign_load),
    _Rule(_check_neighbour),
)


def _stop_hint(state: RunState, how: str = ": press S to stop it") -> str:
    """Return the hint at the key that stops a server; empty for one that dflash-tui did not launch."""
    return how if state.launched else ""
