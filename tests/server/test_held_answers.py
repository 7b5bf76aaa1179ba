"""A server over several hosts is ready once its first greedy answer was held against an earlier one."""

import pytest

from dflash_tui.events import AnswerHeld, Health
from dflash_tui.monitoring import recorder
from dflash_tui.run_state.alarms import find_alarms
from dflash_tui.runs import lifecycle
from dflash_tui.runs.run import FarRank
from tests.support.fake_runs import free_port, made, recorded, watching
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(recorder, "SAMPLE_INTERVAL", 0.1)


async def serve(*words: str) -> tuple[list[AnswerHeld], list[str]]:
    """Return what a server of two hosts recorded of its first answer, and what it raised when it was ready."""
    far, models = (FarRank(1, "spark-b", "far-run"),), {"target": "commit 1"}
    run = lifecycle.launch_server(made(free_port(18_280), *words), engine="fake", far_ranks=far, models=models)
    try:
        async with watching(run) as state:
            await until(lambda: state.health is Health.WARM)
            return recorded(run, AnswerHeld), [alarm.kind for alarm in find_alarms(state, 0.0)]
    finally:
        await lifecycle.stop_server(run, grace=0.1)


async def test_other_weights_on_host_are_reported(folders):
    """The server stays: who reads both answers knows more than we do."""
    [first], nothing = await serve()
    [same], still_nothing = await serve()
    [other], told = await serve("greets=Ваш")
    assert [held.is_like_before for held in (first, same, other)] == [None, True, False]
    assert (nothing, still_nothing, told) == ([], [], ["answer"])
    assert (other.before[:5], other.text[:3]) == ("Hello", "Ваш")
