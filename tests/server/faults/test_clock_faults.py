"""A clock that jumps by a day and back: recording goes on, figures are never of the wrong time."""

import asyncio
import math
import time
from collections.abc import Callable

import pytest

from dflash_tui.benchmark import client
from dflash_tui.events import ClockSet, Health, LogLine, RequestDone, Sampled
from dflash_tui.experiments.design import Boot, BootBegan, BootEnded, Happened
from dflash_tui.experiments.progress import fold_progress
from dflash_tui.monitoring import run_reader, startup_history
from dflash_tui.monitoring.recorder_lease import RecorderLease
from dflash_tui.presentation.startup_text import build_startup_rows
from dflash_tui.readings import Counters
from dflash_tui.run_state.eta import ExpectedStart, MedianSeconds, estimate_time_to_ready
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import server_process
from dflash_tui.vllm_output.log_reader import LogReader
from tests.support.experiment_factories import a_design
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
            await until(lambda: abs(state.readings[-1].at - time.time()) < 15)
            assert server_process.is_alive(run)
        assert state.health is Health.WARM
        rates = state.window(10.0, time.time())
        assert rates is None or rates.tok_s >= 0


@pytest.fixture
def clock(monkeypatch) -> Callable[[float], None]:
    """Return a function that sets the machine's clock, as far as this process sees it, so many seconds ahead."""
    offset, real = [0.0], time.time
    monkeypatch.setattr(time, "time", lambda: real() + offset[0])
    return lambda seconds: offset.__setitem__(0, seconds)


@pytest.mark.parametrize("jump", [DAY, -3600.0, -3 * DAY])
async def test_how_long_a_start_took_is_unknown_when_the_clock_was_set_meanwhile(launch, clock, jump, monkeypatch):
    """By whoever watches, whoever comes later, and the history of starts; none is a day long or negative."""
    send, is_set = client.send_first_request, asyncio.Event()

    async def send_after(url: str, model: str, *, key: str = "") -> RequestDone:
        await is_set.wait()
        return await send(url, model, key=key)

    monkeypatch.setattr(client, "send_first_request", send_after)
    run = launch()
    async with watching(run) as state:
        await until(lambda: state.up_at is not None)
        clock(jump)
        is_set.set()
        await until(lambda: state.health is Health.WARM)
    [event] = recorded(run, ClockSet)
    assert (event.by, event.starting) == (pytest.approx(jump, abs=1), True)
    expected = ExpectedStart("", {}, None, MedianSeconds(5.0, 3), 9.0)
    for seen in (state, run_reader.replay_run(run)):
        assert (seen.time_to_up, seen.time_to_ready, seen.spans(time.time())) == (None, None, [])
        assert estimate_time_to_ready(seen.startup, expected, 1.0, time.time()) is None
        rows = build_startup_rows(seen, time.time(), None)
        assert rows
        assert all(row.seconds is None or 0 <= row.seconds < 60 for row in rows)
    assert startup_history.list_starts() == []
    assert server_process.measure_age(run, time.time()) == pytest.approx(0, abs=120)


@pytest.mark.parametrize("jump", [DAY, -3600.0])
async def test_a_clock_that_is_set_later_changes_no_start(launch, clock, jump):
    """The start is known by then; the age of the server and the times of its readings go on from there."""
    run = launch()
    async with watching(run) as state:
        await until(lambda: state.health is Health.WARM)
        known = state.time_to_ready
        clock(jump)
        await until(lambda: len(recorded(run, ClockSet)) == 1)
        await client.send_first_request(run.url, "x")
        await until(lambda: abs(state.readings[-1].at - time.time()) < 15)
    async with watching(run) as state:  # another recorder says it no second time
        before = len(recorded(run, Sampled))
        await client.send_first_request(run.url, "x")
        await until(lambda: len(recorded(run, Sampled)) > before)
    assert [event.starting for event in recorded(run, ClockSet)] == [False]
    assert known is not None
    assert 0 <= known < 120
    assert run_reader.replay_run(run).time_to_ready == known
    assert server_process.measure_age(run, time.time()) == pytest.approx(0, abs=120)


@pytest.mark.parametrize("jump", [DAY, -3600.0])
def test_a_living_recorder_keeps_its_place_when_the_clock_is_set(tmp_path, clock, jump):
    """Two that record at once would ask the server and write each reading twice."""
    first, second = RecorderLease(tmp_path / "recorder"), RecorderLease(tmp_path / "recorder")
    assert first.acquire()
    assert not second.acquire()
    clock(jump)
    assert not second.acquire()
    assert first.renew()


def test_runs_and_experiments_have_their_own_names_whatever_the_clock_says(launch, monkeypatch):
    """A clock that stands still, or shows an hour for the second time, names no two alike."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    runs = [launch("deaf") for _ in range(3)]
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    runs += [launch("deaf") for _ in range(2)]
    assert len({run.id for run in runs}) == 5
    assert all(server_process.is_alive(run) for run in runs)


@pytest.mark.parametrize(("jump", "left"), [(0.0, 25.0), (-3600.0, 30.0), (DAY, 20.0)])
def test_the_rest_of_an_experiment_is_estimated_within_reason(jump, left):
    """A boot takes ten seconds, the third has been at work for five: no hour more, and nothing negative."""
    boots = [Boot(number, number % 2, "", 1, began=10.0 * number, took=10.0) for number in range(2)]
    design = a_design(order=(0, 1, 1, 0, 1))
    events: list[Happened] = [*(BootEnded(boot.began + 10, boot) for boot in boots), BootBegan(20.0, 2, 1, "x")]
    assert fold_progress(design, events, driven=True, now=25.0 + jump).left == pytest.approx(left)


def test_a_log_stays_in_its_year_when_the_clock_is_set_back_by_days():
    """Stamps have no year; the one of the line before is the nearest."""
    began = 1_795_000_000.0
    reader = LogReader(began, 0.0)
    for days, expected in ((0, 0), (-3, 0), (1, 1), (150, 150), (300, 300), (400, 400)):
        stamp = time.strftime("%m-%d %H:%M:%S", time.gmtime(began + days * DAY))
        (line,) = [e for e in reader.feed(f"INFO {stamp} [x.py:1] words\n".encode()) if isinstance(e, LogLine)]
        assert line.at == pytest.approx(began + expected * DAY, abs=1)
