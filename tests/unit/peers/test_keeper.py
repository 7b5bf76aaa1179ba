"""What the keeper makes of a beat, and what it says of ranks that it cannot reach."""

import asyncio
import itertools
import time
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from dflash_tui.common.errors import UsageError
from dflash_tui.events import RankSampled, RankState
from dflash_tui.machine import network
from dflash_tui.peers import keeper
from dflash_tui.peers.keeper import Keeper
from dflash_tui.planning.cluster import Cluster, ClusterHost
from dflash_tui.runs import server_process
from dflash_tui.runs.run import FarRank, Run
from dflash_tui.runs.server_process import RankStatus
from tests.support.fake_runs import made, recorded

SAMPLE = RankSampled(0.0, 1, "", RankState.RUNNING, 0.0, resident=5, available=6)
SUSPENDED = replace(SAMPLE, state=RankState.SUSPENDED, why="2 of its processes were stopped by a signal")
ENDED = replace(SAMPLE, state=RankState.ENDED, why="it exited")


@pytest.fixture
def run(folders) -> Run:
    known = Run("r", made(8100), 1, "", 0.0, 0.0, "fake", far_ranks=(FarRank(1, "spark-b", "there"),))
    known.folder.mkdir(parents=True)
    return known


def read_rank(run: Run) -> RankStatus:
    [rank] = (server_process.read_kept(run) or pytest.fail("nothing is kept")).ranks
    return rank


@pytest.mark.parametrize(
    ("samples", "is_fallen"), [([SAMPLE], False), ([SAMPLE, ENDED], True), ([SAMPLE, SUSPENDED], False)]
)
def test_state_of_a_rank_is_kept(run, samples, is_fallen):
    keeping = Keeper(run)
    for sample in samples:
        keeping.judge(run.far_ranks[0], sample)
    rank = read_rank(run)
    assert (rank.state, rank.why, keeping._fallen.is_set()) == (samples[-1].state, samples[-1].why, is_fallen)
    assert bool(server_process.list_left(run)) is not is_fallen
    assert recorded(run, RankSampled)[-1].host == "spark-b"


async def test_stop_retries_unreachable_host_and_reports_it(run, monkeypatch):
    tries = []

    async def refuse(host: str, *_: object, **__: object) -> None:
        tries.append([str(rank) for rank in server_process.list_left(run)])
        raise UsageError(f"{host} cannot be reached")

    monkeypatch.setattr(keeper, "ask", refuse)
    monkeypatch.setattr(keeper, "LEASE_SECONDS", 0.1)
    monkeypatch.setattr(keeper, "_STOP_SECONDS", 0.1)
    monkeypatch.setattr(keeper, "_RETRY", 0.01)
    ticks = itertools.count(0, 0.01)  # each look at the clock, however long the machine takes between two
    monkeypatch.setattr(keeper, "time", SimpleNamespace(time=time.time, monotonic=lambda: next(ticks)))
    await asyncio.wait_for(keeper.stop_far_ranks(run), 60)
    assert len(tries) > 2
    assert "cannot be reached" in tries[1][0]
    assert [rank.state for rank in server_process.list_left(run)] == [RankState.LEFT]


@pytest.mark.parametrize(
    ("samples", "trouble"), [([SAMPLE], ""), ([SAMPLE, SUSPENDED], "suspended"), ([SAMPLE, ENDED], "")]
)
async def test_rank_trouble_before_stop_is_kept(samples, trouble, run, monkeypatch):
    """It is stopped then, and `why` would not know that it was suspended."""

    async def stop(*_: object, **__: object) -> None:
        pass

    monkeypatch.setattr(keeper, "ask", stop)
    keeping = Keeper(run)
    for sample in samples:
        keeping.judge(run.far_ranks[0], sample)
    await keeping.stop_rank(run.far_ranks[0])
    rank = read_rank(run)
    assert rank.trouble.partition(" ")[0] == trouble
    assert rank.state in {RankState.STOPPED, RankState.ENDED}


def test_nccl_network_outlasts_a_reconnection(run):
    """The far side reads it from the log, and begins after what was copied."""
    for name in ("", "Socket", ""):
        Keeper(run).judge(run.far_ranks[0], replace(SAMPLE, network=name))
    assert [sample.network for sample in recorded(run, RankSampled)] == ["", "Socket", "Socket"]
    assert read_rank(run).network == "Socket"


@pytest.mark.parametrize(("unplugged", "named"), [({"eth7"}, "eth7"), ({"eth8"}, "")])
def test_unplugged_cable_is_reported_for_running_rank(unplugged, named, run, monkeypatch):
    """It is reached over another network, and nothing else would say why no token comes."""
    ends = (ClusterHost("", "10.0.0.1", "eth7"), ClusterHost("spark-b", "10.0.0.2", "eth8"))
    monkeypatch.setattr(network, "is_unplugged", unplugged.__contains__)
    linked = replace(run, plan=replace(run.plan, cluster=Cluster(ends)))
    Keeper(linked).judge(run.far_ranks[0], SAMPLE)
    assert read_rank(run).why.partition(" ")[0] == named
    assert [sample.why for sample in recorded(run, RankSampled)] == [read_rank(run).why]
