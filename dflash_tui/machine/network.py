"""The network of this machine on Linux: interfaces with their addresses, and RoCE devices with their GIDs.

`root` replaces `/`, so that a recorded machine can be read as well. `ibdev2netdev` and `show_gids` are not needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ipaddress import IPv4Interface, IPv4Network, IPv6Address, ip_address, ip_interface
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import psutil
from msgspec import Meta

from dflash_tui.common.errors import UsageError
from dflash_tui.common.untrusted_json import register_type

_ROOT = Path("/")
_NAME = r"^[A-Za-z0-9_][\w.:@-]{0,63}\Z"
DeviceName = Annotated[str, Meta(pattern=_NAME)]


class Interface(msgspec.Struct, frozen=True):
    """A network interface that is up."""

    name: DeviceName
    addresses: tuple[str, ...] = ()
    """Its IPv4 addresses with prefix lengths, such as `192.168.1.2/24`."""
    mtu: int = 0


class RoceDevice(msgspec.Struct, frozen=True):
    """The first port of an InfiniBand device over Ethernet."""

    name: DeviceName
    interface: str = ""
    """The network interface of the same port; empty if there is none."""
    is_active: bool = False
    gids: dict[int, str] = {}
    """The IPv4 address of each RoCE v2 GID, by index."""


class Network(msgspec.Struct, frozen=True):
    """The parts of a machine's network that a server over several hosts could use."""

    interfaces: tuple[Interface, ...] = ()
    devices: tuple[RoceDevice, ...] = ()


register_type(Network)


def read_network(root: Path = _ROOT, addresses: Mapping[str, tuple[str, ...]] | None = None) -> Network:
    """Return the interfaces that are up and the RoCE devices; `addresses` replaces those of this machine."""
    addresses_by_interface = _list_addresses() if addresses is None else addresses
    interfaces = [
        Interface(name, tuple(own), int(_read_word(place / "mtu") or 0))
        for name, own in sorted(addresses_by_interface.items())
        if re.match(_NAME, name)
        and own
        and _read_word((place := root / "sys/class/net" / name) / "operstate") != "down"
    ]
    folders = sorted(root.glob("sys/class/infiniband/*"))
    devices = [_read_device(folder) for folder in folders if re.match(_NAME, folder.name)]
    return Network(tuple(interfaces), tuple(devices))


def is_unplugged(interface: str) -> bool:
    """Whether an interface of this machine is down or has no carrier; False if there is no such interface."""
    stats = psutil.net_if_stats().get(interface)
    return stats is not None and not stats.isup


def _list_addresses() -> dict[str, tuple[str, ...]]:
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
            with suppress(ValueError):
                if address := IPv6Address(_read_word(port / "gids" / kind.name)).ipv4_mapped:
                    gids[int(kind.name)] = str(address)
    state = _read_word(port / "state")  # such as `4: ACTIVE`
    return RoceDevice(
        folder.name, interfaces[0] if interfaces else "", state.endswith("ACTIVE"), dict(sorted(gids.items()))
    )


def _read_word(file: Path) -> str:
    try:  # an unused GID cannot be read
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


class LinkEnd(NamedTuple):
    """One host's end of a link."""

    address: str
    interface: str
    mtu: int
    devices: tuple[str, ...] = ()
    """Its RoCE devices, in the order in which NCCL pairs them with those of the other ends."""
    gid_index: int | None = None


class Link(NamedTuple):
    """The link between hosts, one end per host in their order; `why_sockets` is empty if RoCE is used."""

    ends: tuple[LinkEnd, ...]
    why_sockets: str = ""


class _Place(NamedTuple):
    interface: Interface
    address: IPv4Interface


def choose_link(networks: Sequence[Network], hosts: Sequence[str], wanted: str = "") -> Link:
    """Return the best link between all hosts: with RoCE on each, then not link-local, then with the largest MTU.

    `wanted` is an interface of the first host or an address in the subnet to use, and allows public subnets.

    Raises:
        UsageError: there is no subnet in which each host has an address of its own.
    """
    subnets = _list_subnets(networks[0], wanted)
    links = [link for subnet in subnets if (link := _build_link(networks, hosts, subnet))]
    if not links:
        first = ", ".join(map(str, subnets)) or "no private one"
        which = f"on {wanted} of {hosts[0]}" if wanted else f"of {hosts[0]}"
        raise UsageError(
            f"no subnet {which} is also one of {' and '.join(hosts[1:])}",
            evidence=f"{hosts[0]} has {first}; {'; '.join(map(_describe, networks[1:], hosts[1:]))}",
            hint="give both ends of the cable an address in one subnet, or name the interface: --link NAME",
        )

    def rate(link: Link) -> tuple[bool, bool, int]:
        is_link_local = ip_address(link.ends[0].address).is_link_local
        return not link.why_sockets, not is_link_local, min(end.mtu for end in link.ends)

    return max(links, key=rate)


def _list_subnets(network: Network, wanted: str) -> list[IPv4Network]:
    places = _list_places(network)
    if not wanted:
        return list(dict.fromkeys(place.address.network for place in places if place.address.is_private))
    named = [place for place in places if wanted in {place.interface.name, str(place.address.ip)}]
    with suppress(ValueError):
        named += [place for place in places if ip_address(wanted) in place.address.network]
    return list(dict.fromkeys(place.address.network for place in named))


def _list_places(network: Network, subnet: IPv4Network | None = None) -> list[_Place]:
    places = [_Place(each, IPv4Interface(text)) for each in network.interfaces for text in each.addresses]
    usable = [place for place in places if not place.address.is_loopback and place.address.network.prefixlen > 0]
    return [place for place in usable if subnet in {None, place.address.network}]


def _describe(network: Network, host: str) -> str:
    subnets = dict.fromkeys(str(place.address.network) for place in _list_places(network))
    return f"{host} has {', '.join(subnets) or 'none'}"


def _build_link(networks: Sequence[Network], hosts: Sequence[str], subnet: IPv4Network) -> Link | None:
    places = [_find_place(network, subnet) for network in networks]
    here = [place for place in places if place is not None]
    if len(here) < len(places) or len({place.address.ip for place in here}) < len(here):
        return None
    plain = tuple(LinkEnd(str(place.address.ip), place.interface.name, place.interface.mtu) for place in here)
    devices = [_list_devices(network, subnet) for network in networks]
    for end, own, network, host in zip(plain, devices, networks, hosts, strict=True):
        if why := _explain_sockets(end, own, network, host):
            return Link(plain, why)
    count = min(map(len, devices))  # NCCL pairs devices by position
    ends = []
    for end, own in zip(plain, devices, strict=True):
        index = _find_gid_index(own[:count], subnet)
        used = own[:count] if index is not None else own[:1]
        index = _find_gid_index(used, subnet) if index is None else index
        ends.append(end._replace(devices=tuple(device.name for device in used), gid_index=index))
    least = min(len(end.devices) for end in ends)
    return Link(tuple(end._replace(devices=end.devices[:least]) for end in ends))


def _find_place(network: Network, subnet: IPv4Network) -> _Place | None:
    """Return a host's address in the subnet; a Spark shows each port twice, the second time with a capital P."""
    places = _list_places(network, subnet)
    return min(places, key=lambda place: ("P" in place.interface.name, place.interface.name), default=None)


def _list_devices(network: Network, subnet: IPv4Network) -> list[RoceDevice]:
    names = {place.interface.name for place in _list_places(network, subnet)}
    usable = [device for device in network.devices if device.is_active and device.interface in names]
    with_gid = [device for device in usable if _find_gid_index([device], subnet) is not None]
    return sorted(with_gid, key=lambda device: ("P" in device.name, device.name))


def _find_gid_index(devices: Sequence[RoceDevice], subnet: IPv4Network) -> int | None:
    """Return the lowest index at which all devices have a GID in the subnet: NCCL uses one index for all."""
    sets = [{index for index, address in device.gids.items() if ip_address(address) in subnet} for device in devices]
    return min(set.intersection(*sets), default=None) if sets else None


def _explain_sockets(end: LinkEnd, devices: list[RoceDevice], network: Network, host: str) -> str:
    """Return why a host cannot use RoCE on the link; empty if it can."""
    if devices:
        return ""
    own = [device for device in network.devices if device.interface == end.interface]
    if not own:
        return f"{end.interface} of {host} has no RoCE device, so NCCL uses sockets"
    if not own[0].is_active:
        return f"the port of {own[0].name} of {host} is not active, so NCCL uses sockets"
    return f"{own[0].name} of {host} has no RoCE v2 GID for {end.address}, so NCCL uses sockets"
