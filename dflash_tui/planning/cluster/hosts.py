"""The hosts of a server over several: how each is reached, and what of it the link between them uses. Pure."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from dflash_tui.common.errors import UsageError
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.planning.field_types import Port

MASTER_PORT = 29501
# How a rank on this machine is called among the peers: for trying it out, and for two GPUs of one machine.
LOCAL = "local"
_Word = Annotated[str, Meta(max_length=255, pattern=r"^(?:[A-Za-z0-9_][\w.:%@-]*)?\Z")]


class ClusterHost(msgspec.Struct, frozen=True):
    """One host of a server: how it is reached, and what of it the link between the hosts uses."""

    host: _Word = ""
    """How ssh calls it; empty for the host of rank 0."""
    address: _Word = ""
    """Its address on the link."""
    interface: _Word = ""
    """The network interface that has the address."""
    devices: Annotated[tuple[_Word, ...], Meta(max_length=16)] = ()
    """Its RoCE devices on the link; none where the link is sockets only."""
    gid_index: Annotated[int, Meta(ge=0, le=4096)] | None = None
    """Which of the devices' GIDs is RoCE v2 with the address."""


class Cluster(msgspec.Struct, frozen=True):
    """The hosts of a server in the order of their ranks, and the port where they meet."""

    hosts: Annotated[tuple[ClusterHost, ...], Meta(min_length=2, max_length=64)]
    port: Port = MASTER_PORT
    is_named: bool = True
    """Whether the hosts are known; else their addresses are words that stand for them."""


register_type(Cluster)


class RankCommand(msgspec.Struct, frozen=True):
    """What one rank of a server runs, and where."""

    host: str
    """How ssh calls the host; empty for the host of rank 0."""
    argv: tuple[str, ...]
    """The command."""
    env: dict[str, str]
    """What is added to the environment."""
    models: tuple[str, ...] = ()
    """Where it gets target and drafter from, by what its host said; none before it was asked."""


def build_unnamed_cluster(hosts: int) -> Cluster:
    """Return a cluster of hosts that nobody named yet, for looking ahead."""
    return Cluster(tuple(ClusterHost(f"HOST_{n}" * bool(n), f"ADDRESS_{n}") for n in range(hosts)), is_named=False)


def find_place_on_machine(peers: Sequence[str], rank: int) -> tuple[int, int]:
    """Return how many ranks its machine has before rank `rank`, and how many it has of the server of these `peers`."""
    hosts = ["", *("" if peer == LOCAL else peer for peer in peers)]
    own = hosts[rank] if rank < len(hosts) else ""
    return hosts[:rank].count(own), hosts.count(own)


def require_named(cluster: Cluster | None) -> None:
    """Raise when a server takes hosts that nobody named.

    Raises:
        UsageError: with what names them.
    """
    if cluster and not cluster.is_named:
        hosts = len(cluster.hosts)
        named = " ".join(f"--peer HOST_{number}" for number in range(1, hosts)) if hosts > 2 else "--peer HOST"
        raise UsageError(f"it takes {hosts} hosts, and only this one is named", hint=named)
