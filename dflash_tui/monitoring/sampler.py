"""What a server's processes and GPUs do: looked at once a second, written down when it has changed."""

from __future__ import annotations

import asyncio
import math
import time

import psutil

from dflash_tui.events import GpusSampled, MemorySampled, Suspended
from dflash_tui.machine import gpus, processes
from dflash_tui.monitoring import activity, gpu_load
from dflash_tui.runs import run_files, server_process
from dflash_tui.runs.run import Run

IDLE_INTERVAL = 10.0
_MEMBERS_INTERVAL = 5.0
_ACTIVITY_INTERVAL = 2.0


class Sampler:
    """Records processes, GPUs and memory of a run when they have changed, and every ten seconds."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.members: list[psutil.Process] = []
        self._memory: MemorySampled | None = None
        self._gpus: GpusSampled | None = None
        self._suspended: tuple[int, ...] = ()
        # Intervals are measured by a clock that nobody sets.
        self._memory_at = self._gpus_at = self._members_at = self._activity_at = -math.inf

    async def look(self, *, starting: bool) -> None:
        """Look once; what the processes have done is of interest while the server is `starting`."""
        now = time.monotonic()
        if now - self._members_at >= _MEMBERS_INTERVAL:
            self.members, self._members_at = await asyncio.to_thread(server_process.list_processes, self._run), now
        if starting and now - self._activity_at >= _ACTIVITY_INTERVAL:
            self._activity_at = now
            did = await asyncio.to_thread(activity.sample_activity, self.members, self._run.log, time.time())
            run_files.record_event(self._run, did)
        suspended = tuple(process.pid for process in self.members if processes.is_suspended(process))
        if suspended != self._suspended:
            self._suspended = suspended
            run_files.record_event(self._run, Suspended(time.time(), suspended))
        cards = None if self._run.plan.on_cpu else await asyncio.to_thread(gpus.read_gpus)
        if cards:
            self._take_gpus(cards, now)
        if sample := self._memory_now(cards):
            moved = self._memory is None or abs(sample.used - self._memory.used) > sample.total / 500
            if moved or now - self._memory_at >= IDLE_INTERVAL:
                self._memory, self._memory_at = sample, now
                run_files.record_event(self._run, sample)

    def _take_gpus(self, cards: tuple[gpus.Gpu, ...], now: float) -> None:
        pids = {process.pid for process in self.members}
        sample = GpusSampled(time.time(), gpu_load.read_gpu_loads(cards, pids, self._run.plan.gpus))
        moved = self._gpus is None or gpu_load.has_load_changed(self._gpus.gpus, sample.gpus)
        if moved or now - self._gpus_at >= IDLE_INTERVAL:
            self._gpus, self._gpus_at = sample, now
            run_files.record_event(self._run, sample)

    def _memory_now(self, cards: tuple[gpus.Gpu, ...] | None) -> MemorySampled | None:
        machine = psutil.virtual_memory()
        if cards and (use := gpus.measure_gpu_memory_use(cards, {process.pid for process in self.members})):
            shared = any(card.unified for card in cards)
            return MemorySampled(time.time(), use.used, use.total, use.source, machine.available if shared else None)
        if self._memory and self._memory.source != "resident":
            return None  # the driver is silent for now, and another kind of memory would be drawn as its answer
        left = machine.available if self._run.plan.on_cpu else None
        return MemorySampled(
            time.time(), processes.measure_resident_memory(self.members), machine.total, "resident", left
        )
