"""The hosts of one launch: connect to them, choose their link, plan every rank, check all of them.

Functions that ask a peer raise DflashError if it is unreachable or refuses, and UsageError if the hosts have no link,
one is named twice, or one has another release; NeedsProgram if this release may be installed there.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dflash_tui.common.errors import DflashError, PreflightFailed, UsageError
from dflash_tui.common.formatting import format_gib, truncate
from dflash_tui.engines import inventory, model_hub
from dflash_tui.events import Preparing, Step
from dflash_tui.launch import planner, preparation
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.launch.preflight import runner
from dflash_tui.launch.preflight.check import Check, CheckLevel, fail_check, pass_check, warn_check
from dflash_tui.launch.preflight.runner import PreflightReport
from dflash_tui.machine import network, processes
from dflash_tui.machine.network import Link, LinkEnd, Network, choose_link
from dflash_tui.peers import copies, keeper
from dflash_tui.peers.connection import (
    Greeting,
    HostSide,
    Peer,
    RankChecked,
    RankOrder,
    ask,
    greet_host,
)
from dflash_tui.peers.copies import ROLES, ModelCopy, copy_missing, find_copies, name_folders
from dflash_tui.planning import patch_file
from dflash_tui.planning.cluster import LOCAL, Cluster, ClusterHost, RankCommand
from dflash_tui.planning.memory import MemoryEstimate
from dflash_tui.planning.request import LaunchRequest
from dflash_tui.runs import lifecycle
from dflash_tui.runs.run import EXPERIMENT_MARK, FarRank, Run

_CHECK_SECONDS = 180.0
_MEMORY_SECONDS = 90.0
_HERE = "this machine"


async def plan_request(request: LaunchRequest, *, with_commands: bool = False) -> PlannedLaunch:
    """Return the plan of a request, over its peers if it names any; `with_commands` asks each peer for its command."""
    if not request.peers:
        return await asyncio.to_thread(planner.plan_launch_here, request)
    await asyncio.to_thread(planner.plan_launch_here, request)  # find local mistakes before connecting to peers
    hosts = await reach_hosts(request)
    planned = await hosts.plan(request)
    return (await hosts.survey(planned))[1] if with_commands else planned


async def _check_models(
    planned: PlannedLaunch, models: Sequence[ModelCopy], peer: Peer, rank: int, answer: RankChecked
) -> list[Check]:
    """Return a peer's checks; for models that are copied from here, the copy's check replaces the peer's."""
    checks = [replace(check, name=f"{peer.host}: {check.name}") for check in answer.checks]
    if planned.plan.cluster is None:
        return checks
    missing = await copies.find_missing(models, peer.host)
    copied = copies.check_missing(missing, peer.host, planned.plan.cluster, rank)
    return [*(check for check in checks if check.name not in {copy.name for copy in copied}), *copied]


def choose_smallest_fit(
    fits: Sequence[tuple[str, MemoryEstimate | None]],
) -> tuple[MemoryEstimate | None, list[Check]]:
    """Return the memory of the host with the least room, by which vLLM sizes the KV cache of all, and a check of it.

    `fits` has each host's name, empty for this machine, and the memory that its rank needs.
    """
    host_fits = [(host, fit) for host, fit in fits if fit]
    if not host_fits:
        return None, []
    host, least = min(host_fits, key=lambda host_fit: host_fit[1].kv_left)
    most = max(fit.kv_left for _, fit in host_fits)
    if most == least.kv_left:
        return least, []
    room = f"{format_gib(max(0, least.kv_left))} for the KV cache, where another has {format_gib(most)}"
    return least, [pass_check("fit", f"{host or _HERE} has the least room: {room}; all hosts use as much")]


def list_orders(planned: PlannedLaunch) -> list[RankOrder]:
    """Return the orders for the peers, from rank 1 on."""
    cluster, request = planned.plan.cluster, planned.plan.relaunch_request
    if cluster is None:
        return []
    folders, mark = name_folders(planned.plan), planned.plan.env.get(EXPERIMENT_MARK, "")
    ranks = range(1, len(cluster.hosts))
    return [RankOrder(request, cluster, rank, folders, mark, planned.cache) for rank in ranks]


def _find_link(peers: Sequence[Peer], wanted: str) -> Link:
    """Return the link between this machine and its peers; ranks on this machine use its loopback."""
    if {peer.host for peer in peers} == {LOCAL}:
        return Link((LinkEnd("127.0.0.1", "lo", 65536),) * (1 + len(peers)), "all ranks are on this machine")
    here = network.read_network()
    machines = [(processes.read_boot_id(), _list_addresses(here), _HERE)]
    for host, greeting in peers:
        own = (greeting.boot, _list_addresses(greeting.network), host)
        if same := next((other for *machine, other in machines if machine == [*own[:2]]), ""):
            raise UsageError(f"--peer {host} is {same}", hint="name another machine with --peer")
        machines.append(own)
    networks = [here, *(peer.greeting.network for peer in peers)]
    return choose_link(networks, [_HERE, *(peer.host for peer in peers)], wanted)


def _list_addresses(network: Network) -> frozenset[str]:
    return frozenset(address for interface in network.interfaces for address in interface.addresses)


def _check_link(planned: PlannedLaunch, peers: Sequence[Peer]) -> list[Check]:
    link = _find_link(peers, planned.plan.relaunch_request.link or "")
    ends = ", ".join(f"{end.address} on {end.interface}" for end in link.ends)
    checks = [pass_check("link", ends)]
    leaves_machine = not planned.plan.on_cpu and {peer.host for peer in peers} != {LOCAL}
    if leaves_machine and link.why_sockets:
        fix = "check that the cable is plugged in and that its port has an address on both hosts: docs/two-machines.md"
        checks.append(warn_check("RoCE", f"{link.why_sockets}: a quarter of the speed, by one report", fix))
    elif leaves_machine:
        checks.append(pass_check("RoCE", ", ".join(link.ends[0].devices)))
    if len(sizes := {end.mtu for end in link.ends}) > 1:
        finding = f"packets of {' and '.join(map(str, sorted(sizes)))} bytes: large ones are lost silently"
        checks.append(fail_check("MTU", finding, f"sudo ip link set {link.ends[0].interface} mtu 9000, on each host"))
    return checks


_WORDS = {
    "vllm": ("the engine", "install the same release of dflash-tui on both, then: dflash-tui engine install RECIPE"),
    "patches": ("the patches", "install the same release of dflash-tui on both"),
    "setup": ("the recipe", "copy the recipe's file to both, or install the same release of dflash-tui"),
    "target": ("the target's files", "remove them there, so that they are copied, fetched or built again"),
    "drafter": ("the drafter's files", "remove them there, so that they are copied, fetched or built again"),
}


def describe_side(planned: PlannedLaunch) -> HostSide:
    """Return what a launch on this machine consists of; paths are left out, since they differ between hosts."""
    plan, resolved = planned.plan, planned.resolved
    engine = inventory.find_planned_engine(plan)
    python = engine.site_packages.parent.name if engine else ""
    shared = (
        resolved.flags,
        resolved.speculation,
        resolved.env,
        plan.mode,
        plan.method,
        plan.num_speculative_tokens,
        # Paths of folders differ between hosts; their files are compared instead.
        [replace(model, name="") if _is_folder(model.name) else model for model in plan.models]
        or (Path(plan.target).name, Path(plan.drafter).name),
        plan.vllm,
    )
    texts = [msgspec.json.encode(patch_file.load_patch(name)) for name in sorted(plan.patches)]
    return HostSide(
        vllm=f"{engine.distribution} {engine.vllm}, {python}" if engine else "",
        patches=f"{', '.join(sorted(plan.patches)) or 'none'} ({_digest(b''.join(texts))})",
        setup=_digest(msgspec.json.encode(shared, order="sorted")),
        target=model_hub.describe_model(plan, plan.target),
        drafter=model_hub.describe_model(plan, plan.drafter) if plan.drafter else "none",
    )


def compare_hosts(near: HostSide, far: HostSide, host: str) -> Iterator[Check]:
    """Yield a check per property that all hosts must share; a property that one side does not know yet is skipped."""
    for name, (what, fix) in _WORDS.items():
        here, there = getattr(near, name), getattr(far, name)
        if not here or not there:
            continue
        if here == there:
            yield pass_check(host, f"{what}: the same on both")
        else:
            finding = f"{what}: not the same, {truncate(there, 100)} there and {truncate(here, 100)} here"
            yield fail_check(host, finding, f"on {host}: {fix}")


def _is_folder(name: str) -> bool:
    return bool(model_hub.find_local_folder(name)) or not model_hub.is_repository(name)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


_PREPARE_SECONDS = 6 * 3600.0
_LAUNCH_SECONDS = 900.0


class ServerHosts:
    """The machines of a server: this one, and its peers if any."""

    def __init__(self, peers: Sequence[Peer]) -> None:
        self.peers = peers
        """The other hosts, from rank 1 on."""
        self.answers: Sequence[RankChecked] = ()
        """The peers' answers to the last survey, from rank 1 on."""

    def place_request(self, request: LaunchRequest) -> LaunchRequest:
        """Return the request on this machine and the peers, on the link that they share."""
        if not self.peers:
            return request
        link = _find_link(self.peers, request.link or "")
        ends = zip(["", *(peer.host for peer in self.peers)], link.ends, strict=True)
        hosts = tuple(ClusterHost(host, end.address, end.interface, end.devices, end.gid_index) for host, end in ends)
        return replace(request, cluster=Cluster(hosts))

    async def plan(self, request: LaunchRequest, *, port: int | None = None) -> PlannedLaunch:
        """Return the plan of this machine's rank; `port` is used if the request names none."""
        return await asyncio.to_thread(planner.plan_launch_here, self.place_request(request), port=port)

    async def place(self, planned: PlannedLaunch) -> PlannedLaunch:
        """Return the plan on the link that the hosts share now."""
        plan = planned.plan
        if not self.peers or (plan.cluster and plan.cluster.is_named):
            return planned
        placed = await self.plan(plan.relaunch_request, port=plan.port)
        return placed._replace(forced=planned.forced, replaces=planned.replaces)

    async def check(self, planned: PlannedLaunch, *, thorough: bool = False) -> tuple[PreflightReport, PlannedLaunch]:
        """Return the checks of all hosts, `thorough` ones for `doctor`, and the plan with their commands."""
        near = await runner.run_preflight(planned, thorough=thorough)
        far, surveyed = await self.survey(planned)
        return PreflightReport((*near.checks, *far)), surveyed

    async def survey(self, planned: PlannedLaunch) -> tuple[list[Check], PlannedLaunch]:
        """Return the checks of the peers, each compared with this machine, and the plan with their commands."""
        if not self.peers:
            return [], planned
        near = await asyncio.to_thread(describe_side, planned)
        copied_models = await find_copies(planned.plan)
        orders = zip(self.peers, list_orders(planned), strict=True)
        self.answers = await asyncio.gather(
            *(ask(peer.host, "check", RankChecked, _CHECK_SECONDS, order=order) for peer, order in orders)
        )
        checks: list[Check] = []
        ranks: list[RankCommand] = []
        for rank, (peer, answer) in enumerate(zip(self.peers, self.answers, strict=True), 1):
            found = peer.greeting
            checks += [pass_check(peer.host, f"dflash-tui {found.version} on {found.host}, {found.machine}")]
            host_checks = await _check_models(planned, copied_models, peer, rank, answer)
            checks += [*host_checks, *compare_hosts(near, answer.side, peer.host)]
            roles = {f"{peer.host}: {role}": role for role in ROLES}
            models = tuple(f"{roles[check.name]}: {check.finding}" for check in host_checks if check.name in roles)
            ranks.append(RankCommand(peer.host, answer.plan.argv, answer.plan.env, models))
        fits = [(peer.host, answer.memory) for peer, answer in zip(self.peers, self.answers, strict=True)]
        smallest, named = choose_smallest_fit([("", planned.memory), *fits])
        checks += [*_check_link(planned, self.peers), *named]
        return checks, planned._replace(plan=replace(planned.plan, ranks=tuple(ranks)), memory=smallest)

    async def prepare(self, planned: PlannedLaunch, report: Callable[[Preparing], None]) -> None:
        """Install the engine and get the models, which takes minutes the first time; nothing is launched."""
        if self.peers:
            await _prepare_all(planned, self.peers, report)
        else:
            await preparation.prepare_engine_and_models(planned, report)

    async def launch(self, planned: PlannedLaunch, report: Callable[[Preparing], None]) -> Run:
        """Launch all ranks and their keeper; return the run of rank 0.

        On any failure all launched ranks are stopped.
        """
        far, run = list[FarRank](), None
        try:
            if self.peers:
                await _prepare_all(planned, self.peers, report)
                await _launch_peers(planned, self.peers, report, far)
            run = await preparation.prepare_and_launch(planned._replace(far_ranks=tuple(far)), report)
            if far:
                await asyncio.to_thread(keeper.start_keeper, run)
        except BaseException:
            await asyncio.shield(_stop_launched(run, far))
            raise
        return run

    async def wait_for_memory(self, tolerance: float) -> list[str]:
        """Wait until the peers have as much memory as when greeted, less a share of all; return those without."""
        least = {
            peer.host: int(peer.greeting.memory_available - tolerance * peer.greeting.memory_total)
            for peer in self.peers
            if peer.host != LOCAL
        }
        asks = (ask(host, "hello", Greeting, _MEMORY_SECONDS, least=amount) for host, amount in least.items())
        answers = await asyncio.gather(*asks, return_exceptions=True)
        return [
            host
            for (host, amount), answer in zip(least.items(), answers, strict=True)
            if isinstance(answer, BaseException) or answer.memory_available < amount
        ]


async def reach_hosts(request: LaunchRequest) -> ServerHosts:
    """Return the machines of a server after greeting the other ones."""
    return ServerHosts(await asyncio.gather(*map(greet_host, request.peers)))


async def stop_marked(hosts: Sequence[str], mark: str) -> None:
    """Stop an experiment's leftover ranks on other hosts."""
    await asyncio.gather(*(ask(host, "stop_marked", type(None), mark=mark) for host in hosts))


async def remove_caches(hosts: Sequence[str], mark: str) -> list[str]:
    """Remove an experiment's compile caches on other hosts; return a text per host where that failed."""
    asks = (ask(host, "remove_caches", type(None), mark=mark) for host in hosts)
    errors = await asyncio.gather(*asks, return_exceptions=True)
    return [f"{host}: {getattr(error, 'what', error)}" for host, error in zip(hosts, errors, strict=True) if error]


async def _prepare_all(planned: PlannedLaunch, peers: Sequence[Peer], report: Callable[[Preparing], None]) -> None:
    """Install the engine, get the models and inspect them on all hosts at once, then compare the hosts.

    Models that are complete here are copied to hosts that lack them; each host downloads the rest itself.
    """
    models = await find_copies(planned.plan)
    asks = [
        _prepare_peer(peer.host, order, models, report) for peer, order in zip(peers, list_orders(planned), strict=True)
    ]
    near = preparation.prepare_without_launch(planned, report)
    tasks = [asyncio.ensure_future(asking) for asking in asks]
    try:
        await asyncio.gather(near, *tasks)
    finally:  # after a failure, the others would continue
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    here = await asyncio.to_thread(describe_side, planned)
    checks = [
        check
        for peer, task in zip(peers, tasks, strict=True)
        for check in compare_hosts(here, task.result(), peer.host)
    ]
    if wrong := [check for check in checks if check.level is CheckLevel.FAIL]:
        raise PreflightFailed(
            "the hosts have different files or versions, which vLLM does not check",
            evidence="\n  ".join(f"{check.name}: {check.finding}" for check in wrong),
            hint="\n  → ".join(dict.fromkeys(check.fix for check in wrong)),
        )


async def _prepare_peer(
    host: str, order: RankOrder, models: Sequence[ModelCopy], report: Callable[[Preparing], None]
) -> HostSide:
    def name_host(event: Preparing) -> None:
        report(replace(event, host=host))

    await copy_missing(models, host, order.cluster, order.rank, name_host)
    return await ask(host, "prepare", HostSide, _PREPARE_SECONDS, report=name_host, order=order)


async def _launch_peers(
    planned: PlannedLaunch, peers: Sequence[Peer], report: Callable[[Preparing], None], far: list[FarRank]
) -> None:
    """Launch rank 1 and further, which wait for rank 0, and append each to `far`."""
    for peer, order in zip(peers, list_orders(planned), strict=True):
        asked = asyncio.ensure_future(ask(peer.host, "launch", str, _LAUNCH_SECONDS, order=order))
        try:
            run = await asyncio.shield(asked)
        except asyncio.CancelledError:  # the peer may be launching it, and only its answer names the run to stop
            with contextlib.suppress(DflashError):
                far.append(FarRank(order.rank, peer.host, await asked))
            raise
        far.append(FarRank(order.rank, peer.host, run))
        text = f"rank {order.rank} launched, as {run}"
        report(Preparing(time.time(), Step.CHECK, text, 1.0, done=True, host=peer.host))


async def _stop_launched(run: Run | None, far: Sequence[FarRank]) -> None:
    near = [lifecycle.stop_server(run)] if run else []
    stops = (ask(rank.host, "stop", type(None), run=rank.run) for rank in far)
    await asyncio.gather(*near, *stops, return_exceptions=True)
