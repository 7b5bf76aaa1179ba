"""Sample the processes, GPUs and memory of a server once a second, and record changes."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from dflash_tui.events import (
    Activity,
    Foreign,
    GpuLoad,
    GpusSampled,
    MemorySampled,
    ProcessorsSampled,
    Recorded,
    Suspended,
)
from dflash_tui.machine import nvml, processes, system
from dflash_tui.machine.gpus import Gpu, GpuProcess
from dflash_tui.runs import server_process
from dflash_tui.runs.run import Run


def read_gpu_loads(cards: Sequence[Gpu], pids: set[int], uuids: Sequence[str] = ()) -> tuple[GpuLoad, ...]:
    """Return the load of the GPUs that hold a process of `pids`, else of those in `uuids`, else of all.

    In a container with its own pids the driver may list none of `pids`: `foreign` is then None.
    """
    ours = [card for card in cards if any(holder.pid in pids for holder in card.processes or ())]
    named = [card for card in cards if card.uuid in uuids]
    return tuple(_gpu_load(card, pids if ours else None) for card in ours or named or cards)


def measure_gpu_memory(cards: Sequence[Gpu], pids: set[int]) -> tuple[int, int, str] | None:
    """Return used and total bytes of the GPUs that hold processes of `pids`, and whose use that is; None if unknown.

    If NVML does not report memory per process (unified memory, containers with their own pids), it is that of all
    processes on all GPUs.
    """
    ours = {card: [holder for holder in card.processes or () if holder.pid in pids] for card in cards}
    uses = {card: sum(holder.memory or 0 for holder in holders) for card, holders in ours.items() if holders}
    if uses and all(uses.values()):
        return sum(uses.values()), sum(card.memory_total or 0 for card in uses), "GPU"
    readable = [card for card in cards if card.memory_total]
    if not readable:
        return None
    used, total = sum(card.memory_used or 0 for card in readable), sum(card.memory_total or 0 for card in readable)
    return used, total, "unified, all" if readable[0].unified else "GPU, all"


def _gpu_load(card: Gpu, pids: set[int] | None) -> GpuLoad:
    others = None if pids is None else tuple(h for h in card.processes or () if h.pid not in pids)
    return GpuLoad(
        index=card.index,
        power_w=card.power_w,
        power_limit_w=card.power_limit_w,
        clock_mhz=card.sm_clock_mhz,
        clock_max_mhz=card.sm_clock_max_mhz,
        temperature_c=card.temperature_c,
        utilisation=card.utilisation,
        memory_used=card.memory_used,
        memory_total=card.memory_total,
        throttle=card.throttle,
        foreign=None if others is None else tuple(map(_foreign_process, others)),
    )


def _foreign_process(holder: GpuProcess) -> Foreign:
    # A process name may hold any character.
    return Foreign(holder.pid, "".join(c for c in holder.name if c.isprintable())[:40], holder.memory)


def has_load_changed(before: Sequence[GpuLoad], after: Sequence[GpuLoad]) -> bool:
    """Whether a chart or alarm would show the change: 3 % of power or clock, 2 °C, 1 % of the memory."""
    if len(before) != len(after):
        return True
    return any(_has_gpu_changed(old, new) for old, new in zip(before, after, strict=True))


def _has_gpu_changed(old: GpuLoad, new: GpuLoad) -> bool:
    if (old.index, old.throttle) != (new.index, new.throttle):
        return True
    if old.foreign is None or new.foreign is None:
        others_changed = old.foreign is not new.foreign
    else:
        others_changed = {process.pid for process in old.foreign} != {process.pid for process in new.foreign}
    return others_changed or any(
        _differ_by(a, b, step)
        for a, b, step in (
            (old.power_w, new.power_w, (old.power_limit_w or 300) * 0.03),
            (old.clock_mhz, new.clock_mhz, (old.clock_max_mhz or 2000) * 0.03),
            (old.temperature_c, new.temperature_c, 2),
            (old.memory_used, new.memory_used, (old.memory_total or 1 << 36) * 0.01),
            (old.utilisation, new.utilisation, 0.1),
        )
    )


def _differ_by(old: float | None, new: float | None, step: float) -> bool:
    return abs(old - new) >= step if old is not None and new is not None else old is not new


IDLE_INTERVAL = 10.0
_MEMBERS_INTERVAL = 5.0
_ACTIVITY_INTERVAL = 2.0
_BUSIER = 0.1  # processors; smaller changes are recorded only every ten seconds


class Sampler:
    """Records processes, GPUs and memory of a run when they change, and every ten seconds."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.members: list[psutil.Process] = []
        self._memory: MemorySampled | None = None
        self._gpus: GpusSampled | None = None
        self._suspended: tuple[int, ...] = ()
        self._processors: ProcessorsSampled | None = None
        self._worked: tuple[float, ProcessorUse] | None = None  # time and value of the last measurement
        self._members_at = self._activity_at = -math.inf
        self._recorded_at: dict[type[Recorded], float] = {}

    async def sample(self, *, starting: bool) -> None:
        """Sample once; CPU time and disk bytes only while `starting`, when the log may be silent."""
        now = time.monotonic()
        if now - self._members_at >= _MEMBERS_INTERVAL:
            self.members, self._members_at = await asyncio.to_thread(server_process.list_processes, self._run), now
        if starting and now - self._activity_at >= _ACTIVITY_INTERVAL:
            self._activity_at = now
            activity = await asyncio.to_thread(sample_activity, self.members, self._run.log, time.time())
            self._run.record(activity)
        if self._run.plan.on_cpu:
            await self._record_processors(now)
        suspended = tuple(process.pid for process in self.members if processes.is_suspended(process))
        if suspended != self._suspended:
            self._suspended = suspended
            self._run.record(Suspended(time.time(), suspended))
        cards = () if self._run.plan.on_cpu else (await asyncio.to_thread(nvml.probe_gpus)).gpus
        if cards:
            self._record_gpus(cards, now)
        if sample := self._measure_memory(cards):
            changed = self._memory is None or abs(sample.used - self._memory.used) > sample.total / 500
            if self._record(sample, now, changed):
                self._memory = sample

    def _record(self, sample: Recorded, now: float, changed: bool) -> bool:
        if not changed and now - self._recorded_at[type(sample)] < IDLE_INTERVAL:
            return False
        self._recorded_at[type(sample)] = now
        self._run.record(sample)
        return True

    async def _record_processors(self, now: float) -> None:
        if self._worked and now - self._worked[0] < _ACTIVITY_INTERVAL:
            return
        worked, use = self._worked, await asyncio.to_thread(measure_processor_use, self.members)
        self._worked = (now, use)
        if worked is None or use.seconds < worked[1].seconds:  # a process has ended, and its time is no longer counted
            return
        seconds, before = now - worked[0], worked[1]
        busy, all_busy = ((b - a) / seconds for a, b in zip(before[:2], use[:2], strict=True))
        others = max(0.0, all_busy - busy) if use.processors == before.processors else None
        sample = ProcessorsSampled(
            time.time(), round(busy, 2), use.processors, use.threads, None if others is None else round(others, 2)
        )
        last = self._processors
        changed = (
            last is None
            or sample.threads != last.threads
            or abs(sample.busy - last.busy) > _BUSIER
            or _differ_by(last.others, sample.others, 2 * _BUSIER)
        )
        if self._record(sample, now, changed):
            self._processors = sample

    def _record_gpus(self, cards: tuple[Gpu, ...], now: float) -> None:
        pids = {process.pid for process in self.members}
        sample = GpusSampled(time.time(), read_gpu_loads(cards, pids, self._run.plan.gpus))
        changed = self._gpus is None or has_load_changed(self._gpus.gpus, sample.gpus)
        if self._record(sample, now, changed):
            self._gpus = sample

    def _measure_memory(self, cards: tuple[Gpu, ...]) -> MemorySampled | None:
        use = measure_gpu_memory(cards, {process.pid for process in self.members})
        if use is None and self._memory and self._memory.source != "resident":
            return None  # the driver does not answer; another kind of memory must not take its place
        machine, swapped = psutil.virtual_memory(), processes.measure_swapped_memory(self.members)
        used, total, source = use or (processes.measure_resident_memory(self.members), machine.total, "resident")
        if not (self._run.plan.on_cpu or any(card.unified for card in cards)):
            return MemorySampled(time.time(), used, total, source, swapped=swapped)
        left, cached, stalled = machine.available, machine.cached, system.read_memory_stall()
        return MemorySampled(time.time(), used, total, source, left, swapped, cached, stalled)


class ProcessorUse(NamedTuple):
    """The processor time that processes have used so far, in seconds."""

    seconds: float
    machine_seconds: float
    """The time that all programs have used on the processors that these processes may run on."""
    processors: int
    """The number of processors that they may run on."""
    threads: int


def measure_processor_use(members: Iterable[psutil.Process]) -> ProcessorUse:
    """Return processor time and threads of `members`, and the time of all programs on the same processors.

    Members of other users are not counted.
    """
    seconds, threads = 0.0, 0
    allowed: set[int] = set()
    for process in members:
        try:
            with process.oneshot():
                times = process.cpu_times()
                seconds += times.user + times.system
                threads += process.num_threads()
            allowed.update(process.cpu_affinity() or ())
        except psutil.Error:
            continue
    cores = psutil.cpu_times(percpu=True) if allowed else []
    idle = ("idle", "iowait", "guest", "guest_nice")  # guest time is part of user time
    machine = sum(sum(cores[i]) - sum(getattr(cores[i], name, 0.0) for name in idle) for i in allowed if i < len(cores))
    return ProcessorUse(seconds, machine, len(allowed), threads)


def sample_activity(members: Iterable[psutil.Process], log: Path, at: float) -> Activity:
    """Return CPU time and disk bytes of `members` and their exited children, and the size of the log.

    They grow while the log is silent. Memory-mapped weights count as disk bytes when they are read from a disk
    (proc(5), io: read_bytes). Members of other users are not counted.
    """
    cpu, disk = 0.0, 0
    for process in members:
        try:
            times = process.cpu_times()
            cpu += times.user + times.system + times.children_user + times.children_system
            io = process.io_counters()
            disk += io.read_bytes + io.write_bytes
        except (psutil.Error, RuntimeError, ValueError):  # the latter two if /proc has no io for it
            continue
    try:
        size = log.stat().st_size
    except OSError:
        size = 0
    return Activity(at, round(cpu, 2), disk, size)
