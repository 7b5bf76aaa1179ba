"""The recorder: one observer of a run asks its server and writes down what the log does not say."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable

import httpx

from dflash_tui.benchmark import client
from dflash_tui.common import bounded_http
from dflash_tui.events import (
    Counters,
    Health,
    HealthChanged,
    LatenciesSampled,
    LogLine,
    Sampled,
    decode_recorded,
)
from dflash_tui.machine import processes, system
from dflash_tui.monitoring.recorder_lease import RecorderLease
from dflash_tui.monitoring.sampler import IDLE_INTERVAL, Sampler
from dflash_tui.run_state import idle_probe
from dflash_tui.runs import run_files, server_process
from dflash_tui.runs.run import Run
from dflash_tui.vllm_output import metrics

SAMPLE_INTERVAL = 1.0
FIRST_REQUEST_RETRY = 30.0
# What answers on the port while a server starts may be another that is just ending.
PORT_CONFLICT_DELAY = 10.0
_MAX_LINE = 1 << 20


async def record_when_free(run: Run, tell: Callable[[LogLine], None]) -> None:
    """Ask the server and write down the answers, for as long as it lives and nobody else does.

    `tell` is given a line when nothing can be written, as on a full disk, and when it can again.
    """
    lease, trouble = RecorderLease(run.folder / "recorder"), ""
    try:
        while await asyncio.to_thread(server_process.is_alive, run):
            took = lease.take()
            if lease.trouble != trouble:
                trouble = lease.trouble
                words = f"nothing can be recorded, so figures stand still: {trouble}: {run.folder}"
                tell(LogLine(time.time(), words if trouble else "it is recorded again", "WARNING", "dflash-tui"))
            if took:
                await _Recorder(run, lease).run()
            await asyncio.sleep(SAMPLE_INTERVAL)
    finally:
        lease.release()


async def read_counters(run: Run) -> Counters | None:
    """Return the server's counters now, or None when it does not answer."""
    with contextlib.suppress(bounded_http.BadResponse, *bounded_http.FAILED):
        async with httpx.AsyncClient(base_url=run.url, timeout=5.0, trust_env=False) as client:
            return metrics.parse_counters(
                (await bounded_http.fetch_bounded(client, "/metrics")).decode(errors="replace")
            )
    return None


def _read_recorded_health(run: Run) -> tuple[Health, str, bool]:
    """Return what earlier recorders wrote of the server's health, and whether it has generated before."""
    changes: list[HealthChanged] = []
    with contextlib.suppress(OSError), run.samples.open("rb") as file:
        # Weeks of samples are hundreds of megabytes, few of them about health.
        lines = (line for line in iter(lambda: file.readline(_MAX_LINE), b"") if b'"health"' in line)
        changes = [event for line in lines if isinstance(event := decode_recorded(line), HealthChanged)]
    warm = any(change.health is Health.WARM for change in changes)
    return (changes[-1].health, changes[-1].detail, warm) if changes else (Health.STARTING, "", warm)


class _Recorder:
    """Polls /health, /metrics and the memory once a second and records what changed."""

    def __init__(self, run: Run, lease: RecorderLease) -> None:
        self._run, self._lease = run, lease
        self._health, self._detail, self._warm = _read_recorded_health(run)
        self._owns_port = False
        self._warm_up_due = 0.0
        self._written: Sampled | None = None
        self._seen: Sampled | None = None
        self._latencies: LatenciesSampled | None = None
        self._watch = Sampler(run)
        self._written_at = -math.inf  # by a clock that nobody sets, like all intervals
        self._probe_after = idle_probe.idle_seconds_before_probe()
        self._rests_since = time.monotonic()
        self._complain_at = time.monotonic() + PORT_CONFLICT_DELAY

    async def run(self) -> None:
        """Record until the server or the lease is gone."""
        async with (
            httpx.AsyncClient(base_url=self._run.url, timeout=5.0, trust_env=False) as client,
            asyncio.TaskGroup() as group,
        ):
            asking: asyncio.Task[None] | None = None
            while await asyncio.to_thread(server_process.is_alive, self._run) and self._lease.renew():
                due = time.monotonic() + SAMPLE_INTERVAL
                await self._watch.sample(starting=not self._warm)
                answers = await self._ask(client)
                if answers and (asking is None or asking.done()):
                    if not self._warm and time.monotonic() >= self._warm_up_due:
                        asking = group.create_task(self._warm_up())
                    elif self._warm and time.monotonic() - self._rests_since >= self._probe_after:
                        asking = group.create_task(self._probe())
                await asyncio.sleep(max(0.05, due - time.monotonic()))
            if asking:
                asking.cancel()

    async def _ask(self, client: httpx.AsyncClient) -> bool:
        """Return whether the server answers well, having recorded its counters."""
        if not self._owns_port:
            # Another server may answer on the port while ours is still starting.
            self._owns_port = await asyncio.to_thread(
                processes.is_listening_on, self._watch.members, self._run.plan.port
            )
            if not self._owns_port:
                await self._complain()
                return False
        try:
            await bounded_http.fetch_bounded(client, "/health")
        except (bounded_http.BadResponse, *bounded_http.FAILED) as error:
            if self._health is not Health.STARTING:
                self._change(Health.UNHEALTHY, _describe_error("/health", error))
            return False
        # Counters that cannot be read leave a hole in the charts; they say nothing of a server's health.
        try:
            text = await bounded_http.fetch_bounded(client, "/metrics")
            found = await asyncio.to_thread(metrics.parse_metrics, text.decode(errors="replace"))
            detail = "" if found else "/metrics has no counter of a vLLM server"
        except (bounded_http.BadResponse, *bounded_http.FAILED) as error:
            found, detail = None, _describe_error("/metrics", error)
        self._take(found)
        self._change(Health.WARM if self._warm else Health.HEALTHY, detail)
        return True

    async def _complain(self) -> None:
        """Tell once that somebody else listens on the port: ours, which has bound it at most, never will."""
        port = self._run.plan.port
        if time.monotonic() < self._complain_at or not (
            holder := await asyncio.to_thread(system.find_port_listener, port)
        ):
            return
        if await asyncio.to_thread(processes.is_listening_on, self._watch.members, port):  # since this moment
            return
        detail = f"port {port} is held by {holder}; no process of this server listens there"
        self._change(Health.UNHEALTHY, detail)

    def _change(self, health: Health, detail: str = "") -> None:
        # A failed first request is not undone by /health, which answers 200 from a server that cannot generate.
        failed = self._health is Health.UNHEALTHY and not self._warm and health is Health.HEALTHY
        if (health, detail) != (self._health, self._detail) and not failed:
            self._health, self._detail = health, detail
            run_files.record_event(self._run, HealthChanged(time.time(), health, detail))

    def _take(self, found: metrics.Scrape | None) -> None:
        """Record what changed of a reading, and every ten seconds."""
        if found is None:
            return
        latencies = LatenciesSampled(time.time(), found.ttft, found.tpot)
        if (found.ttft or found.tpot) and not _same_latencies(latencies, self._latencies):
            self._latencies = latencies
            run_files.record_event(self._run, latencies)
        self._take_counters(found.counters)

    def _take_counters(self, counters: Counters) -> None:
        """Record a reading when it differs, and every ten seconds.

        Before a changed reading the last equal one is written, so that a burst is measured from its own start.
        """
        reading, before, now = Sampled(time.time(), counters), self._seen, time.monotonic()
        self._seen = reading
        changed = self._written is None or counters != self._written.counters
        if changed or counters.running:
            self._rests_since = now
        if changed and before and before is not self._written:
            run_files.record_event(self._run, before)
        if changed or now - self._written_at >= IDLE_INTERVAL:
            run_files.record_event(self._run, reading)
            self._written, self._written_at = reading, now

    async def _probe(self) -> None:
        """Ask for one token; whether it came is recorded, and what it means is for `alarms` to say."""
        done = await client.send_probe(
            self._run.url, self._run.plan.served_name, idle_probe.PROBE_TIMEOUT, key=self._run.key
        )
        run_files.record_event(self._run, done)
        self._rests_since = time.monotonic()

    async def _warm_up(self) -> None:
        """Send one real request: a server with a wrong drafter gets ready and dies on the first one.

        The first may take minutes (kernels are compiled for it), so it has the patience of any other; one that
        fails is tried again after a while.
        """
        done = await client.send_first_request(self._run.url, self._run.plan.served_name, key=self._run.key)
        run_files.record_event(self._run, done)
        self._warm = not done.error
        self._warm_up_due = time.monotonic() + FIRST_REQUEST_RETRY
        self._change(Health.WARM if self._warm else Health.UNHEALTHY, done.error)


def _describe_error(path: str, error: Exception) -> str:
    return str(error) if isinstance(error, bounded_http.BadResponse) else f"{path}: {type(error).__name__}"


def _same_latencies(one: LatenciesSampled, other: LatenciesSampled | None) -> bool:
    return other is not None and (one.ttft, one.tpot) == (other.ttft, other.tpot)
