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

from dflash_tui.common import private_files, untrusted_json
from dflash_tui.common.errors import DflashError
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.events import RankSampled, RankState
from dflash_tui.machine import network, processes
from dflash_tui.monitoring import sampler
from dflash_tui.peers.connection import (
    LEASE_SECONDS,
    LOST_SECONDS,
    Done,
    LogChunk,
    PeerConnection,
    RankBeat,
    open_connection,
)
from dflash_tui.runs import lifecycle, registry, server_process
from dflash_tui.runs.detached_process import start_detached
from dflash_tui.runs.run import FarRank, Run
from dflash_tui.runs.server_process import KeptRanks, RankStatus, is_kept, list_left, read_kept
from dflash_tui.vllm_output.log_facts import NetworkReader

_LOG, _GUARD_LOG, _LEASE = "keeper.log", "guard.log", "lease.json"
# A larger log says nothing new, and another host must not fill this host's disk.
MOST_LOG = 256 << 20
_INTERVAL = 0.25
_BEAT = 1.0
_RETRY = 1.0
_STOP_SECONDS = 40.0
_START_SECONDS = 30.0
# How long a stop command waits for the other hosts; the keeper tries for longer.
PATIENCE = 45.0
# Wait for last log lines, which explain an end.
_LAST_WORDS = 1.0
# Unchanged states are recorded this often, so that a dead keeper is noticed.
_RECORD_SECONDS = 5.0
# The window of a processor load, and the change of it that is recorded at once.
_LOAD_SECONDS = 2.0
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


class ProcessorLoad:
    """The number of busy processors of a rank, from the CPU seconds in its beats."""

    def __init__(self) -> None:
        self.busy: float | None = None
        """The mean over the window; None at first, and if the beats have no CPU seconds."""
        self._before: tuple[float, float] | None = None

    def take(self, at: float, worked: float | None) -> None:
        """Take the CPU seconds of a beat; `at` is in seconds of a monotonic clock."""
        before = self._before
        if before is None or worked is None or worked < before[1]:  # a process ended, and its CPU seconds are gone
            self._before, self.busy = None if worked is None else (at, worked), None
        elif at - before[0] >= _LOAD_SECONDS:
            self._before, self.busy = (at, worked), round((worked - before[1]) / (at - before[0]), 2)


class Keeper:
    """Keep one server: follow each remote rank, and stop all when one has ended."""

    def __init__(self, run: Run) -> None:
        self._run = run
        record = read_kept(run)
        recorded_ranks = {rank.rank: rank for rank in record.ranks} if record else {}
        fresh = {far.rank: RankStatus(far.rank, far.host, far.run, since=time.time()) for far in run.far_ranks}
        self._ranks = fresh | recorded_ranks
        self._fallen, self._is_stopping = asyncio.Event(), False
        self._workers = dict.fromkeys(self._ranks, 0)
        self._beats: dict[int, RankBeat] = {}
        self._recorded: dict[int, RankSampled] = {}
        self._loads = {rank: ProcessorLoad() for rank in self._ranks}
        self._networks = {rank: NetworkReader() for rank in self._ranks}
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
            self._ranks[far.rank] = msgspec.structs.replace(before, trouble=before.describe_state())
        while True:
            try:
                async with open_connection(far.host) as peer:
                    await peer.ask("stop", Done, _STOP_SECONDS, run=far.run)
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
                async with open_connection(far.host) as peer:
                    log = self._run.folder / far.log_name
                    start = log.stat().st_size if log.exists() else 0
                    await peer.ask("watch", Done, run=far.run, start=start)
                    await self._watch(far, peer)
            except DflashError as error:
                if self._ranks[far.rank].state in {RankState.RUNNING, RankState.SUSPENDED}:
                    self._set(far, RankState.LOST, error.what)
            await asyncio.sleep(_RETRY)

    async def _watch(self, far: FarRank, peer: PeerConnection) -> None:
        sent = 0.0
        while True:
            if time.monotonic() - sent >= _BEAT and server_process.is_alive(self._run):
                sent = time.monotonic()
                await peer.send_beat(renews=True)
            try:
                message = await asyncio.wait_for(peer.events.get(), _INTERVAL)
            except TimeoutError:
                if time.monotonic() - peer.heard > LOST_SECONDS:
                    raise DflashError(f"nothing heard for {LOST_SECONDS:.0f} s") from None
                continue
            if message is None:
                raise DflashError("the connection ended")
            if isinstance(message, LogChunk):
                self._copy(far, message.data)
            else:
                self._judge(far, message)

    def _copy(self, far: FarRank, data: bytes) -> None:
        self._networks[far.rank].feed(data)
        with (
            contextlib.suppress(OSError),
            open(self._run.folder / far.log_name, "ab", opener=private_files.open_private) as file,
        ):
            if file.tell() < MOST_LOG:
                file.write(data)

    def _judge(self, far: FarRank, beat: RankBeat) -> None:
        """Apply a beat; rank 0 reports healthy whatever happens to the others, until it gets a request."""
        before, last, self._beats[far.rank] = self._ranks[far.rank], self._beats.get(far.rank, beat), beat
        self._loads[far.rank].take(time.monotonic(), beat.worked)
        if self._is_stopping or before.state not in {RankState.RUNNING, RankState.SUSPENDED, RankState.LOST}:
            return
        most = self._workers[far.rank] = max(self._workers[far.rank], beat.workers)
        # A worker that changes its name is missing for one beat; a dead one is missing in the next, too.
        if not beat.is_alive or max(beat.workers, last.workers) < most:
            why = beat.why or ("one of its workers exited" if beat.is_alive else "it exited")
            self._set(far, RankState.ENDED, why)
            self._fallen.set()
        elif beat.suspended:
            self._set(far, RankState.SUSPENDED, f"{beat.suspended} of its processes were stopped by a signal")
        else:
            self._set(far, RankState.RUNNING, self._describe_broken_link(), resident=beat.resident)

    def _describe_broken_link(self) -> str:
        cluster = self._run.plan.cluster
        name = cluster.hosts[0].interface if cluster else ""
        return f"{name} of this machine has no carrier" if name and network.is_unplugged(name) else ""

    def _set(self, far: FarRank, state: RankState, why: str = "", resident: int = 0) -> None:
        before = self._ranks[far.rank]
        since = before.since if before.state is state else time.time()
        used = self._networks[far.rank].network or before.network
        after = msgspec.structs.replace(before, state=state, why=why, since=since, resident=resident, network=used)
        self._ranks[far.rank] = after
        if _has_new_state(before, after) or abs(resident - before.resident) > 1 << 24:
            self._write()
        self._record(after)

    def _record(self, status: RankStatus) -> None:
        """Record a rank's state for observers: changes at once, all else every few seconds."""
        beat, before = self._beats.get(status.rank), self._recorded.get(status.rank)
        living_beat = beat if status.state in {RankState.RUNNING, RankState.SUSPENDED} else None
        sample = RankSampled(
            time.time(),
            status.rank,
            status.host,
            status.state,
            status.since,
            status.why,
            status.resident,
            living_beat.memory_available if living_beat else None,
            living_beat.memory_total if living_beat else None,
            living_beat.gpus if living_beat else (),
            self._loads[status.rank].busy if living_beat else None,
            status.network,
        )
        if before and not _has_changed(before, sample) and sample.at - before.at < _RECORD_SECONDS:
            return
        self._recorded[status.rank] = sample
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
    if _has_new_state(before, after):
        return True
    if before.busy is None or after.busy is None:
        is_busier = before.busy is not after.busy
    else:
        is_busier = abs(before.busy - after.busy) > _BUSIER
    return is_busier or sampler.has_load_changed(before.gpus, after.gpus)


async def stop_far_ranks(run: Run) -> None:
    """Stop the other ranks of a server whose keeper is gone; unreachable ones are tried until their lease expires."""
    taking_over = Keeper(run)
    await asyncio.gather(*map(taking_over.stop_rank, run.far_ranks))


async def wait_until_stopped(run: Run, seconds: float) -> list[RankStatus]:
    """Return the state of the other ranks once the keeper has stopped them, or after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and is_kept(run) and list_left(run):
        await asyncio.sleep(_INTERVAL)
    if list_left(run) and not is_kept(run):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop_far_ranks(run), max(_RETRY, deadline - time.monotonic()))
    record = read_kept(run)
    return list(record.ranks) if record else []


class Lease(msgspec.Struct, frozen=True):
    """A rank's lease: how long it lives without a renewal, the last renewal, and why it was ended."""

    seconds: float
    renewed: float
    """By CLOCK_BOOTTIME, which continues while the machine sleeps and is never set."""
    ended: str = ""
    """Why the guard ended the rank; empty if it did not."""


register_type(Lease)


def read_lease(run: Run) -> Lease | None:
    """Return the lease of a rank; None without one."""
    return untrusted_json.read_own_json(run.folder / _LEASE, Lease)


def write_lease(run: Run, seconds: float) -> None:
    """Start the lease of a rank."""
    _write(run, Lease(seconds, _now()))


def renew_lease(run: Run) -> None:
    """Renew the lease of a rank, unless it was ended; a full disk leaves it unchanged."""
    if (lease := read_lease(run)) and not lease.ended:
        with contextlib.suppress(OSError):
            _write(run, Lease(lease.seconds, _now()))


def start_guard(run: Run) -> None:
    """Start the guard of a rank, detached from the launching process."""
    server_process.adopt_child(
        start_detached(run.folder / _GUARD_LOG, "dflash_tui.peers.keeper", "guard", run.id).process
    )


async def guard_lease(run: Run) -> None:
    """Wait until the rank ends, or stop it when its lease expires."""
    while server_process.is_alive(run):
        lease = read_lease(run)
        if lease and _now() - lease.renewed > lease.seconds:
            _write(run, Lease(lease.seconds, lease.renewed, f"its lease was not renewed for {lease.seconds:.0f} s"))
            await lifecycle.stop_server(run)
            return
        await asyncio.sleep(_INTERVAL)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _write(run: Run, lease: Lease) -> None:
    private_files.replace_private_file(run.folder / _LEASE, msgspec.json.encode(lease))


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
