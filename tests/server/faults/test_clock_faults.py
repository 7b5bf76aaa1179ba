"""A clock that jumps by a day and back: recording goes on, figures are never of the wrong time."""

import math
import time

import pytest

from dflash_tui.benchmark import client
from dflash_tui.events import Counters, Health, Sampled
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import server_process
from tests.support.fake_runs import recorded, watching
from tests.support.waiting import until

DAY = 86_400.0


def folded(*times: float) -> RunState:
    state = RunState()
    for number, at in enumerate(times):
        state.apply(Sampled(at, Counters(generated=10.0 * number, running=1)))
    return state


@pytest.mark.parametrize("jump", [DAY, -DAY])
def test_a_jump_leaves_a_hole_and_no_wrong_rate(jump):
    """Ten tokens a second before and after; the second of the jump is unknown, not ten tokens in a day."""
    begin = 10 * DAY
    state = folded(*(begin + second for second in range(60)), *(begin + jump + second for second in range(60, 120)))
    rates = state.window(30.0, begin + jump + 119)
    assert rates is not None
    assert rates.tok_s == pytest.approx(10.0)
    known = [value for value in state.series("tok_s", begin + jump + 119, 2 * DAY, 500) if not math.isnan(value)]
    assert all(value == pytest.approx(10.0, abs=0.1) for value in known if value)


def test_a_clock_that_was_a_day_ahead_and_is_put_right():
    """What was stamped with tomorrow's times is dropped, and figures are there at once, not after a day."""
    ahead = [11 * DAY + second for second in range(30)]
    state = folded(*(10 * DAY + second for second in range(30)), *ahead, *(10 * DAY + 60 + s for s in range(30)))
    rates = state.window(20.0, 10 * DAY + 89)
    assert rates is not None
    assert rates.tok_s == pytest.approx(10.0)


async def test_recording_goes_on(launch, monkeypatch):
    """A real run is observed while the time of day jumps there and back: alive, warm, read once a second."""
    offset, real = [0.0], time.time
    monkeypatch.setattr(time, "time", lambda: real() + offset[0])
    run = launch("busy")
    async with watching(run) as state:
        await until(lambda: state.health is Health.WARM and len(state.readings) > 1)
        for jump in (DAY, 0.0, -DAY, 0.0):
            offset[0] = jump
            before = len(recorded(run, Sampled))
            await client.send_first_request(run.url, "x")
            await until(lambda before=before: len(recorded(run, Sampled)) > before + 1)  # type: ignore[misc]
            assert server_process.is_alive(run)
            assert abs(state.readings[-1].at - time.time()) < 15
        assert state.health is Health.WARM
        rates = state.window(10.0, time.time())
        assert rates is None or rates.tok_s >= 0
