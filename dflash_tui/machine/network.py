"""The network of this computer as Linux shows it: interfaces with their addresses, and RoCE devices with their GIDs.

`root` stands for `/`, so that a recorded machine can be read as well. `ibdev2netdev` and `show_gids` are not needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv6Address, ip_interface
from pathlib import Path
from typing import Annotated

import msgspec
import psutil
from msgspec import Meta

from dflash_tui.common.untrusted_json import register_type

_ROOT = Path("/")
_MOST = 256
_MOST_ERRORS = 1 << 53
_NAME = r"^[A-Za-z0-9_][\w.:@-]{0,63}\Z"
DeviceName = Annotated[str, Meta(pattern=_NAME)]
_Address = Annotated[str, Meta(max_length=64, pattern=r"^[0-9a-fA-F.:]+(?:/\d{1,3})?\Z")]


class Interface(msgspec.Struct, frozen=True):
    """A network interface that is up."""

    name: DeviceName
    addresses: Annotated[tuple[_Address, ...], Meta(max_length=_MOST)] = ()
    """Its IPv4 addresses, each with the length of its network's prefix."""
    mtu: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    errors: Annotated[int, Meta(ge=0, le=_MOST_ERRORS)] = 0
    """The packets that came in broken since it is up, as far as they are counted."""


class RoceDevice(msgspec.Struct, frozen=True):
    """An InfiniBand device over Ethernet, by its first port."""

    name: DeviceName
    interface: Annotated[str, Meta(max_length=64)] = ""
    """The network interface that is the same port; empty when there is none."""
    is_active: bool = False
    gids: Annotated[dict[int, _Address], Meta(max_length=_MOST)] = {}
    """By index, the IPv4 address of each GID that is RoCE v2."""
    errors: Annotated[int, Meta(ge=0, le=_MOST_ERRORS)] = 0
    """The symbols and packets that its port received broken, as far as they are counted."""


class Network(msgspec.Struct, frozen=True):
    """What of a machine's network a server over several hosts could use."""

    interfaces: Annotated[tuple[Interface, ...], Meta(max_length=_MOST)] = ()
    devices: Annotated[tuple[RoceDevice, ...], Meta(max_length=_MOST)] = ()


register_type(Network)


def read_network(root: Path = _ROOT, addresses: Mapping[str, tuple[str, ...]] | None = None) -> Network:
    """Return the interfaces that are up and the RoCE devices; `addresses` are those of a recorded machine."""
    addresses_by_interface = _list_addresses() if addresses is None else addresses
    interfaces = [
        Interface(name, tuple(own), _read_number(place / "mtu"), _read_count(place / "statistics/rx_errors"))
        for name, own in sorted(addresses_by_interface.items())
        if re.match(_NAME, name)
        and own
        and _read_word((place := root / "sys/class/net" / name) / "operstate") != "down"
    ]
    folders = sorted(root.glob("sys/class/infiniband/*"))
    devices = [_read_device(folder) for folder in folders if re.match(_NAME, folder.name)]
    return Network(tuple(interfaces[:_MOST]), tuple(devices[:_MOST]))


def is_unplugged(interface: str) -> bool:
    """Whether an interface of this machine is down, or has no carrier, as without its cable; False where none is so."""
    stats = psutil.net_if_stats().get(interface)
    return stats is not None and not stats.isup


def _list_addresses() -> dict[str, tuple[str, ...]]:
    """Return the IPv4 addresses of each interface, such as `192.168.1.2/24`; those of the loopback are left out."""
    addresses: dict[str, tuple[str, ...]] = {}
    for name, entries in psutil.net_if_addrs().items():
        own = [f"{entry.address}/{entry.netmask}" for entry in entries if entry.family.name == "AF_INET"]
        mine = [interface for text in own if "None" not in text and not (interface := ip_interface(text)).is_loopback]
        addresses[name] = tuple(str(interface) for interface in mine)
    return addresses


def _read_device(folder: Path) -> RoceDevice:
    port = folder / "ports" / "1"
    interfaces = sorted(path.name for path in folder.glob("device/net/*"))
    gids: dict[int, str] = {}
    for kind in port.glob("gid_attrs/types/*"):
        if kind.name.isdigit() and "v2" in _read_word(kind).lower():
            address = _read_mapped_address(_read_word(port / "gids" / kind.name))
            gids |= {int(kind.name): address} if address else {}
    state = _read_word(port / "state")  # such as `4: ACTIVE`
    ordered = dict(sorted(gids.items())[:_MOST])
    errors = sum(_read_count(port / "counters" / name) for name in ("symbol_error", "port_rcv_errors"))
    return RoceDevice(folder.name, interfaces[0] if interfaces else "", state.endswith("ACTIVE"), ordered, errors)


def _read_mapped_address(gid: str) -> str:
    """Return the IPv4 address that a GID maps; empty for any other."""
    try:
        mapped = IPv6Address(gid).ipv4_mapped
    except ValueError:
        return ""
    return str(mapped or "")


def _read_word(file: Path) -> str:
    try:  # a GID that is not in use cannot be read
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def _read_number(file: Path) -> int:
    word = _read_word(file)
    return int(word) if word.isdigit() and len(word) < 7 else 0


def _read_count(file: Path) -> int:
    word = _read_word(file)
    return int(word) if word.isdecimal() and word.isascii() and len(word) < 16 else 0
