"""Supervise the ranks of a server, in a process beside rank 0: `python -m dflash_tui.peers.keeper keep RUN`.

vLLM does not detect failures between hosts. The keeper copies the other ranks' logs, renews their leases, records their
state in a file, stops rank 0 when one of them is gone, and stops them when rank 0 has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time

import msgspec
from msgspec.structs import replace

from dflash_tui.common import private_files
from dflash_tui.common.errors import DflashError
from dflash_tui.events import RankSampled, RankState
from dflash_tui.machine import network, processes
from dflash_tui.monitoring import sampler
from dflash_tui.peers.connection import HELLO_SECONDS, LogChunk, VerbRun, ask, run_verb
from dflash_tui.runs import lifecycle, registry, server_process
from dflash_tui.runs.detached_process import start_detached
from dflash_tui.runs.run import FarRank, Run
from dflash_tui.runs.server_process import KeptRanks, RankStatus, is_kept, list_left, read_kept

_LOG, _GUARD_LOG, _LEASE = "keeper.log", "guard.log", "lease"
# A larger log says nothing new, and another host must not fill this host's disk.
MOST_LOG = 256 << 20
# How long a rank lives without a renewed lease; far longer than a lost connection takes to come back.
LEASE_SECONDS = 120.0
# The agent sends a rank's state each second.
LOST_SECONDS = 5.0
_INTERVAL = 0.25
_RETRY = 1.0
_STOP_SECONDS = 40.0
_START_SECONDS = 30.0
# How long a stop command waits for the other hosts; the keeper tries for longer.
_PATIENCE = 45.0
# Wait for last log lines, which explain an end.
_LAST_WORDS = 1.0
# Unchanged states are recorded this often, so that a dead keeper is noticed.
_RECORD_SECONDS = 5.0
# The change of a processor load that is recorded at once.
_BUSIER = 0.1


def start_keeper(run: Run) -> None:
    """Start a server's keeper, detached, and wait until it runs; raise DflashError if it exits at once."""
    started = start_detached(run.folder / _LOG, "dflash_tui.peers.keeper", "keep", run.id)
    server_process.adopt_child(started.process)
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and started.process.poll() is None:
        if is_kept(run):
            return
        time.sleep(0.05)
    if started.process.poll() is None or is_kept(run):
        return
    raise DflashError("the keeper of the ranks exited at once", evidence=started.read_last_words())


class Keeper:
    """Keep one server: follow each remote rank, and stop all when one has ended."""

    def __init__(self, run: Run) -> None:
        self._run = run
        record = read_kept(run)
        recorded_ranks = {rank.rank: rank for rank in record.ranks} if record else {}
        fresh = {far.rank: RankStatus(far.rank, far.host, far.run, since=time.time()) for far in run.far_ranks}
        self._ranks = fresh | recorded_ranks
        self._fallen, self._is_stopping = asyncio.Event(), False
        self._recorded: dict[int, RankSampled] = {}
        self._write()

    async def keep(self) -> None:
        """Keep the ranks until all have ended, or unreachable ones have outlasted their lease."""
        following = [asyncio.create_task(self._follow(far)) for far in self._run.far_ranks]
        try:
            while server_process.is_alive(self._run) and not self._fallen.is_set():
                await asyncio.sleep(_INTERVAL)
            self._is_stopping = True
            if self._fallen.is_set():
                await asyncio.sleep(_LAST_WORDS)
                await lifecycle.stop_server(self._run, by_request=False)
            await asyncio.gather(*map(self.stop_rank, self._run.far_ranks))
            await asyncio.sleep(_LAST_WORDS)
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    async def stop_rank(self, far: FarRank) -> None:
        """Stop a rank on its host; an unreachable one is tried again until its lease has expired."""
        deadline = time.monotonic() + LEASE_SECONDS + _STOP_SECONDS
        before = self._ranks[far.rank]
        if before.state in {RankState.SUSPENDED, RankState.LOST}:  # which may be why rank 0 has ended
            self._ranks[far.rank] = replace(before, trouble=before.describe_state())
        while True:
            try:
                await ask(far.host, "stop", type(None), _STOP_SECONDS, run=far.run)
            except DflashError as error:
                self._set(far, RankState.LEFT, f"cannot be stopped yet: {error.what}")
                if time.monotonic() > deadline:
                    lease = f"it stops by itself {LEASE_SECONDS:.0f} s after it last heard from this host"
                    self._set(far, RankState.LEFT, f"not reached: {error.what}; {lease}")
                    return
                await asyncio.sleep(_RETRY)
            else:
                ended = before.state is RankState.ENDED
                self._set(far, RankState.ENDED if ended else RankState.STOPPED, before.why if ended else "")
                return

    async def _follow(self, far: FarRank) -> None:
        """Watch a rank, reconnecting after each loss; the copied log's size marks where to resume."""
        while True:
            try:
                log = self._run.folder / far.log_name
                start = log.stat().st_size if log.exists() else 0
                async with run_verb(far.host, "watch", run=far.run, start=start) as verb_run:
                    await self._listen(far, verb_run)
            except DflashError as error:
                if self._ranks[far.rank].state in {RankState.RUNNING, RankState.SUSPENDED}:
                    self._set(far, RankState.LOST, error.what)
            await asyncio.sleep(_RETRY)

    async def _listen(self, far: FarRank, verb_run: VerbRun) -> None:
        patience = HELLO_SECONDS
        while True:
            try:
                message = await asyncio.wait_for(verb_run.read(), patience)
            except TimeoutError:
                raise DflashError(f"nothing heard for {patience:.0f} s") from None
            patience = LOST_SECONDS
            if isinstance(message, LogChunk):
                self._copy(far, message.data)
            elif isinstance(message, RankSampled):
                if server_process.is_alive(self._run):
                    verb_run.send_beat()
                self.judge(far, message)

    def _copy(self, far: FarRank, data: bytes) -> None:
        with (
            contextlib.suppress(OSError),
            open(self._run.folder / far.log_name, "ab", opener=private_files.open_private) as file,
        ):
            if file.tell() < MOST_LOG:
                file.write(data)

    def judge(self, far: FarRank, sample: RankSampled) -> None:
        """Apply a rank's state; rank 0 reports healthy whatever happens to the others, until it gets a request."""
        before = self._ranks[far.rank].state
        if self._is_stopping or before not in {RankState.RUNNING, RankState.SUSPENDED, RankState.LOST}:
            return
        if sample.state is RankState.ENDED:
            self._set(far, RankState.ENDED, sample.why)
            self._fallen.set()
        else:
            is_running = sample.state is RankState.RUNNING
            self._set(far, sample.state, self._describe_broken_link() if is_running else sample.why, sample)

    def _describe_broken_link(self) -> str:
        cluster = self._run.plan.cluster
        name = cluster.hosts[0].interface if cluster else ""
        return f"{name} of this machine has no carrier" if name and network.is_unplugged(name) else ""

    def _set(self, far: FarRank, state: RankState, why: str = "", sample: RankSampled | None = None) -> None:
        before, now = self._ranks[far.rank], time.time()
        since = before.since if before.state is state else now
        sample = sample or RankSampled(now, far.rank, far.host, state, since)
        used = sample.network or before.network
        sample = replace(sample, at=now, host=far.host, state=state, since=since, why=why, network=used)
        resident = sample.resident
        after = replace(before, state=state, why=why, since=since, resident=resident, network=used)
        self._ranks[far.rank] = after
        if _has_new_state(before, after) or abs(resident - before.resident) > 1 << 24:
            self._write()
        last = self._recorded.get(far.rank)
        if last is None or _has_changed(last, sample) or now - last.at >= _RECORD_SECONDS:
            self._recorded[far.rank] = sample
            self._run.record(sample)

    def _write(self) -> None:
        pid = os.getpid()
        record = KeptRanks(pid, processes.read_process_identity(pid), tuple(self._ranks.values()))
        with contextlib.suppress(OSError):
            private_files.replace_private_file(
                self._run.folder / server_process.RANKS_FILE, msgspec.json.encode(record)
            )


def _has_new_state(before: RankStatus | RankSampled, after: RankStatus | RankSampled) -> bool:
    return (before.state, before.why, before.network) != (after.state, after.why, after.network)


def _has_changed(before: RankSampled, after: RankSampled) -> bool:
    is_busier = abs((before.busy or 0.0) - (after.busy or 0.0)) > _BUSIER
    return is_busier or _has_new_state(before, after) or sampler.has_load_changed(before.gpus, after.gpus)


async def stop_far_ranks(run: Run) -> None:
    """Stop the other ranks of a server whose keeper is gone; unreachable ones are tried until their lease expires."""
    taking_over = Keeper(run)
    await asyncio.gather(*map(taking_over.stop_rank, run.far_ranks))


async def wait_until_stopped(run: Run, seconds: float = _PATIENCE) -> list[RankStatus]:
    """Return the state of the other ranks once the keeper has stopped them, or after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and is_kept(run) and list_left(run):
        await asyncio.sleep(_INTERVAL)
    if list_left(run) and not is_kept(run):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop_far_ranks(run), max(_RETRY, deadline - time.monotonic()))
    record = read_kept(run)
    return list(record.ranks) if record else []


def renew_lease(run: Run) -> None:
    """Renew the lease of a rank: the time of its file; the content says why the guard ended the rank."""
    with contextlib.suppress(OSError):
        os.utime(run.folder / _LEASE)


def read_lease_end(run: Run) -> str:
    """Return why the guard ended a rank; empty if it did not."""
    with contextlib.suppress(OSError):
        return (run.folder / _LEASE).read_text()
    return ""


def start_guard(run: Run) -> None:
    """Start the lease of a rank and its guard, detached from the launching process."""
    private_files.write_private_file(run.folder / _LEASE, b"")
    server_process.adopt_child(
        start_detached(run.folder / _GUARD_LOG, "dflash_tui.peers.keeper", "guard", run.id).process
    )


async def guard_lease(run: Run) -> None:
    """Wait until the rank ends, or stop it when its lease expires."""
    lease = run.folder / _LEASE
    while server_process.is_alive(run):
        if time.time() - lease.stat().st_mtime > LEASE_SECONDS:
            lease.write_text(f"its lease was not renewed for {LEASE_SECONDS:.0f} s")
            await lifecycle.stop_server(run)
            return
        await asyncio.sleep(_INTERVAL)


def main(role: str, name: str) -> int:
    """Run a role until the run has ended; errors go to the process's log."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = registry.find_run(name)
        asyncio.run(guard_lease(run) if role == "guard" else Keeper(run).keep())
    except (DflashError, OSError) as error:
        print(f"dflash-tui: error: {error}", flush=True)  # noqa: T201 - the log of this process
        return error.exit_code if isinstance(error, DflashError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
