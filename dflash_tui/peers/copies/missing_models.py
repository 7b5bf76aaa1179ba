"""Models that are whole here and not on another host: how many bytes they take over which link, and their copies."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import format_gigabytes
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.events import Preparing, Step
from dflash_tui.launch.preflight.check import Check, fail_check, pass_check
from dflash_tui.machine.process_environment import OPENSSH, build_helper_environment
from dflash_tui.peers import transport
from dflash_tui.peers.connection import PeerConnection
from dflash_tui.peers.copies import receiver, sender
from dflash_tui.peers.copies.places import count_missing
from dflash_tui.peers.copies.sources import CopySource
from dflash_tui.peers.messages import AskRoom, RoomFound
from dflash_tui.peers.transport import LinkAddress
from dflash_tui.planning.cluster.hosts import LOCAL, Cluster

_ROOM_SECONDS = 60.0
_SETTINGS_SECONDS = 10.0


class MissingModel(NamedTuple):
    """A model that another host lacks, and how much room is there."""

    source: CopySource
    size: int
    """The bytes that are still to be copied."""
    free: int
    """The free bytes of the disk there."""


async def find_missing(sources: Sequence[CopySource], peer: PeerConnection) -> list[MissingModel]:
    """Return those of the models that another host lacks, in whole or in part.

    Raises:
        DflashError: it cannot say so, or does not answer.
    """
    missing = []
    for source in sources if peer.host != LOCAL else ():
        room = await peer.ask(AskRoom, _ROOM_SECONDS, manifest=source.manifest)
        if not isinstance(room, RoomFound) or not sender.is_answer(room, source.manifest.files):
            raise DflashError(f"{peer.host} sent an unexpected answer")
        if not room.is_done:
            missing.append(MissingModel(source, count_missing(source.manifest.files, room.offsets), room.free))
    return missing


def check_missing(missing: Iterable[MissingModel], peer: PeerConnection, cluster: Cluster, rank: int) -> list[Check]:
    """Return a check for each role of each model that is to be copied, and whether it fits there."""
    way, checks, needed = _describe_way(cluster, rank), [], 0
    for model in missing:
        needed += model.size
        for number, role in enumerate(model.source.roles):
            name, amount = f"{peer.host}: {role}", format_gigabytes(model.size)
            if number:
                checks.append(pass_check(name, f"{model.source.title}, copied with the {model.source.roles[0]}"))
            elif model.free < needed + receiver.RESERVE:
                finding = f"{model.source.title}, {amount} to copy, {format_gigabytes(model.free)} free there"
                fix = f"on {peer.host}: free some space, or put the folders elsewhere with HF_HOME and XDG_DATA_HOME"
                checks.append(fail_check(name, finding, fix))
            else:
                checks.append(pass_check(name, f"{model.source.title}, {amount} to copy from this machine {way}"))
    return checks


async def copy_missing(
    sources: Sequence[CopySource],
    peer: PeerConnection,
    cluster: Cluster,
    rank: int,
    report: Callable[[Preparing], None],
) -> None:
    """Copy what another host lacks over the link, or where that takes no ssh, as ssh reaches the host otherwise.

    Raises:
        DflashError: a copy failed; what came is kept there, and the next one goes on from it.
    """
    for model in await find_missing(sources, peer):
        link = await asyncio.to_thread(_find_link, peer.host, cluster, rank)
        try:
            await sender.send_copy(peer.host, link, model.source, report, _describe_way(cluster, rank))
        except sender.NotReached as error:
            if error.is_begun:
                raise
            text = f"no ssh {_describe_way(cluster, rank)}, so as {peer.host} is reached: {error.what}"
            report(Preparing(time.time(), Step.MODELS, clean_line(f"{text}; {error.evidence}")))
            await sender.send_copy(peer.host, None, model.source, report)


def _describe_way(cluster: Cluster, rank: int) -> str:
    end = cluster.hosts[rank]
    return f"over {end.address} ({end.interface})" if end.interface else f"over {end.address}"


def _find_link(host: str, cluster: Cluster, rank: int) -> LinkAddress:
    """Return how a host is reached on the link; its key is known by the name that ssh has for it."""
    try:
        settings = subprocess.run(
            transport.build_settings_command(host),
            env=build_helper_environment(OPENSSH),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SETTINGS_SECONDS,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        settings = ""
    return LinkAddress(cluster.hosts[0].address, cluster.hosts[rank].address, transport.read_key_name(host, settings))
