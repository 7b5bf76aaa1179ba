"""Record a run: poll its server, GPUs and memory, and write the samples that every observer reads."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_tui.benchmark import client
from dflash_tui.benchmark.client import fetch_metrics
from dflash_tui.benchmark.server import Server
from dflash_tui.common import bounded_http, private_files
from dflash_tui.events import (
    OBSERVER_SOURCE,
    Health,
    HealthChanged,
    Histogram,
    LatenciesSampled,
    LogLine,
    Sampled,
)
from dflash_tui.machine import processes
from dflash_tui.monitoring import first_answer
from dflash_tui.monitoring.sampler import IDLE_INTERVAL, Sampler
from dflash_tui.planning.startup_optimizations import WARM_UP
from dflash_tui.runs import server_process
from dflash_tui.runs.run import Run
from dflash_tui.vllm_output.metrics import Scrape

if TYPE_CHECKING:
    import httpx

_DEFAULT_IDLE_SECONDS = 600.0
PROBE_TIMEOUT = 60.0
_MIN_IDLE_SECONDS = 10.0


def idle_seconds_before_probe() -> float:
    """Return the idle seconds before a probe: DFLASH_TUI_PROBE, by default 600; infinity if it is 0."""
    try:
        seconds = float(os.environ.get("DFLASH_TUI_PROBE", _DEFAULT_IDLE_SECONDS))
    except ValueError:
        return _DEFAULT_IDLE_SECONDS
    return max(_MIN_IDLE_SECONDS, seconds) if seconds > 0 else math.inf


LEASE_SECONDS = 5.0
_LARGEST = 1 << 10


class RecorderLease:
    """A file that names the one observer that records, and that expires unless it is renewed.

    An observer that is suspended, or blocked by its terminal, would keep a lock.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._me = path, f"{os.getpid()}-{time.time_ns()}"
        self.write_error = ""  # of the last attempt; empty when it succeeded

    def acquire(self) -> bool:
        """Acquire the lease if it is free, and return whether it is ours; of two observers at once the last wins."""
        holder, renewed_at = self._read()
        if holder != self._me and 0 <= time.monotonic() - renewed_at < LEASE_SECONDS:
            self.write_error = ""  # another observer could write there
            return False
        return self._write()

    def renew(self) -> bool:
        """Renew the lease and return whether it was still ours."""
        return self._read()[0] == self._me and self._write()

    def release(self) -> None:
        """Release the lease, so that another observer can acquire it at once."""
        with contextlib.suppress(OSError):
            if self._read()[0] == self._me:
                self._path.unlink()

    def _read(self) -> tuple[str, float]:
        """Return the holder and its last renewal by the monotonic clock; empty and -inf if the file is unusable."""
        try:
            holder, renewed_at = private_files.read_file(self._path, _LARGEST).decode().split()
            return holder, float(renewed_at)
        except (OSError, ValueError):
            return "", -math.inf

    def _write(self) -> bool:
        try:
            private_files.replace_private_file(self._path, f"{self._me} {time.monotonic()}".encode())
        except OSError as error:
            self.write_error = error.strerror or str(error)
            return False
        self.write_error = ""
        return True


SAMPLE_INTERVAL = 1.0
FIRST_REQUEST_RETRY = 30.0
# Lengths, in words, of the longer warm-up prompts. On an H100 (26B-A4B with DFlash, vLLM 0.26.0) the first prompt above
# a step's 16 tokens compiled another attention kernel, and those of 100 and 300 tokens further ones (docs/faster.md).
_LONG_WARM_UPS = (30, 100, 300)
# While a server starts, another one that is exiting may still answer on the port.
PORT_CONFLICT_DELAY = 10.0
# Consecutive failed health checks of an unhealthy server; a busy one may miss one, as while it compiles.
_FAILED_CHECKS = 2
RECORDING_AGAIN = "recording again"
_TIMEOUT = 5.0


async def record_when_free(run: Run, report_line: Callable[[LogLine], None]) -> None:
    """Record `run` while its server runs, whenever no other observer does.

    `report_line` is called when recording fails, as on a full disk, and when it works again.
    """
    lease, write_error = RecorderLease(run.folder / "recorder"), ""
    try:
        while server_process.is_alive(run):
            acquired = lease.acquire()
            if lease.write_error != write_error:
                write_error = lease.write_error
                problem = f"cannot record, so figures are not updated: {write_error}: {run.folder}"
                text = problem if write_error else RECORDING_AGAIN
                report_line(LogLine(time.time(), text, "WARNING", OBSERVER_SOURCE))
            if acquired:
                await _Recorder(run, lease).run()
            await asyncio.sleep(SAMPLE_INTERVAL)
    finally:
        lease.release()


class _Recorder:
    """Polls /health, /metrics, GPUs and memory once a second and records what changed."""

    def __init__(self, run: Run, lease: RecorderLease) -> None:
        self._run, self._lease = run, lease
        changes = run.read_recorded(HealthChanged)
        self._health, self._detail = (changes[-1].health, changes[-1].detail) if changes else (Health.STARTING, "")
        self._warm = any(change.health is Health.WARM for change in changes)
        self._owns_port = False
        self._failed_checks = 0
        self._first_request_at = 0.0
        self._last_recorded: Sampled | None = None
        self._last_reading: Sampled | None = None
        self._latencies: tuple[Histogram | None, Histogram | None] = (None, None)
        self._sampler = Sampler(run)
        self._recorded_at = -math.inf  # by the monotonic clock, like all intervals
        self._probe_after = idle_seconds_before_probe()
        self._idle_since = time.monotonic()
        self._port_conflict_at = time.monotonic() + PORT_CONFLICT_DELAY

    async def run(self) -> None:
        """Record until the server has exited or the lease is lost."""
        async with bounded_http.open_client(self._run.url, timeout=_TIMEOUT) as client, asyncio.TaskGroup() as group:
            request: asyncio.Task[None] | None = None
            while server_process.is_alive(self._run) and self._lease.renew():
                due = time.monotonic() + SAMPLE_INTERVAL
                await self._sampler.sample(starting=not self._warm)
                # Only rank 0 serves HTTP; the other ranks' port is the rendezvous.
                healthy = not self._run.plan.rank and await self._poll(client)
                if healthy and (request is None or request.done()):
                    if not self._warm and time.monotonic() >= self._first_request_at:
                        request = group.create_task(self._send_first_request())
                    elif self._warm and time.monotonic() - self._idle_since >= self._probe_after:
                        request = group.create_task(self._send_probe())
                await asyncio.sleep(max(0.05, due - time.monotonic()))
            if request:
                request.cancel()

    async def _poll(self, client: httpx.AsyncClient) -> bool:
        if not self._owns_port:
            # Another server may answer on the port while ours is still starting.
            self._owns_port = await asyncio.to_thread(
                processes.is_listening_on, self._sampler.members, self._run.plan.port
            )
            if not self._owns_port:
                await self._report_port_conflict()
                return False
        try:
            await bounded_http.fetch_bounded(client, "/health")
        except bounded_http.list_failures(bounded_http.BadResponse) as error:
            self._failed_checks += 1
            if self._health is not Health.STARTING and self._failed_checks >= _FAILED_CHECKS:
                self._record_health(Health.UNHEALTHY, _describe_error("/health", error))
            return False
        self._failed_checks = 0
        # Unreadable counters leave a gap in the charts; they do not make a server unhealthy.
        try:
            self._record_metrics(await fetch_metrics(client))
            detail = ""
        except bounded_http.list_failures(bounded_http.BadResponse) as error:
            detail = _describe_error("/metrics", error)
        self._record_health(Health.WARM if self._warm else Health.HEALTHY, detail)
        return True

    async def _report_port_conflict(self) -> None:
        """Record that another program listens on the port, so that this server never will."""
        port = self._run.plan.port
        if time.monotonic() < self._port_conflict_at or not (
            holder := await asyncio.to_thread(processes.find_port_listener, port)
        ):
            return
        if await asyncio.to_thread(processes.is_listening_on, self._sampler.members, port):  # it just began
            return
        detail = f"port {port} is held by {holder}; no process of this server listens there"
        self._record_health(Health.UNHEALTHY, detail)

    def _record_health(self, health: Health, detail: str = "") -> None:
        # /health does not undo a failed first request: it answers 200 even if the server cannot generate.
        failed = self._health is Health.UNHEALTHY and not self._warm and health is Health.HEALTHY
        now = (health, detail)
        if now != (self._health, self._detail) and not failed:
            self._health, self._detail = now
            self._run.record(HealthChanged(time.time(), *now))

    def _record_metrics(self, scrape: Scrape) -> None:
        """Record counters and latencies when they change, and the counters every ten seconds.

        The last equal reading is written before a changed one, so that a burst is measured from its own start.
        """
        latencies, counters, at = (scrape.ttft, scrape.tpot), scrape.counters, time.time()
        if any(latencies) and latencies != self._latencies:
            self._latencies = latencies
            self._run.record(LatenciesSampled(at, *latencies))
        reading, before, now = Sampled(at, counters), self._last_reading, time.monotonic()
        self._last_reading = reading
        changed = self._last_recorded is None or counters != self._last_recorded.counters
        if changed or counters.running:
            self._idle_since = now
        if changed and before and before is not self._last_recorded:
            self._run.record(before)
        if changed or now - self._recorded_at >= IDLE_INTERVAL:
            self._run.record(reading)
            self._last_recorded, self._recorded_at = reading, now

    async def _send_probe(self) -> None:
        result = await client.send_probe(Server.from_run(self._run), PROBE_TIMEOUT)
        self._run.record(result)
        self._idle_since = time.monotonic()

    async def _send_first_request(self) -> None:
        """Send one real request: a server with a wrong drafter comes up and fails on its first request.

        It may take minutes while kernels compile; a failed one is repeated after `FIRST_REQUEST_RETRY` seconds.
        """
        server = Server.from_run(self._run)
        if WARM_UP in self._run.plan.start or self._run.far_ranks:
            # A server that fails on this request may still serve others.
            greedy, answer = await client.send_greedy_warm_up(server)
            self._run.record(greedy)
            if not greedy.error:
                if verdict := await asyncio.to_thread(first_answer.hold_answer, self._run, answer):
                    self._run.record(verdict)
                await self._send_long_warm_ups()
        result = await client.send_first_request(server)
        self._run.record(result)
        self._warm = not result.error
        self._first_request_at = time.monotonic() + FIRST_REQUEST_RETRY
        self._record_health(Health.WARM if self._warm else Health.UNHEALTHY, result.error)

    async def _send_long_warm_ups(self) -> None:
        """Send longer prompts, so that their kernels are compiled before a client's first prompt of that length."""
        plan = self._run.plan
        if WARM_UP not in plan.start or plan.on_cpu:
            return
        for words in _LONG_WARM_UPS:
            if plan.context and 2 * words > plan.context:
                return
            done = await client.send_long_warm_up(Server.from_run(self._run), words)
            self._run.record(done)
            if done.error:
                return


def _describe_error(path: str, error: Exception) -> str:
    reason = bounded_http.describe_failure(error)
    return reason if isinstance(error, bounded_http.BadResponse) else f"{path}: {reason}"
