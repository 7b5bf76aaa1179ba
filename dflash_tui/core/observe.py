"""A run's files and server -> events, for any number of observers at once.

Everything comes from two files, so that attaching late shows the same as watching from the start: `server.log`,
which the server writes, and `samples.jsonl`. One of the observers, the one that holds the lock, is the recorder:
it asks the server and writes down what it hears; the others, and itself, read that.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import heapq
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

import httpx
import psutil

from dflash_tui.core import gpu, server, vllm_metrics, workload
from dflash_tui.core.events import (
    AnyEvent,
    Counters,
    Exited,
    Health,
    HealthChanged,
    MemorySampled,
    Sampled,
    decode,
)
from dflash_tui.core.server import Run
from dflash_tui.core.state import RunState
from dflash_tui.core.vllm_log import LogReader

LOG_INTERVAL = 0.25
SAMPLE_INTERVAL = 1.0
_IDLE_INTERVAL = 10.0
_MEMBERS_INTERVAL = 5.0
_CHUNK = 1 << 20
_Queue = asyncio.Queue[AnyEvent | BaseException | None]


class _Tail:
    """Reads what was added to a file since the last time."""

    def __init__(self, path: Path) -> None:
        self._path, self._position = path, 0

    def read(self) -> bytes:
        """Return at most a chunk of new bytes; empty when there are none or the file is not there."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read(_CHUNK)
        except OSError:
            return b""
        self._position += len(data)
        return data


class _Source:
    """The events of a run in its two files, read bit by bit."""

    def __init__(self, run: Run) -> None:
        self._log, self._samples = _Tail(run.log), _Tail(run.samples)
        self._reader = LogReader(run.started_at, run.utc_offset)
        self._rest = b""

    def read(self) -> tuple[list[AnyEvent], bool]:
        """Return the next events, by time, and whether there may be more at once."""
        log, samples = self._log.read(), self._samples.read()
        *lines, self._rest = (self._rest + samples).split(b"\n")
        recorded = [event for line in lines if (event := decode(line))]
        merged = heapq.merge(self._reader.feed(log), recorded, key=lambda event: event.at)
        return list(merged), bool(log or samples)


def replay(run: Run) -> RunState:
    """Return the state of `run` as its files tell it now, without asking the server."""
    state = RunState()
    for event in _opening(run):
        state.apply(event)
    source, more = _Source(run), True
    while more:
        events, more = source.read()
        for event in events:
            state.apply(event)
    if state.exit is None and not server.alive(run):
        state.apply(_ended(run))
    return state


async def read_counters(run: Run) -> Counters | None:
    """Return the server's counters now, or None when it does not answer."""
    with contextlib.suppress(httpx.HTTPError):
        async with httpx.AsyncClient(base_url=run.url, timeout=5.0, trust_env=False) as client:
            return vllm_metrics.parse((await client.get("/metrics")).text)
    return None


@asynccontextmanager
async def observe(run: Run) -> AsyncIterator[AsyncIterator[AnyEvent]]:
    """Yield the events of `run` from its launch on; they end after `Exited`.

    Leaving the context ends the watching, never the server.
    """
    queue: _Queue = asyncio.Queue()

    async def events() -> AsyncIterator[AnyEvent]:
        while (item := await queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    # Not a TaskGroup: it would wrap every error of the caller's own block into a group.
    tasks = [asyncio.create_task(work) for work in (_follow(run, queue), _record(run))]
    for task in tasks:
        task.add_done_callback(lambda done: _pass_on(done, queue))
    try:
        yield events()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _pass_on(done: asyncio.Task[None], queue: _Queue) -> None:
    """Hand the error of a finished task to whoever reads the events."""
    if not done.cancelled() and (error := done.exception()):
        queue.put_nowait(error)


def _opening(run: Run) -> Iterator[AnyEvent]:
    yield from run.prepared
    yield run.launched


def _ended(run: Run) -> Exited:
    """Return the exit of a run that nobody saw end: the last thing written is the best known time."""
    written = [path.stat().st_mtime for path in (run.log, run.samples) if path.exists()]
    return Exited(max(written, default=run.started_at), None)


async def _follow(run: Run, queue: _Queue) -> None:
    for event in _opening(run):
        queue.put_nowait(event)
    source, ended, was_alive = _Source(run), False, False
    while True:
        running = await asyncio.to_thread(server.alive, run)
        more = True
        while more:
            events, more = source.read()
            for event in events:
                ended = ended or isinstance(event, Exited)
                queue.put_nowait(event)
            await asyncio.sleep(0)
        if not running:
            break
        was_alive = True
        await asyncio.sleep(LOG_INTERVAL)
    if not ended:
        exit_event = Exited(time.time(), server.exit_code(run)) if was_alive else _ended(run)
        server.record(run, exit_event)
        queue.put_nowait(exit_event)
    queue.put_nowait(None)


async def _record(run: Run) -> None:
    """Ask the server and write down the answers, for as long as it lives and nobody else does."""
    with contextlib.suppress(OSError), run.samples.open("ab") as lock:
        while await asyncio.to_thread(server.alive, run):
            if _locked(lock):
                await _Recorder(run).run()
            await asyncio.sleep(SAMPLE_INTERVAL)


def _locked(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class _Recorder:
    """Polls /health, /metrics and the memory once a second and records what changed."""

    def __init__(self, run: Run) -> None:
        self._run = run
        before = replay(run)
        self._health, self._warm = before.health, before.warm_at is not None
        self._counters: tuple[float, Counters | None, bool] = (0.0, None, True)
        self._memory = MemorySampled(0.0, 0, 1, "")
        self._members: list[psutil.Process] = []
        self._members_at = 0.0

    async def run(self) -> None:
        """Record until the server is gone."""
        async with (
            httpx.AsyncClient(base_url=self._run.url, timeout=5.0, trust_env=False) as client,
            asyncio.TaskGroup() as group,
        ):
            warming: asyncio.Task[None] | None = None
            while await asyncio.to_thread(server.alive, self._run):
                due = time.monotonic() + SAMPLE_INTERVAL
                if await self._ask(client) and not self._warm and warming is None:
                    warming = group.create_task(self._warm_up(client))
                await self._sample_memory()
                await asyncio.sleep(max(0.05, due - time.monotonic()))
            if warming:
                warming.cancel()

    async def _ask(self, client: httpx.AsyncClient) -> bool:
        """Return whether the server answers well, having recorded its counters."""
        starting = self._health is Health.STARTING
        try:
            answer = await client.get("/health")
            if answer.status_code == 200:
                metrics = await client.get("/metrics")
                self._take(vllm_metrics.parse(metrics.text))
        except httpx.HTTPError as error:
            if not starting:
                self._change(Health.UNHEALTHY, f"/health: {type(error).__name__}")
            return False
        if answer.status_code == 200:
            self._change(Health.WARM if self._warm else Health.HEALTHY)
            return True
        if not starting:
            self._change(Health.UNHEALTHY, f"/health: HTTP {answer.status_code}")
        return False

    def _change(self, health: Health, detail: str = "") -> None:
        # A failed first request is not undone by /health, which answers 200 from a server that cannot generate.
        failed = self._health is Health.UNHEALTHY and not self._warm and health is Health.HEALTHY
        if health is not self._health and not failed:
            self._health = health
            server.record(self._run, HealthChanged(time.time(), health, detail))

    def _take(self, counters: Counters | None) -> None:
        """Record a reading when it says something new: a change, the first standstill, or the ten-second beat."""
        if counters is None:
            return
        now = time.time()
        at, last, still = self._counters
        same = counters == last
        if not same or not still or now - at >= _IDLE_INTERVAL:
            server.record(self._run, Sampled(now, counters))
            self._counters = (now, counters, same)

    async def _warm_up(self, client: httpx.AsyncClient) -> None:
        """Send one real request: a server with a wrong drafter gets ready and dies on the first one."""
        done = await workload.send(client, self._run.plan.served_name, workload.WARMUP)
        server.record(self._run, done)
        self._warm = not done.error
        self._change(Health.WARM if self._warm else Health.UNHEALTHY, done.error)

    async def _sample_memory(self) -> None:
        sample = await asyncio.to_thread(self._memory_now)
        moved = abs(sample.used - self._memory.used) > sample.total / 500
        if moved or sample.at - self._memory.at >= _IDLE_INTERVAL:
            self._memory = sample
            server.record(self._run, sample)

    def _memory_now(self) -> MemorySampled:
        now = time.time()
        if found := gpu.probe().gpus:
            first = found[0]
            return MemorySampled(now, first.memory_used, first.memory_total, "unified" if first.unified else "GPU")
        if now - self._members_at > _MEMBERS_INTERVAL:
            self._members, self._members_at = server.processes(self._run), now
        return MemorySampled(now, server.memory(self._members), psutil.virtual_memory().total, "resident")
