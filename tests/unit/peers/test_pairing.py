"""The hosts of a launch: what is refused before anything is started, and what is compared."""

import asyncio

import pytest
from msgspec.structs import replace

from dflash_tui import __version__
from dflash_tui.cli.main import main
from dflash_tui.common.errors import UsageError
from dflash_tui.engines import model_hub
from dflash_tui.launch.preflight.check import CheckLevel
from dflash_tui.machine import network, processes
from dflash_tui.machine.network import Interface, Network
from dflash_tui.peers import cluster_launch, connection
from dflash_tui.peers.connection import Greeting, HostSide, Peer
from dflash_tui.planning.memory import MemoryEstimate
from dflash_tui.planning.request import LaunchRequest
from tests.support import command_line

HERE = Network((Interface("eth0", ("192.168.7.1/24",), 1500),))
THERE = Network((Interface("eth0", ("192.168.7.2/24",), 1500),))
SIDE = HostSide("vllm 0.33.0, python3.12", "none (0)", "setup", "commit 1", "commit 2")


def greeting(known: Network, boot: str = "other", **fields) -> Greeting:
    return replace(Greeting(__version__, "b", "aarch64", boot, 5, 9, known), **fields)


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.setattr(network, "read_network", lambda: HERE)
    monkeypatch.setattr(processes, "read_boot_id", lambda: "mine")


def test_link_is_found_from_peer_greeting():
    link = cluster_launch._find_link([Peer("b", greeting(THERE))], "")
    assert [end.address for end in link.ends] == ["192.168.7.1", "192.168.7.2"]


@pytest.mark.parametrize(
    ("greetings", "hosts", "words"),
    [
        ([greeting(HERE, "mine")], ["b"], "b is this machine"),
        ([greeting(THERE), greeting(THERE)], ["b", "c"], "c is b"),
        ([greeting(Network())], ["b"], "no subnet"),
    ],
)
def test_hosts_that_cannot_be_joined(greetings, hosts, words):
    with pytest.raises(UsageError, match=words) as error:
        cluster_launch._find_link([*map(Peer, hosts, greetings)], "")
    assert error.value.hint


def test_peer_of_other_release_is_refused(monkeypatch):
    async def ask(*_: object, **__: object) -> Greeting:
        return greeting(THERE, version="9")

    monkeypatch.setattr(connection, "ask", ask)
    with pytest.raises(UsageError, match="another version"):
        asyncio.run(cluster_launch.reach_hosts(LaunchRequest(recipe="demo-cpu", peers=("b",))))


@pytest.mark.parametrize(("host", "warned"), [("b", ["RoCE"]), ("local", [])])
def test_ranks_of_one_machine_need_no_roce(host, warned):
    """They talk over NVLink or shared memory, and there is no cable to look at."""
    peer = Peer(host, greeting(THERE))
    planned = command_line.planned("gemma-4-26b-a4b", "--gpu", "h200")
    checks = cluster_launch._check_link(planned, [peer])
    assert [check.name for check in checks if check.level is CheckLevel.WARN] == warned


def test_host_with_least_memory_decides_fit():
    """VLLM gives all ranks the KV cache of the smallest."""
    here = MemoryEstimate((), 90, 100, 95, unified=True, kv_needed=5, kv_left=40, max_model_len=9, utilization=0.9)
    there = replace(here, kv_left=10)
    least, checks = cluster_launch.choose_smallest_fit([("", here), ("b", there), ("c", None)])
    assert least == there
    assert [check.name for check in checks] == ["fit"]
    assert checks[0].finding.startswith("b ")
    assert cluster_launch.choose_smallest_fit([("", here), ("b", here)]) == (here, [])
    assert cluster_launch.choose_smallest_fit([("", None)]) == (None, [])


@pytest.mark.parametrize("field", ["vllm", "patches", "setup", "target", "drafter"])
def test_every_differing_setup_field_fails_check(field):
    """VLLM does not: other weights are answered with 200 and noise."""
    assert {check.level for check in cluster_launch.compare_hosts(SIDE, SIDE, "b")} == {CheckLevel.OK}
    other = replace(SIDE, **{field: "other"})
    wrong = [check for check in cluster_launch.compare_hosts(SIDE, other, "b") if check.level is CheckLevel.FAIL]
    assert len(wrong) == 1
    assert wrong[0].fix
    unknown = replace(SIDE, **{field: ""})
    assert len(list(cluster_launch.compare_hosts(SIDE, unknown, "b"))) == 4


def test_different_flags_or_files_change_setup_digest(folders, tmp_path):
    planned = command_line.planned("demo-cpu")
    same, other = (
        cluster_launch.describe_side(command_line.planned("demo-cpu", *more)) for more in ([], ["--set", "n=3"])
    )
    assert cluster_launch.describe_side(planned) == same
    assert same.setup != other.setup
    (tmp_path / "config.json").write_text("{}")
    first = model_hub._digest_folder(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    assert model_hub._digest_folder(tmp_path) != first


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "demo-cpu", "--peer=-oProxyCommand=x"], "not a host name"),
        (["plan", "demo-cpu", "--peer", "a", "--peer", "a"], "twice"),
        (["plan", "demo-cpu", "--link", "eth0"], "--peer"),
        (["plan", "demo-cpu", "--peer", "a"], "evenly"),
        (["plan", "gemma-4-31b", "--variant", "gb10-pair", "--peer", "a", "--peer", "b"], "2 hosts"),
        (["ab", "demo-cpu", "--vary", "n=0,7", "--peer", "a"], "evenly"),
        (["plan", "demo-cpu", "--peer", "a", "--set", "distributed-executor-backend=ray"], "Ray"),
    ],
)
def test_local_mistakes_are_refused_without_connection(words, said, folders, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert main(words) == 2
    assert said in capsys.readouterr().err
