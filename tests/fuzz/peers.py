"""A target for what another host says, and for what it is told: lines of JSON in both directions."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

import msgspec

from dflash_tui.common.errors import UsageError
from dflash_tui.common.line_buffer import LineBuffer
from dflash_tui.events import Preparing, Step
from dflash_tui.machine.link import choose_link
from dflash_tui.machine.network import Interface, Network, RoceDevice
from dflash_tui.peers import messages, transport
from dflash_tui.peers.copies.manifest import CopyFile, HubSnapshot, Manifest, OwnFolder, require_safe
from dflash_tui.peers.messages import Finding, Greeting, HostSide, RankChecked
from dflash_tui.planning.cluster.hosts import Cluster, ClusterHost
from dflash_tui.planning.plan_builder import build_plan
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.planning.request import LaunchRequest
from tests.fuzz.json_edits import EDITED, edited
from tests.fuzz.promises import assert_finite, assert_is_error, assert_plain

_HERE = Network(
    (Interface("enp1s0", ("192.168.7.1/24",), 9000), Interface("wlan0", ("10.0.0.5/24",), 1500)),
    (RoceDevice("rocep1s0", "enp1s0", True, {3: "192.168.7.1"}),),
)
_THERE = Network(
    (Interface("enp2s0", ("192.168.7.2/24",), 9000),), (RoceDevice("rocep2s0", "enp2s0", True, {5: "192.168.7.2"}),)
)
_ORDER = messages.RankOrder(
    LaunchRequest("demo-cpu", peers=("b",)), Cluster((ClusterHost("", "10.0.0.1"), ClusterHost("b", "10.0.0.2"))), 1
)


def _bases() -> list[object]:
    demo = build_plan(resolution.resolve_recipe(recipe_loader.find_recipe("demo-cpu")))
    side = HostSide("vllm 0.33.0, python3.12", "none (0)", "0", "commit 1", "commit 2")
    said = [
        messages.SayHello(1, messages.PROTOCOL, "0.1.0"),
        messages.LaunchRank(2, _ORDER),
        messages.WatchRank(3, "20261123-demo"),
        Greeting(1, messages.PROTOCOL, "0.1.0", "b", "aarch64", "boot", 1.0, 5, 9, _THERE),
        RankChecked(2, demo, (Finding("GPU", "ok", "one"),), side),
        messages.RankProgress(0, Preparing(1.0, Step.INSTALL, "half", 0.5)),
        messages.LogChunk(0, b"\x1b[31mred"),
        messages.RankBeat(0, True, 2, 1, 0, 5, 6),
        messages.Refused(4, "no", "because", "do it", 2),
        messages.AskRoom(5, Manifest(HubSnapshot("owner/m", "main", "0" * 40), (CopyFile("a", 3, "a" * 64),))),
        messages.AskRoom(6, Manifest(OwnFolder("m", "0" * 16, "/m"), (CopyFile("a/b", 3),))),
        messages.RoomFound(7, (0, None), 10**9, False),
    ]
    return [msgspec.to_builtins(each) for each in said]


def peer(data: bytes) -> None:
    """What another host says: nothing, or a message that is plain and finite, by which one link is chosen or none."""
    if data[:1] == bytes([EDITED]):
        data = b"\n".join(edited(_bases(), part) for part in data[1:].split(b"\n")) + b"\n"
    cut = zlib.crc32(data) % (len(data) + 1)
    buffer, whole = LineBuffer(messages.LONGEST_LINE), LineBuffer(messages.LONGEST_LINE)
    lines = [*buffer.feed(data[:cut]), *buffer.feed(data[cut:])]
    assert lines == whole.feed(data)
    for line in lines:
        for decode in (messages.decode_message, messages.decode_command):
            message = decode(line)
            if message is None:
                continue
            again = messages.encode_line(message)
            assert_plain(again.decode())
            assert_finite(msgspec.to_builtins(message))
            if isinstance(message, messages.AskRoom):
                _place(message.manifest)
            if isinstance(message, Greeting):
                _link(message.network)
        assert 0 <= messages.read_command_id(line) <= 1 << 53


def _place(manifest: Manifest) -> None:
    try:
        require_safe(manifest)
    except UsageError as error:
        assert_is_error(str(error))
        return
    for file in manifest.files:
        place = os.path.normpath(f"/root/{file.name}")
        assert place == f"/root/{file.name}"


def _link(network: Network) -> None:
    try:
        link = choose_link([_HERE, network], ["here", "there"])
    except UsageError as error:
        assert_is_error(str(error))
        return
    assert len({end.address for end in link.ends}) == len(link.ends)
    assert len({len(end.devices) for end in link.ends}) == 1
    for end in link.ends:
        ClusterHost("there", end.address, end.interface, end.devices, end.gid_index)
        assert_plain(f"{end} {link.why_sockets}")
        assert transport.build_agent_command("there")


def peer_seeds() -> Iterator[bytes]:
    """Yield what hosts say to each other, and what is near it."""
    yield b"".join(msgspec.json.encode(base) + b"\n" for base in _bases())
    yield b'Welcome to Ubuntu\n\x1b[2J{"say":"hello"}\n' + msgspec.json.encode(_bases()[3]) + b"\n"
    yield bytes([EDITED]) + b"\x03\x00\x09\x1b\n" + b"\x04\x00\x05\x07"
    yield bytes([EDITED]) + b"\x01\x00\x06\x30\n" + b"\x06\x00\x02\x20"
