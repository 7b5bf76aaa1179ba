"""One server over several hosts: how each host is reached, and the flags and variables of each rank. Pure.

vLLM's own executor joins the ranks (`--nnodes`): every host runs the same command with its own `--node-rank`, and all
but the first without an API (`--headless`). The queues between them are neither encrypted nor authenticated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from dflash_tui.common.errors import UsageError
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.planning.field_types import FlagValue, Port
from dflash_tui.planning.recipes.resolution import ResolvedRecipe

MASTER_PORT = 29501
# Peer name for a rank on this machine, to try it out or to use two GPUs of one machine.
LOCAL = "local"
_Word = Annotated[str, Meta(max_length=255, pattern=r"^(?:[A-Za-z0-9_][\w.:%@-]*)?\Z")]


class ClusterHost(msgspec.Struct, frozen=True):
    """One host of a server: its ssh name, and its end of the link."""

    host: _Word = ""
    """Its ssh name; empty for the host of rank 0."""
    address: _Word = ""
    """Its address on the link."""
    interface: _Word = ""
    """The network interface that has the address."""
    devices: Annotated[tuple[_Word, ...], Meta(max_length=16)] = ()
    """Its RoCE devices on the link; empty if the link uses sockets only."""
    gid_index: Annotated[int, Meta(ge=0, le=4096)] | None = None
    """The index of the devices' GID for RoCE v2 with the address."""


class Cluster(msgspec.Struct, frozen=True):
    """The hosts of a server in order of rank, and the port where they rendezvous."""

    hosts: Annotated[tuple[ClusterHost, ...], Meta(min_length=2, max_length=64)]
    port: Port = MASTER_PORT
    is_named: bool = True
    """Whether the hosts are known; else their addresses are placeholders."""


register_type(Cluster)


class RankCommand(msgspec.Struct, frozen=True):
    """The command of one rank, and its host."""

    host: str
    """The host's ssh name; empty for the host of rank 0."""
    argv: tuple[str, ...]
    env: dict[str, str]
    """Variables added to the environment."""
    models: tuple[str, ...] = ()
    """Where its host gets target and drafter from; empty before the host was asked."""


def build_unnamed_cluster(hosts: int) -> Cluster:
    """Return a cluster with placeholders for its hosts."""
    return Cluster(tuple(ClusterHost(f"HOST_{n}" * bool(n), f"ADDRESS_{n}") for n in range(hosts)), is_named=False)


def find_place_on_machine(peers: Sequence[str], rank: int) -> tuple[int, int]:
    """Return how many lower ranks, and how many ranks in all, run on the machine of `rank`."""
    hosts = ["", *("" if peer == LOCAL else peer for peer in peers)]
    own = hosts[rank] if rank < len(hosts) else ""
    return hosts[:rank].count(own), hosts.count(own)


def require_named(cluster: Cluster | None) -> None:
    """Raise UsageError if a server needs hosts that are not named yet."""
    if cluster and not cluster.is_named:
        hosts = len(cluster.hosts)
        named = " ".join(f"--peer HOST_{number}" for number in range(1, hosts)) if hosts > 2 else "--peer HOST"
        raise UsageError(f"it takes {hosts} hosts, but only this one is given", hint=named)


# How long ranks wait for each other at the start; vLLM's default is half an hour.
RENDEZVOUS_SECONDS = 600
# For ranks on the CPU: the engine has its own process, and autobinding would reserve a core per rank.
_ON_CPU = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
_ONE_PROCESS = "VLLM_ENABLE_V1_MULTIPROCESSING"
_OURS = ("nnodes", "node-rank", "master-addr", "headless")
# Differs per rank: with one value for all, they wait for each other forever without logging anything.
_ADDRESS = "VLLM_HOST_IP"


def check_cluster(resolved: ResolvedRecipe, gpus: int) -> None:
    """Raise UsageError if the hosts cannot share `gpus` evenly, or the recipe sets a value that differs per rank."""
    if resolved.hosts == 1:
        return
    if gpus % resolved.hosts or gpus < resolved.hosts:
        raise UsageError(
            f"{resolved.hosts} hosts cannot share {gpus} GPUs evenly",
            hint=f"--set tensor-parallel-size={resolved.hosts}",
        )
    if own := [name for name in _OURS if name in resolved.flags]:
        raise UsageError(f"{', '.join(own)}: set by dflash-tui itself with several hosts", hint="drop the setting")
    if _ADDRESS in resolved.env:
        what = f"{_ADDRESS}: set by dflash-tui itself on each of several hosts"
        raise UsageError(what, hint="drop the setting; --link ADDRESS chooses another link")


def build_rank_flags(cluster: Cluster, rank: int, flags: Mapping[str, FlagValue]) -> dict[str, FlagValue]:
    """Return the flags of rank `rank`; the recipe's port and timeout win."""
    words: dict[str, FlagValue] = {
        "nnodes": len(cluster.hosts),
        "node-rank": rank,
        "master-addr": cluster.hosts[0].address,
        "master-port": cluster.port,
        "distributed-timeout-seconds": RENDEZVOUS_SECONDS,
    }
    words = {name: value for name, value in words.items() if name not in flags}
    return words | ({"headless": True} if rank else {})


def name_roce(cluster: Cluster, rank: int, env: Mapping[str, str]) -> str:
    """Return the RoCE devices that NCCL should use, as found or set; empty for none."""
    is_asked = env.get("NCCL_NET", "").upper() == "IB" or bool(env.get("NCCL_IB_HCA"))
    return ",".join(cluster.hosts[rank].devices) or (env.get("NCCL_IB_HCA", "any device") if is_asked else "")


def build_rank_environment(
    cluster: Cluster, rank: int, variables: Mapping[str, str], *, on_cpu: bool
) -> dict[str, str]:
    """Return the variables of rank `rank`: the recipe's `variables`, and those that keep traffic on the link.

    Without its address vLLM publishes the default route's, and both ranks wait for each other without logging anything.
    Without the RoCE devices NCCL falls back to sockets, which it logs only if told to.
    """
    own = cluster.hosts[rank]
    env = {_ADDRESS: own.address}
    if own.interface:
        env |= {"GLOO_SOCKET_IFNAME": own.interface}
        env |= {} if on_cpu else {"NCCL_SOCKET_IFNAME": own.interface}
    if own.devices and not on_cpu:
        env |= {"NCCL_NET": "IB", "NCCL_IB_DISABLE": "0", "NCCL_IB_HCA": ",".join(own.devices)}
        env |= {} if own.gid_index is None else {"NCCL_IB_GID_INDEX": str(own.gid_index)}
    if on_cpu:
        without_one_process = {name: value for name, value in variables.items() if name != _ONE_PROCESS}
        return {**env, **_ON_CPU, **without_one_process}
    return {**env, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", **variables}


def count_gpus_needed(flags: Mapping[str, FlagValue]) -> int:
    """Return the GPUs that a server with these flags needs: tensor x pipeline x data parallelism."""
    count = 1
    for kind in ("tensor", "pipeline", "data"):
        size = flags.get(f"{kind}-parallel-size", 1)
        count *= size if isinstance(size, int) and size > 0 else 1
    return count


def count_gpus_per_host(resolved: ResolvedRecipe) -> int:
    """Return the GPUs that a server needs on each host."""
    return max(1, count_gpus_needed(resolved.flags) // resolved.hosts)
