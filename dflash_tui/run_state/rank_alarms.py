"""Detect problems of a server over several hosts: of its ranks, of how they talk, of what they answer. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from dflash_tui.common.formatting import format_duration, format_gib, format_percent, truncate
from dflash_tui.events import GpuLoad, RankSampled, RankState
from dflash_tui.run_state.alarm import Alarm, condition_start, find_token_pause, is_memory_low
from dflash_tui.run_state.counters import MAX_GAP
from dflash_tui.run_state.retention import ThinnedSeries, Timestamped
from dflash_tui.run_state.state import RunState
from dflash_tui.vllm_output.nccl_log import FACT, SOCKETS

T = TypeVar("T", bound=Timestamped)

# The keeper records a rank every 5 s.
_KEEPER_SILENT_SECONDS = 20.0
_LONGEST_ANSWER = 60
# A rank waits for another one within a step, and a step takes no seconds.
HALF_SECONDS = 10.0
# What a GPU may be at while a process only holds it, and below what it does while it computes or waits for another
# GPU: NCCL waits in a kernel. Processors are counted the same way.
_IDLE, _BUSY = 0.1, 0.5
_HERE = "this machine"


def check_ranks(state: RunState, now: float) -> Alarm | None:
    """Return the alarm of a rank on another host that is gone; rank 0 is healthy for as long as nobody asks it."""
    for sample in state.ranks.values():
        if alarm := _judge_rank(sample, now):
            return alarm
    return None


def _judge_rank(sample: RankSampled, now: float) -> Alarm | None:
    name, host = f"rank {sample.rank} on {sample.host}", sample.host
    if sample.state is RankState.ENDED:
        hint = "rank 0 is being stopped, since it cannot go on alone; dflash-tui why shows the cause"
        return Alarm("rank", sample.since, f"{name} has ended", sample.why, hint)
    if sample.state is RankState.SUSPENDED:
        hint = f"on {host}: dflash-tui ps names the run, kill -CONT resumes its processes"
        return Alarm("rank", sample.since, f"{name} is suspended", sample.why, hint)
    if sample.state is RankState.LOST:
        hint = f"check the cable and the host: ping {host}; it goes on when the connection is back within seconds"
        return Alarm("rank", sample.since, f"{name} is silent", sample.why, hint)
    if sample.state is RankState.RUNNING and now - sample.at > _KEEPER_SILENT_SECONDS:
        evidence = f"the keeper has said nothing of it for {format_duration(now - sample.at)}"
        return Alarm("rank", sample.at, f"nobody watches {name}", evidence, "press S to stop the server, on all hosts")
    return None


def check_link(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - every rule is given both
    """Return the alarm of a link that is down while ssh, by which the ranks are watched, goes another way."""
    sample = next((rank for rank in state.ranks.values() if rank.state is RankState.RUNNING and rank.why), None)
    if sample is None:
        return None
    since = condition_start(state.rank_samples[sample.rank], lambda earlier: earlier.why == sample.why)
    hint = "check the cable: a request ends when vLLM has waited for VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
    return Alarm("link", since, "the link between the ranks is down", sample.why, hint)


def check_far_memory(state: RunState, now: float) -> Alarm | None:
    """Return the alarm of another host of the server that runs out of memory."""
    for sample in state.ranks.values():
        left, total = sample.available, sample.total
        if total is None or now - sample.at > _KEEPER_SILENT_SECONDS:
            continue
        if is_memory_low(left, total):
            evidence = f"{format_gib(left)} of {format_gib(total)} left; at 0 its kernel kills the largest process"
            hint = f"stop other programs on {sample.host}, or give the KV cache less"
            return Alarm("far memory", sample.at, f"memory of {sample.host} is nearly used up", evidence, hint)
    return None


def check_first_answer(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    """Return the alarm of a first answer that other weights on another host may have given; None where it is right."""
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
    """How busy a rank is: the share of its busiest GPU, or else the processors that it keeps busy, and since when."""

    name: str
    load: float
    text: str
    since: float


def check_halves(state: RunState, now: float) -> Alarm | None:
    """Return the alarm of requests that get no token while a rank does nothing, though all of them are there.

    vLLM's ranks wait for each other within every step, for minutes if need be. A long prompt and kernels that are
    compiled keep every GPU busy, since those that wait for another one do so in a kernel.
    """
    pause = find_token_pause(state, now) if state.ranks and state.warm_at is not None else None
    if pause is None or (state.suspended and state.suspended.pids):
        return None
    if any(sample.state is not RankState.RUNNING for sample in state.ranks.values()):
        return None
    loads = list(_list_loads(state, now))
    if len(loads) <= len(state.ranks) or any(_IDLE < load.load < _BUSY for load in loads):
        return None
    idle, since = [load for load in loads if load.load <= _IDLE], max(pause.since, *(load.since for load in loads))
    if not idle or now - since < HALF_SECONDS:
        return None
    if len(idle) < len(loads):
        what = f"half a server: {' and '.join(load.name for load in idle)} does nothing"
        hint = "see both logs, and the kernel's log there; if it persists, press S to stop the server, on all hosts"
    else:
        what = "half a server: no rank does anything, as if they waited for each other"
        hint = "check the link between the hosts; if it persists, press S to stop the server, on all hosts"
    return Alarm("half a server", since, what, f"{pause.describe(now)}; {', '.join(load.text for load in loads)}", hint)


def _list_loads(state: RunState, now: float) -> Iterator[_RankLoad]:
    """Yield how busy each rank is now, of which that is known: rank 0 by its samples, the others by their keeper's."""
    if gpus := state.gpus.latest(now, MAX_GAP):
        yield from _measure_load(
            "rank 0", state.gpus, gpus, lambda sample: _find_busiest(sample.gpus), host=_HERE, of="GPU"
        )
    elif processors := state.processors.latest(now, MAX_GAP):
        yield from _measure_load("rank 0", state.processors, processors, lambda sample: sample.busy, host=_HERE)
    for rank, samples in state.rank_samples.items():
        if sample := samples.latest(now, _KEEPER_SILENT_SECONDS):
            name, of = f"rank {rank} on {sample.host}", "GPU" if sample.gpus else ""
            yield from _measure_load(name, samples, sample, _read_rank_load, host=sample.host, of=of)


def _read_rank_load(sample: RankSampled) -> float | None:
    return _find_busiest(sample.gpus) if sample.gpus else sample.busy


def _find_busiest(gpus: Sequence[GpuLoad]) -> float | None:
    return max((gpu.utilisation for gpu in gpus if gpu.utilisation is not None), default=None)


def _measure_load(
    name: str, samples: ThinnedSeries[T], last: T, read: Callable[[T], float | None], *, host: str, of: str = ""
) -> Iterator[_RankLoad]:
    """Yield the load that the last of a rank's samples has, unless it has none.

    Args:
        name: the rank.
        samples: its samples.
        last: the last of them.
        read: reads the load of a sample.
        host: where it runs.
        of: what is loaded; empty for processors.
    """
    if (load := read(last)) is None:
        return

    def is_alike(sample: T) -> bool:
        before = read(sample)
        return before is not None and (before <= _IDLE, before >= _BUSY) == (load <= _IDLE, load >= _BUSY)

    text = f"{of} at {format_percent(load)} on {host}" if of else f"{load:.1f} processors busy on {host}"
    yield _RankLoad(name, load, text, condition_start(samples, is_alike))


def check_network(state: RunState, now: float) -> Alarm | None:  # noqa: ARG001 - as above
    """Return the alarm of ranks that talk over sockets where RoCE was found or asked for; NCCL says it in its log."""
    if state.launched is None or not state.launched.roce:
        return None
    networks = {_HERE: state.startup.facts.get(FACT, ("",))[-1]}
    networks |= {sample.host: sample.network for sample in state.ranks.values()}
    slow = [host for host, network in networks.items() if network == SOCKETS]
    if not slow:
        return None
    evidence = f"NCCL's log on {' and '.join(slow)} says Socket, with {state.launched.roce} for RoCE there"
    hint = "see why: dflash-tui logs | grep NET/; a setting NCCL_NET or NCCL_IB_DISABLE of the recipe does it, too"
    return Alarm("sockets", state.launched.at, "NCCL uses sockets instead of RoCE", evidence, hint)
