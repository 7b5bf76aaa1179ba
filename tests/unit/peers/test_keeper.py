"""What the keeper makes of a beat, and what it says of ranks that it cannot reach."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from dflash_tui.common.errors import UsageError
from dflash_tui.events import RankSampled, RankState
from dflash_tui.machine import network
from dflash_tui.peers import keeper
from dflash_tui.peers.connection import RankBeat
from dflash_tui.peers.keeper import Keeper
from dflash_tui.planning.cluster import Cluster, ClusterHost
from dflash_tui.runs import server_process
from dflash_tui.runs.run import FarRank, Run
from tests.support.fake_runs import made, recorded

BEAT = RankBeat(is_alive=True, processes=3, workers=1, suspended=0, resident=5, memory_available=6)


@pytest.fixture
def run(folders) -> Run:
    known = Run("r", made(8100), 1, "", 0.0, 0.0, "fake", far_ranks=(FarRank(1, "spark-b", "there"),))
    known.folder.mkdir(parents=True)
    return known


def state_after(run: Run, *beats: RankBeat) -> tuple[RankState, bool]:
    keeping = Keeper(run)
    for beat in beats:
        keeping._judge(run.far_ranks[0], beat)
    [rank] = (server_process.read_kept(run) or pytest.fail("nothing is kept")).ranks
    return rank.state, keeping._fallen.is_set()


@pytest.mark.parametrize(
    ("beats", "state", "is_fallen"),
    [
        ([BEAT], RankState.RUNNING, False),
        ([BEAT, replace(BEAT, is_alive=False)], RankState.ENDED, True),
        ([BEAT, *[replace(BEAT, workers=0)] * 2], RankState.ENDED, True),  # its launcher takes seconds to follow
        ([BEAT, replace(BEAT, workers=0), BEAT], RankState.RUNNING, False),  # it changed its name meanwhile
        ([replace(BEAT, workers=0)], RankState.RUNNING, False),  # it has none yet
        ([BEAT, replace(BEAT, suspended=2)], RankState.SUSPENDED, False),
        ([BEAT, replace(BEAT, suspended=2), BEAT], RankState.RUNNING, False),
    ],
)
def test_what_a_beat_says_of_a_rank(run, beats, state, is_fallen):
    assert state_after(run, *beats) == (state, is_fallen)


def test_why_a_rank_was_ended_is_kept(run):
    state_after(run, BEAT, replace(BEAT, is_alive=False, why="its lease was not renewed for 120 s"))
    kept = server_process.read_kept(run)
    assert kept is not None
    assert "lease" in str(kept.ranks[0])
    assert server_process.list_left(run) == []


async def test_stop_retries_unreachable_host_and_reports_it(run, monkeypatch):
    tries = []

    @asynccontextmanager
    async def refuse(host: str) -> AsyncIterator[None]:
        tries.append([str(rank) for rank in server_process.list_left(run)])
        raise UsageError(f"{host} cannot be reached")
        yield

    monkeypatch.setattr(keeper, "open_connection", refuse)
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
    ("beats", "trouble"),
    [([BEAT], ""), ([BEAT, replace(BEAT, suspended=2)], "suspended"), ([BEAT, replace(BEAT, is_alive=False)], "")],
)
async def test_rank_trouble_before_stop_is_kept(beats, trouble, run, monkeypatch):
    """It is stopped then, and `why` would not know that it was suspended."""

    @asynccontextmanager
    async def connect(_: str) -> AsyncIterator[StoppingPeer]:
        yield StoppingPeer()

    monkeypatch.setattr(keeper, "open_connection", connect)
    keeping = Keeper(run)
    for beat in beats:
        keeping._judge(run.far_ranks[0], beat)
    await keeping.stop_rank(run.far_ranks[0])
    [rank] = (server_process.read_kept(run) or pytest.fail("nothing is kept")).ranks
    assert rank.trouble.partition(" ")[0] == trouble
    assert rank.state in {RankState.STOPPED, RankState.ENDED}


class StoppingPeer:
    """A connection over which a rank is stopped at once."""

    async def ask(self, *_: object, **__: object) -> None:
        """Stop it."""


def test_nccl_network_is_read_from_copied_log(run):
    """Recorded for alarms and screens, and kept for `ps`; a keeper that takes over does not forget it."""
    keeping = Keeper(run)
    for data in (b"a:1:1 [0] NCCL INFO Using net", b"work Socket\nx"):
        keeping._copy(run.far_ranks[0], data)
        keeping._judge(run.far_ranks[0], BEAT)
    assert [sample.network for sample in recorded(run, RankSampled)] == ["", "Socket"]
    Keeper(run)._judge(run.far_ranks[0], BEAT)
    [rank] = (server_process.read_kept(run) or pytest.fail("nothing is kept")).ranks
    assert rank.network == "Socket"


@pytest.mark.parametrize(("unplugged", "named"), [({"eth7"}, "eth7"), ({"eth8"}, "")])
def test_unplugged_cable_is_reported_for_running_rank(unplugged, named, run, monkeypatch):
    """It is reached over another network, and nobody else would say why no token comes."""
    ends = (ClusterHost("", "10.0.0.1", "eth7"), ClusterHost("spark-b", "10.0.0.2", "eth8"))
    monkeypatch.setattr(network, "is_unplugged", unplugged.__contains__)
    linked = replace(run, plan=replace(run.plan, cluster=Cluster(ends)))
    assert state_after(linked, BEAT) == (RankState.RUNNING, False)
    [rank] = (server_process.read_kept(run) or pytest.fail("nothing is kept")).ranks
    assert rank.why.partition(" ")[0] == named
    assert [sample.why for sample in recorded(run, RankSampled)] == [rank.why]


def test_how_many_processors_a_rank_keeps_busy():
    """Over two seconds at least; what ended takes its time with it, and a rank with a GPU says nothing of it."""
    load, seen = keeper.ProcessorLoad(), []
    for at, worked in [(0.0, 10.0), (1.0, 11.0), (2.0, 12.0), (5.0, 12.3), (7.5, 4.0), (10.0, 9.0), (11.0, None)]:
        load.take(at, worked)
        seen.append(load.busy)
    assert seen == [None, None, 1.0, 0.1, None, 2.0, None]
