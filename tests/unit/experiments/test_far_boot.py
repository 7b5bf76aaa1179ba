"""A boot over several hosts counts only when every rank was seen at work after its rounds."""

import asyncio
import time
from typing import cast

import pytest

from dflash_tui.benchmark.server import Server
from dflash_tui.events import RankSampled, RankState
from dflash_tui.experiments import boot
from dflash_tui.experiments.design import Design
from dflash_tui.run_state.state import RunState
from dflash_tui.runs.run import FarRank, Run
from tests.support.fake_runs import made

RUN = Run("r", made(8100), 1, "", 0.0, 0.0, "fake", far_ranks=(FarRank(1, "spark-b", "there"),))


def require(*samples: RankSampled, run: Run = RUN) -> None:
    async def look() -> None:
        state = RunState()
        for sample in samples:
            state.apply(sample)
        over, nobody = cast("asyncio.Task[None]", asyncio.Future()), cast("Design", None)
        await boot._Watch(nobody, Server.from_run(run), state, over, print).require_far_ranks()

    asyncio.run(look())


def sample(state: RankState, later: float, why: str = "") -> RankSampled:
    return RankSampled(time.time() + later, 1, "spark-b", state, 0.0, why, 5, None, None, ())


def test_rank_running_after_rounds_is_enough():
    require(sample(RankState.RUNNING, 60.0))
    require(run=Run("r", made(8100), 1, "", 0.0, 0.0, "fake"))


@pytest.mark.parametrize(
    ("samples", "word"),
    [
        ([], "unknown"),
        ([sample(RankState.RUNNING, -60.0)], "unknown"),
        ([sample(RankState.LOST, 60.0, "nothing heard for 5 s")], "nothing heard"),
        ([sample(RankState.ENDED, 60.0, "it exited")], "it exited"),
    ],
)
def test_unseen_rank_fails_the_boot(samples, word, monkeypatch):
    """It may have died after the last request, of which rank 0 knows nothing."""
    monkeypatch.setattr(boot, "_RANK_SECONDS", 0.1)
    with pytest.raises(boot._BootFailed, match=word) as failure:
        require(*samples)
    assert "rank 1 on spark-b" in str(failure.value)
