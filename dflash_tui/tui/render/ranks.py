"""The hosts of a server over several, a row for each: state, memory, GPUs, and its end of the link. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from dflash_tui.common.formatting import UNKNOWN, format_gib, format_percent, truncate_middle
from dflash_tui.events import GpuLoad, RankSampled, RankState
from dflash_tui.planning.cluster import Cluster, ClusterHost
from dflash_tui.run_state.series import MAX_GAP
from dflash_tui.run_state.state import RunState
from dflash_tui.tui.widgets.basic import MUTED
from dflash_tui.vllm_output import log_facts

_HERE = "this machine"
_LONGEST_NAME, _STATE = 19, 10
_MARKS = {
    RankState.RUNNING: ("●", "$success"),
    RankState.SUSPENDED: ("!", "bold $warning"),
    RankState.LOST: ("!", "bold $warning"),
    RankState.ENDED: ("✗", "bold $error"),
    RankState.STOPPED: ("■", "$foreground"),
    RankState.LEFT: ("!", "bold $warning"),
}
_FAILED = ("✗", "bold $error")
_NEAR_MARKS = {
    "warm": ("●", "$success"),
    "healthy": ("●", "$primary"),
    "up": ("●", "$primary"),
    "running": ("●", "$primary"),
    "stopped": ("■", "$foreground"),
} | dict.fromkeys(("unhealthy", "failed", "lost"), _FAILED)


def render_ranks(cluster: Cluster, state: RunState, now: float) -> Content:
    """Return a row for each host of a server, the one of rank 0 first; the first rank alone knows of the others."""
    own = state.launched.rank if state.launched else 0
    names = [
        truncate_middle(_HERE if rank == own else host.host or host.address, _LONGEST_NAME)
        for rank, host in enumerate(cluster.hosts)
    ]
    longest = max(map(len, names), default=0)
    rows = [
        _render_near(f"{name:<{longest}}", rank, host, state, now)
        if rank == own
        else _render_far(f"{name:<{longest}}", rank, host, state.ranks.get(rank))
        for rank, (name, host) in enumerate(zip(names, cluster.hosts, strict=True))
    ]
    return Content("\n").join(rows)


def _render_near(name: str, rank: int, host: ClusterHost, state: RunState, now: float) -> Content:
    memory, gpus = state.memory.latest(now, MAX_GAP), state.gpus.latest(now, MAX_GAP)
    word = state.status
    facts = [format_gib(memory.used) if memory else UNKNOWN]
    if memory and memory.available is not None:
        facts.append(f"{format_gib(memory.available)} free")
    facts += _describe_gpus(gpus.gpus if gpus else ())
    network = state.startup.facts.get(log_facts.NCCL_NETWORK, ("",))[-1]
    return _row(rank, name, _NEAR_MARKS.get(word, ("◐", "$warning")), word, facts, link=_describe_link(host, network))


def _render_far(name: str, rank: int, host: ClusterHost, sample: RankSampled | None) -> Content:
    if sample is None:
        return _row(rank, name, ("·", MUTED), UNKNOWN, (), link=_describe_link(host))
    is_known = sample.available is not None
    facts = [format_gib(sample.resident) if is_known else UNKNOWN]
    facts += [f"{format_gib(sample.available)} free"] if is_known else []
    facts += _describe_gpus(sample.gpus)
    facts = [sample.why] if sample.why else facts
    link = _describe_link(host, sample.network)
    return _row(rank, name, _MARKS[sample.state], sample.state.value, facts, link=link)


def _row(
    rank: int, name: str, mark: tuple[str, str], word: str, facts: Sequence[str], *, link: tuple[str, str]
) -> Content:
    return Content.assemble(
        (f"rank {rank} ", MUTED),
        (f"{name} ", "bold"),
        (f"{mark[0]} ", mark[1]),
        f"{word:<{_STATE}} ",
        (link[0], "$warning"),
        "  ".join([*facts, link[1]]),
    ).rstrip()


def _describe_gpus(gpus: Sequence[GpuLoad]) -> list[str]:
    return [
        f"GPU {gpu.index} {'' if gpu.utilisation is None else format_percent(gpu.utilisation)}".rstrip()
        + ("" if gpu.memory_used is None else f" {format_gib(gpu.memory_used)}")
        for gpu in gpus
    ]


def _describe_link(host: ClusterHost, network: str = "") -> tuple[str, str]:
    """Return what is wrong with the end of the link, and what is planned of it, or used once NCCL has said it."""
    if not host.address:
        return "", ""
    end, devices = f"{host.interface} {host.address}".strip(), ", ".join(host.devices)
    if not network:
        return "", f"{end} {devices or 'sockets'}"
    if network == log_facts.SOCKETS and devices:
        return "sockets, not RoCE  ", end
    if log_facts.is_within_host(network):
        return "", log_facts.describe_network(network)
    return "", f"{log_facts.describe_network(network)} on {end} {devices}".rstrip()
