"""The machine while a boot of an experiment is measured: power, clocks, heat, other load, memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import NamedTuple

import psutil
from msgspec.structs import replace

from dflash_tui.events import GpusSampled, RankSampled, decode_recorded
from dflash_tui.experiments.design import Conditions
from dflash_tui.machine import nvml, system
from dflash_tui.planning.cluster import LOCAL
from dflash_tui.planning.plan import Plan
from dflash_tui.run_state.series import MAX_GAP, ThinnedSeries
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import Run

_POWER = {True: "battery", False: "mains", None: ""}
_NEAR_GPU, _NEAR = 512 << 20, 0.03
_RELEASE_TIMEOUT = 60.0
# The system counts in hundredths of a second.
_MIN_SECONDS = 1.0
# A desktop's own windows hold less; what computes holds more.
_FOREIGN = 256 << 20


class FreeMemory(NamedTuple):
    """Bytes: what the machine has left, and what is in use on each GPU, by UUID."""

    available: int
    used: dict[str, int]


class ProcessorTimes(NamedTuple):
    """Seconds since some moment: of the clock, of all processors at work, and of those that worked for us."""

    clock: float
    busy: float
    ours: float


def read_processor_times(run: Run) -> ProcessorTimes:
    """Return how long the processors have worked by now, in all and for the server and this process."""
    times, ours = psutil.cpu_times(), 0.0
    ranks = [process for rank in list_local_ranks(run) for process in server_process.list_processes(rank)]
    for process in (psutil.Process(), *server_process.list_processes(run), *ranks):
        with contextlib.suppress(psutil.Error):
            spent = process.cpu_times()
            ours += spent.user + spent.system
    # What guests take is in `user` already.
    busy = sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
    return ProcessorTimes(time.monotonic(), busy, ours)


def count_foreign_processors(before: ProcessorTimes, after: ProcessorTimes) -> float | None:
    """Return how many processors others kept busy in between, None when nearly no time went by."""
    seconds, busy = after.clock - before.clock, after.busy - before.busy - (after.ours - before.ours)
    return max(0.0, busy) / seconds if seconds >= _MIN_SECONDS else None


def measure_conditions(run: Run, state: RunState, since: float) -> Conditions:
    """Return the conditions now; throttling and foreign load count when they were seen at any time after `since`."""
    now = time.time()
    on_gpus = summarize_gpu_samples(state.gpus, since, now)
    own = {run.id, *(rank.id for rank in list_local_ranks(run))}
    others = [
        f"server {other.id}"
        for other in registry.list_runs()
        if other.id not in own and other.plan.disturbs(run.plan) and server_process.is_alive(other)
    ]
    return replace(
        on_gpus,
        power=_POWER[system.is_on_battery()],
        foreign=tuple(dict.fromkeys([*(on_gpus.foreign or ()), *others])) if others else on_gpus.foreign,
        available=psutil.virtual_memory().available,
        load=os.getloadavg()[0],
        hosts=_measure_far_hosts(run, since, now),
    )


def _measure_far_hosts(run: Run, since: float, now: float) -> dict[str, Conditions]:
    samples = list[RankSampled]()
    with contextlib.suppress(OSError), run.samples.open("rb") as file:
        for line in file if run.far_ranks else ():
            if b'"rank"' in line and isinstance(event := decode_recorded(line), RankSampled):
                samples.append(event)
    conditions: dict[str, Conditions] = {}
    for far in run.far_ranks:
        own = [sample for sample in samples if sample.rank == far.rank]
        series = ThinnedSeries[GpusSampled]()
        for sample in own:
            if sample.gpus:
                series.append(GpusSampled(sample.at, sample.gpus))
        on_gpus = summarize_gpu_samples(series, since, now)
        foreign = tuple(f"{name} on {far.host}" for name in on_gpus.foreign or ())
        conditions[f"rank {far.rank} on {far.host}"] = replace(
            on_gpus, foreign=foreign or on_gpus.foreign, available=own[-1].available if own else None
        )
    return conditions


def list_local_ranks(run: Run) -> list[Run]:
    """Return the other ranks of a run that are on this machine."""
    names = {far.run for far in run.far_ranks if far.host == LOCAL}
    return [other for other in registry.list_runs() if other.id in names] if names else []


def summarize_gpu_samples(samples: ThinnedSeries[GpusSampled], since: float, at: float) -> Conditions:
    """Return what GPUs said `at` a time; throttling and foreign load count when they were seen at any time `since`.

    Of several GPUs it has the slowest clock, the highest temperature and the sum of the powers.
    """
    first, last = samples.latest(since, MAX_GAP), samples.latest(at, MAX_GAP)
    meanwhile = [*([first] if first else []), *samples[samples.count_until(since) : samples.count_until(at)]]
    cards = last.gpus if last else ()
    powers = [card.power_w for card in cards if card.power_w is not None]
    limits = [card.power_limit_w for card in cards if card.power_limit_w is not None]
    loads = [card for sample in meanwhile for card in sample.gpus]
    throttles = [card.throttle for card in loads if card.throttle is not None]
    of_others = [card.foreign for card in loads if card.foreign is not None]
    heavy = (
        f"{p.name or 'a process'} (pid {p.pid})" for card in of_others for p in card if (p.memory or 0) >= _FOREIGN
    )
    return Conditions(
        at=at,
        clock_mhz=min((card.clock_mhz for card in cards if card.clock_mhz is not None), default=None),
        temperature_c=max((card.temperature_c for card in cards if card.temperature_c is not None), default=None),
        power_w=sum(powers) if powers else None,
        power_limit_w=sum(limits) if limits else None,
        cards=len(cards) or 1,
        throttle=tuple(dict.fromkeys(why for card in throttles for why in card)) if throttles else None,
        foreign=tuple(dict.fromkeys(heavy)) if of_others else None,
    )


def measure_free_memory(plan: Plan) -> FreeMemory:
    """Return the memory of the machine, and that of the plan's GPUs."""
    cards = () if plan.on_cpu else nvml.read_gpus() or ()
    ours = [card for card in cards if not plan.gpus or card.uuid in plan.gpus]
    used = {card.uuid: card.memory_used for card in ours if card.memory_used is not None and not card.unified}
    return FreeMemory(psutil.virtual_memory().available, used)


async def wait_for_memory_release(plan: Plan, before: FreeMemory, patience: float = _RELEASE_TIMEOUT) -> bool:
    """Wait until a server's memory is as free as it was `before` it was launched; return whether it became so."""
    deadline = time.monotonic() + patience
    while True:
        now = await asyncio.to_thread(measure_free_memory, plan)
        used = all(now.used.get(uuid, 0) <= amount + _NEAR_GPU for uuid, amount in before.used.items())
        if used and now.available >= before.available - _NEAR * psutil.virtual_memory().total:
            return True
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(0.25)
