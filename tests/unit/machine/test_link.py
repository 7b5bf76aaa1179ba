"""The link between hosts: read from the recorded files of two GB10s, chosen for both, or one sentence why not."""

import pytest
from msgspec.structs import replace

from dflash_tui.common.errors import UsageError
from dflash_tui.machine.network import Interface, LinkEnd, Network, RoceDevice, choose_link
from tests.support.recorded_links import read_recorded

HOSTS = ("spark-a", "spark-b")


@pytest.fixture
def pair(tmp_path) -> tuple[Network, Network]:
    return read_recorded("gb10-a", tmp_path / "a"), read_recorded("gb10-b", tmp_path / "b")


def plain(*addresses: str, mtu: int = 1500) -> Network:
    return Network(tuple(Interface(f"eth{n}", (address,), mtu) for n, address in enumerate(addresses)))


def test_gb10_pair_uses_both_port_halves(pair):
    link = choose_link(pair, HOSTS)
    devices = ("rocep1s0f1", "roceP2p1s0f1")
    assert link.ends == (
        LinkEnd("192.168.100.10", "enp1s0f1np1", 9000, devices, 3),
        LinkEnd("192.168.100.11", "enp1s0f1np1", 9000, devices, 5),
    )
    assert link.why_sockets == ""


def test_foreign_gid_and_down_interface_are_skipped(pair):
    """Of RoCE v1 and of IPv6 no GID counts; docker0 is there, and down."""
    [_, device, *_] = sorted(pair[0].devices, key=lambda each: each.name.lower().replace("p2p1", "z"))
    assert device == RoceDevice("rocep1s0f1", "enp1s0f1np1", True, {3: "192.168.100.10"})
    assert "docker0" not in {each.name for each in pair[0].interfaces}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda device: replace(device, is_active=False), "not active"),
        (lambda device: replace(device, gids={3: "10.1.1.1"}), "no RoCE v2 GID"),
        (lambda device: replace(device, interface=""), "no RoCE device"),
    ],
)
def test_link_without_roce_names_host_at_fault(pair, change, word):
    near, far = pair
    link = choose_link([near, replace(far, devices=tuple(map(change, far.devices)))], HOSTS)
    assert [(end.devices, end.gid_index) for end in link.ends] == [((), None)] * 2
    assert word in link.why_sockets
    assert "spark-b" in link.why_sockets


def test_both_hosts_use_equally_many_devices(pair):
    near, far = pair
    link = choose_link([near, replace(far, devices=far.devices[1:])], HOSTS)
    assert [len(end.devices) for end in link.ends] == [1, 1]


@pytest.mark.parametrize("wanted", ["enP7s7", "10.0.0.21", "10.0.0.9"])
def test_link_is_selectable_by_interface_or_address(pair, wanted):
    assert [end.address for end in choose_link(pair, HOSTS, wanted).ends] == ["10.0.0.21", "10.0.0.22"]


@pytest.mark.parametrize(
    ("near", "far", "wanted"),
    [
        (plain("192.168.1.2/24"), plain("192.168.2.2/24"), ""),
        (plain("172.17.0.1/16"), plain("172.17.0.1/16"), ""),  # the bridge of docker is the same everywhere
        (plain("8.8.8.1/24"), plain("8.8.8.2/24"), ""),  # queues that ask for no key stay on private addresses
        (plain("192.168.1.2/24"), plain("192.168.1.3/24"), "eth7"),
        (Network(), Network(), ""),
    ],
)
def test_hosts_without_a_subnet_in_common(near, far, wanted):
    with pytest.raises(UsageError, match="spark-b") as error:
        choose_link([near, far], HOSTS, wanted)
    assert "--link" in error.value.hint


def test_named_public_subnet_is_used():
    near, far = plain("8.8.8.1/24"), plain("8.8.8.2/24")
    assert choose_link([near, far], HOSTS, "eth0").ends[1].address == "8.8.8.2"


def test_four_hosts_share_one_subnet():
    hosts = ("a", "b", "c", "d")
    networks = [plain("10.9.0.1/30", f"192.168.7.{n}/24", mtu=9000) for n in range(1, 5)]
    assert [end.address for end in choose_link(networks, hosts).ends] == [f"192.168.7.{n}" for n in range(1, 5)]
