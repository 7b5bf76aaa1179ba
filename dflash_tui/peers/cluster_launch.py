"""Launch a server over several hosts: prepare all, compare them, then launch rank 1 and further, rank 0, its keeper."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from msgspec.structs import replace

from dflash_tui.common.errors import DflashError, PreflightFailed
from dflash_tui.events import Preparing, Step
from dflash_tui.launch import preparation
from dflash_tui.launch.planner import LaunchJob, PlannedLaunch
from dflash_tui.launch.preflight.check import CheckLevel
from dflash_tui.launch.preflight.runner import PreflightReport
from dflash_tui.launch.session import Hosts, ThisMachine
from dflash_tui.peers import host_parity, keeper, pairing
from dflash_tui.peers.connection import PeerConnection, open_connection
from dflash_tui.peers.copies import CopySource, copy_missing, find_sources
from dflash_tui.peers.messages import (
    AgentMessage,
    LaunchRank,
    PrepareRank,
    RankLaunched,
    RankOrder,
    RankPrepared,
    RemoveCaches,
    StopMarked,
    StopRank,
)
from dflash_tui.runs import lifecycle
from dflash_tui.runs.run import FarRank, Run

_PREPARE_SECONDS = 6 * 3600.0
_LAUNCH_SECONDS = 900.0
_STOP_SECONDS = 40.0


class ConnectedHosts:
    """This machine and others, for a session."""

    def __init__(self, peers: Sequence[PeerConnection]) -> None:
        self._peers = peers

    async def place(self, planned: PlannedLaunch) -> PlannedLaunch:
        """Return what is planned, on the link that the hosts share."""
        return await pairing.place_on_hosts(planned, self._peers)

    async def check(self, planned: PlannedLaunch) -> tuple[PreflightReport, PlannedLaunch]:
        """Return the checks of a launch on all hosts, and what is planned with their commands."""
        report, survey = await pairing.check_and_survey(planned, self._peers)
        return report, survey.planned

    async def launch(self, job: LaunchJob, report: Callable[[Preparing], None]) -> Run:
        """Prepare and launch the server on all hosts."""
        return await launch_over_hosts(job, self._peers, report)


@asynccontextmanager
async def open_hosts(names: Sequence[str]) -> AsyncIterator[Hosts]:
    """Connect to other hosts, for a session, for as long as the block lasts; without any it is this machine alone.

    Raises:
        UsageError: one is not reached, or has another release.
    """
    if not names:
        yield ThisMachine()
        return
    async with pairing.open_peers(names) as peers:
        yield ConnectedHosts(peers)


async def launch_over_hosts(
    job: LaunchJob, peers: Sequence[PeerConnection], report: Callable[[Preparing], None]
) -> Run:
    """Launch all ranks of a job, and the keeper that holds them together; return the run of rank 0.

    When anything fails, what was launched elsewhere is stopped again. Without peers it is a launch as any other.

    Args:
        job: what to launch here.
        peers: the other hosts, from rank 1 on.
        report: called with each event of the preparation, here and there.

    Raises:
        DflashError: a rank could not be prepared or launched, or the hosts do not have the same.
    """
    far: list[FarRank] = []
    try:
        if peers:
            await _prepare_all(job, peers, report)
            await _launch_peers(job.planned, peers, report, far)
        run = await ThisMachine().launch(job._replace(far_ranks=tuple(far)), report)
    except BaseException:
        await asyncio.shield(_stop_launched(peers, far))
        raise
    if far:
        await _start_keeper(run)
    return run


async def prepare_hosts(
    planned: PlannedLaunch, peers: Sequence[PeerConnection], report: Callable[[Preparing], None]
) -> None:
    """Install the engine and fetch the models on all hosts, which takes minutes the first time; nothing is launched.

    Without peers it is this machine alone.

    Raises:
        DflashError: something could not be prepared, or the hosts do not have the same.
    """
    if peers:
        await _prepare_all(LaunchJob(planned), peers, report)
    else:
        await preparation.prepare_engine_and_models(planned.resolved, planned.plan, report)


async def stop_marked(hosts: Sequence[str], mark: str) -> None:
    """Stop on other hosts what an experiment has left there.

    Raises:
        UsageError: a host is not reached, for a reason that a user can mend.
        DflashError: what is there does not stop.
    """

    async def stop(host: str) -> None:
        async with open_connection(host) as peer:
            await peer.ask(StopMarked, _STOP_SECONDS, mark=mark)

    await asyncio.gather(*map(stop, dict.fromkeys(hosts)))


async def remove_caches(hosts: Sequence[str], mark: str) -> list[str]:
    """Remove what an experiment has compiled on other hosts; return where that is left, and why, as texts."""

    async def remove(host: str) -> str:
        try:
            async with open_connection(host) as peer:
                await peer.ask(RemoveCaches, _STOP_SECONDS, mark=mark)
        except DflashError as error:
            return f"{host}: {error.what}"
        return ""

    return [left for left in await asyncio.gather(*map(remove, dict.fromkeys(hosts))) if left]


async def _start_keeper(run: Run) -> None:
    """Start the keeper; a server whose other hosts nobody would stop is not left alone."""
    try:
        await asyncio.to_thread(keeper.start_keeper, run)
    except BaseException:
        await asyncio.shield(_stop_all(run))
        raise


async def _stop_all(run: Run) -> None:
    """Stop a server on all hosts; a keeper that came up meanwhile does the same."""
    await lifecycle.stop_server(run)
    await keeper.stop_far_ranks(run)


async def _prepare_all(job: LaunchJob, peers: Sequence[PeerConnection], report: Callable[[Preparing], None]) -> None:
    """Install the engine, get the models and inspect them on all hosts at once, and compare what is there then.

    What is whole here is copied to who lacks it; of the rest each host fetches its own.

    Raises:
        PreflightFailed: the hosts do not have the same; a reason to overrule checks is none for that.
    """
    planned = job.planned
    for peer in peers:
        peer.report = _name_host(peer.host, report)
    orders = pairing.list_orders(planned)
    sources = await find_sources(planned.plan)
    asks = [_prepare_peer(peer, order, sources) for peer, order in zip(peers, orders, strict=True)]
    near = preparation.prepare_without_launch(planned.resolved, planned.plan, report, forced=job.forced)
    tasks = [asyncio.ensure_future(asking) for asking in asks]
    try:
        *answers, _ = await asyncio.gather(*tasks, near)
    finally:  # where one failed, the others would go on
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    here = await asyncio.to_thread(host_parity.describe_side, planned)
    checks = [
        check
        for peer, answer in zip(peers, answers, strict=True)
        if isinstance(answer, RankPrepared)
        for check in host_parity.compare_hosts(here, answer.side, peer.host)
    ]
    if wrong := [check for check in checks if check.level is CheckLevel.FAIL]:
        raise PreflightFailed(
            "the hosts have different files or versions, which vLLM would not notice",
            evidence="\n  ".join(f"{check.name}: {check.finding}" for check in wrong),
            hint="\n  → ".join(dict.fromkeys(check.fix for check in wrong)),
        )


async def _prepare_peer(peer: PeerConnection, order: RankOrder, sources: Sequence[CopySource]) -> AgentMessage:
    """Copy the models that a peer lacks and this machine has, and let it prepare the rest."""
    await copy_missing(sources, peer, order.cluster, order.rank, peer.report)
    return await peer.ask(PrepareRank, _PREPARE_SECONDS, order=order)


def _name_host(host: str, report: Callable[[Preparing], None]) -> Callable[[Preparing], None]:
    return lambda event: report(replace(event, host=host))


async def _launch_peers(
    planned: PlannedLaunch, peers: Sequence[PeerConnection], report: Callable[[Preparing], None], far: list[FarRank]
) -> None:
    """Launch rank 1 and further and add each to `far`: they wait for rank 0, and one that cannot start is known first.

    Raises:
        DflashError: a peer cannot launch its rank; those before it are in `far`.
    """
    for peer, order in zip(peers, pairing.list_orders(planned), strict=True):
        answer = await peer.ask(LaunchRank, _LAUNCH_SECONDS, order=order)
        if not isinstance(answer, RankLaunched):
            raise DflashError(f"{peer.host} sent an unexpected answer")
        far.append(FarRank(order.rank, peer.host, answer.run))
        text = f"rank {order.rank} launched, as {answer.run}"
        report(Preparing(time.time(), Step.CHECK, text, 1.0, done=True, host=peer.host))


async def _stop_launched(peers: Sequence[PeerConnection], far: Sequence[FarRank]) -> None:
    """Stop what was launched elsewhere; what cannot be reached ends with its lease."""
    stops = [peers[rank.rank - 1].ask(StopRank, _STOP_SECONDS, run=rank.run) for rank in far]
    await asyncio.gather(*stops, return_exceptions=True)
