"""The recorder: one observer of a run asks its server and writes down what the log does not say."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from pathlib import Path

import httpx
import psutil

from dflash_tui.core import gpu, processes, server, vllm_metrics, workload
from dflash_tui.core.events import (
    Counters,
    Health,
    HealthChanged,
    MemorySampled,
    Sampled,
    decode_recorded,
)
from dflash_tui.core.server import Run

SAMPLE_INTERVAL = 1.0
LEASE = 5.0
WARM_UP_AGAIN = 30.0
_IDLE_INTERVAL = 10.0
_MEMBERS_INTERVAL = 5.0


async def whenever_free(run: Run) -> None:
    """Ask the server and write down the answers, for as long as it lives and nobody else does."""
    lease = _Lease(run.folder / "recorder")
    try:
        while await asyncio.to_thread(server.alive, run):
            if lease.take():
                await _Recorder(run, lease).run()
            await asyncio.sleep(SAMPLE_INTERVAL)
    finally:
        lease.give_back()


def _known(run: Run) -> tuple[Health, bool]:
    """Return what earlier recorders wrote of the server's health, and whether it has generated before."""
    changes: list[HealthChanged] = []
    with contextlib.suppress(OSError):
        lines = run.samples.read_bytes().split(b"\n")
        changes = [event for line in lines if isinstance(event := decode_recorded(line), HealthChanged)]
    warm = any(change.health is Health.WARM for change in changes)
    return (changes[-1].health if changes else Health.STARTING), warm


class _Lease:
    """A file that names the one observer that records; whoever does not renew it in time has lost it.

    A lock would be kept by an observer that was suspended or waits for its terminal, and everybody with it.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._me = path, f"{os.getpid()}-{time.time_ns()}"

    def take(self) -> bool:
        """Take the lease if nobody has it, and say whether it is ours; the last of two that try has it."""
        with contextlib.suppress(OSError):
            if 0 <= time.time() - self._path.stat().st_mtime < LEASE:
                return self.renew()
        return self._write()

    def renew(self) -> bool:
        """Keep the lease and say whether it was still ours."""
        try:
            return self._path.read_text() == self._me and self._write()
        except (OSError, UnicodeDecodeError):
            return False

    def give_back(self) -> None:
        """Let the next observer have it at once."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if self._path.read_text() == self._me:
                self._path.unlink()

    def _write(self) -> bool:
        temporary = self._path.with_name(f"recorder.{self._me}")
        try:
            temporary.write_text(self._me)
            temporary.replace(self._path)
        except OSError:
            return False
        return True


class _Recorder:
    """Polls /health, /metrics and the memory once a second and records what changed."""

    def __init__(self, run: Run, lease: _Lease) -> None:
        self._run, self._lease = run, lease
        self._health, self._warm = _known(run)
        self._owns_port = False
        self._warm_up_due = 0.0
        self._written: Sampled | None = None
        self._seen: Sampled | None = None
        self._memory: MemorySampled | None = None
        # Intervals are measured by a clock that nobody sets.
        self._written_at = self._memory_at = self._members_at = -math.inf
        self._members: list[psutil.Process] = []

    async def run(self) -> None:
        """Record until the server or the lease is gone."""
        async with (
            httpx.AsyncClient(base_url=self._run.url, timeout=5.0, trust_env=False) as client,
            asyncio.TaskGroup() as group,
        ):
            warming: asyncio.Task[None] | None = None
            while await asyncio.to_thread(server.alive, self._run) and self._lease.renew():
                due = time.monotonic() + SAMPLE_INTERVAL
                await self._look_at_processes()
                idle = warming is None or warming.done()
                if await self._ask(client) and not self._warm and idle and time.monotonic() >= self._warm_up_due:
                    warming = group.create_task(self._warm_up())
                await asyncio.sleep(max(0.05, due - time.monotonic()))
            if warming:
                warming.cancel()

    async def _ask(self, client: httpx.AsyncClient) -> bool:
        """Return whether the server answers well, having recorded its counters."""
        if not self._owns_port:
            # Another server may answer on the port while ours is still starting.
            self._owns_port = await asyncio.to_thread(processes.listens, self._members, self._run.plan.port)
            if not self._owns_port:
                return False
        try:
            answer = await client.get("/health")
            if answer.status_code == 200:
                self._take(vllm_metrics.parse((await client.get("/metrics")).text))
                self._change(Health.WARM if self._warm else Health.HEALTHY)
                return True
            detail = f"HTTP {answer.status_code}"
        except httpx.HTTPError as error:
            detail = type(error).__name__
        if self._health is not Health.STARTING:
            self._change(Health.UNHEALTHY, f"/health: {detail}")
        return False

    def _change(self, health: Health, detail: str = "") -> None:
        # A failed first request is not undone by /health, which answers 200 from a server that cannot generate.
        failed = self._health is Health.UNHEALTHY and not self._warm and health is Health.HEALTHY
        if health is not self._health and not failed:
            self._health = health
            server.record(self._run, HealthChanged(time.time(), health, detail))

    def _take(self, counters: Counters | None) -> None:
        """Record a reading when it differs, and every ten seconds.

        Before a changed reading the last equal one is written, so that a burst is measured from its own start.
        """
        if counters is None:
            return
        reading, before, now = Sampled(time.time(), counters), self._seen, time.monotonic()
        self._seen = reading
        changed = self._written is None or counters != self._written.counters
        if changed and before and before is not self._written:
            server.record(self._run, before)
        if changed or now - self._written_at >= _IDLE_INTERVAL:
            server.record(self._run, reading)
            self._written, self._written_at = reading, now

    async def _warm_up(self) -> None:
        """Send one real request: a server with a wrong drafter gets ready and dies on the first one.

        The first may take minutes (kernels are compiled for it), so it has the patience of any other; one that
        fails is tried again after a while.
        """
        done = await workload.first(self._run.url, self._run.plan.served_name)
        server.record(self._run, done)
        self._warm = not done.error
        self._warm_up_due = time.monotonic() + WARM_UP_AGAIN
        self._change(Health.WARM if self._warm else Health.UNHEALTHY, done.error)

    async def _look_at_processes(self) -> None:
        now = time.monotonic()
        if now - self._members_at >= _MEMBERS_INTERVAL:
            self._members, self._members_at = await asyncio.to_thread(server.members, self._run), now
        sample = await asyncio.to_thread(self._memory_now)
        if sample is None:
            return
        moved = self._memory is None or abs(sample.used - self._memory.used) > sample.total / 500
        if moved or now - self._memory_at >= _IDLE_INTERVAL:
            self._memory, self._memory_at = sample, now
            server.record(self._run, sample)

    def _memory_now(self) -> MemorySampled | None:
        if not self._run.plan.on_cpu and (use := gpu.memory_of({process.pid for process in self._members})):
            return MemorySampled(time.time(), use.used, use.total, use.source)
        if self._memory and self._memory.source != "resident":
            return None  # the driver is silent for now, and another kind of memory would be drawn as its answer
        return MemorySampled(time.time(), processes.resident(self._members), psutil.virtual_memory().total, "resident")
