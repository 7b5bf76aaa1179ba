"""What NCCL says of the network between ranks: its lines, as its sources of 2.22 to 2.30 write them."""

import zipfile

import pytest

from dflash_tui.events import Noted, Problem
from dflash_tui.vllm_output.log_facts import NCCL_NETWORK, NetworkReader, is_information
from dflash_tui.vllm_output.log_reader import LogReader
from tests.support.recordings import RUNS

# Lines of one communicator over RoCE, and of one over sockets.
ROCE = """\
spark-1:411:411 [0] NCCL INFO Bootstrap: Using enp1s0f1np1:192.168.100.10<0>
spark-1:411:411 [0] NCCL INFO NET/IB : Using [0]rocep1s0f1:1/RoCE [1]roceP2p1s0f1:1/RoCE [RO]; OOB enp1s0f1np1:192.168.100.10<0>
spark-1:411:411 [0] NCCL INFO Initialized NET plugin IB
spark-1:411:411 [0] NCCL INFO Using network IB
spark-1:411:502 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0
spark-1:411:502 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/1(0)/GDRDMA(PCI)/Shared
"""  # noqa: E501
SOCKETS = """\
spark-1:411:411 [0] NCCL INFO NET/IB : No device found.
spark-1:411:411 [0] NCCL INFO NET/Socket : Using [0]enp1s0f1np1:192.168.100.10<0>
spark-1:411:411 [0] NCCL INFO Using network Socket
spark-1:411:502 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0
"""
WITHIN, ACROSS = "Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM", "Channel 01/0 : 1[1] -> 2[0] [send] via NET/IB/0"
DOES_WITHOUT = (
    "vm:1927:1927 [0] NCCL INFO dlvsym failed on mlx5dv_reg_dmabuf_mr - /lib/x86_64-linux-gnu/libmlx5.so: "
    "undefined symbol: mlx5dv_reg_dmabuf_mr, version MLX5_1.25 version MLX5_1.25"
)


@pytest.mark.parametrize(
    ("line", "network"),
    [
        ("a:1:1 [0] NCCL INFO Using network IB", "IB"),
        ("a:1:1 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0", "Socket"),
        ("[2026-11-24 01:02:03] a:1:1 [0] NCCL INFO Channel 11/1 : 0[0] -> 1[0] [send] via NET/IB/3(1)/GDRDMA", "IB"),
        ("a:1:1 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM", "P2P"),
        ("a:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>", ""),
        ("INFO 11-24 01:00:00 [x.py:1] Using network Socket", ""),
    ],
)
def test_log_line_becomes_event(line, network):
    lines = NetworkReader()
    lines.read_line(line)
    assert lines.network == network


@pytest.mark.parametrize(
    ("lines", "network"),
    [([WITHIN, "Using network Socket"], "P2P"), (["Using network IB", WITHIN, ACROSS, WITHIN], "IB")],
)
def test_link_across_hosts_precedes_link_within_one(lines, network):
    reader = NetworkReader()
    for line in lines:
        reader.read_line(f"a:1:1 [0] NCCL INFO {line}")
    assert reader.network == network


@pytest.mark.parametrize(
    ("line", "informs"),
    [(DOES_WITHOUT, True), ("ImportError: vllm/_C.abi3.so: undefined symbol: _ZN5torch3jit", False)],
)
def test_missing_optional_nccl_library_is_no_failure(line, informs):
    """As on an H200 with an older libmlx5, whose healthy server was said to be built for another torch."""
    assert is_information(line) is informs
    problems = [event for event in LogReader(0.0, 0.0).feed(f"{line}\n".encode()) if isinstance(event, Problem)]
    assert bool(problems) is not informs


@pytest.mark.parametrize(("log", "network"), [(ROCE, "IB"), (ROCE + SOCKETS, "Socket")])
def test_a_log_that_comes_in_pieces(log, network):
    """Also byte by byte, as a connection may give it."""
    for size in (1, 7, 4096):
        reader = NetworkReader()
        for begin in range(0, len(log), size):
            reader.feed(log[begin : begin + size].encode())
        assert reader.network == network


def test_cut_nccl_line_is_replaced_by_others():
    """NCCL writes blocks of a buffer, so that a line may end in the middle of one of vLLM's."""
    reader = NetworkReader()
    reader.feed(SOCKETS.replace("network Socket", "netINFO 11-24 01:00:00 [x.py:1] loading\nwork Socket").encode())
    assert reader.network == "Socket"


@pytest.mark.parametrize(("log", "networks"), [(ROCE, ["IB"]), (ROCE + SOCKETS, ["IB", "Socket"])])
def test_log_reader_reports_nccl_network_on_change(log, networks):
    """Not with each of a hundred channels."""
    events = LogReader(0.0, 0.0).feed(log.encode() * 3)
    said = [event.text for event in events if isinstance(event, Noted) and event.name == NCCL_NETWORK]
    assert said[: len(networks)] == networks
    assert len(said) == (1 if len(networks) == 1 else 6)


def test_a_healthy_server_over_two_gpus():
    """As recorded: NCCL chose sockets for hosts that there are none of, and looked for functions of RoCE in vain."""
    with zipfile.ZipFile(RUNS / "h200-two-ranks.zip") as archive:
        events = LogReader(0.0, 0.0).feed(archive.read("server.log"))
    assert [event.text for event in events if isinstance(event, Noted) and event.name == NCCL_NETWORK] == [
        "Socket",
        "P2P",
    ]
    assert not [event.text for event in events if isinstance(event, Problem) and "NCCL" in event.text]
