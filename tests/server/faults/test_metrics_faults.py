"""Counters that cannot be read: the server is well, its figures are unknown, and why is said."""

import resource
import time
from functools import partial

from dflash_tui.common import bounded_http
from dflash_tui.events import Health, Sampled
from dflash_tui.monitoring import recorder
from dflash_tui.run_state.alarms import find_alarms
from dflash_tui.run_state.state import RunState
from tests.support.fake_runs import recorded, watching
from tests.support.waiting import until


def alarmed(state: RunState, reason: str) -> bool:
    """Whether the one alarm is that the counters cannot be read, and why; but for what that costs."""
    found = [(alarm.kind, alarm.evidence) for alarm in find_alarms(state, time.time())]
    return found == [("metrics", state.health_detail)] and reason in state.health_detail


async def test_faulty_metrics_answers_raise_alarms(launch, tmp_path, monkeypatch):
    """Each fault in turn on one server: an alarm with the reason, no reading, no harm; then all is well again."""
    monkeypatch.setattr(recorder, "SAMPLE_INTERVAL", 0.1)
    word = tmp_path / "word"
    word.write_text("")
    run = launch(f"metrics={word}")
    async with watching(run) as state:
        await until(lambda: state.health is Health.WARM and bool(state.readings))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for fault, reason in (
            ("500", "/metrics: HTTP 500"),
            ("hangs", "/metrics: no complete answer"),
            ("endless", "/metrics: more than 4 MiB"),
            ("torn", "/metrics: peer closed"),
            ("nan", "/metrics has no counter"),
            ("page", "/metrics has no counter"),
            ("labels", "/metrics has no counter"),
        ):
            monkeypatch.setattr(bounded_http, "WHOLE", 1.0 if fault == "hangs" else 60.0)
            word.write_text(fault)
            await until(partial(alarmed, state, reason))
            assert state.health is Health.WARM
        seen = len(recorded(run, Sampled))
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < 64 << 10  # KiB
        assert len(recorded(run, Sampled)) == seen
        word.write_text("half")
        await until(lambda: state.health_detail == "" and len(recorded(run, Sampled)) > seen)
        await until(lambda: state.readings[-1].counters.steps is None)
        assert state.readings[-1].counters.generated == 40
        await until(lambda: find_alarms(state, time.time()) == [])


async def test_decreasing_counters_start_new_window(launch, tmp_path, monkeypatch):
    """As when a server was started again behind the same port: no rate spans the change."""
    monkeypatch.setattr(recorder, "SAMPLE_INTERVAL", 0.1)
    word = tmp_path / "word"
    word.write_text("")
    run = launch(f"metrics={word}")
    async with watching(run) as state:
        await until(lambda: bool(state.readings) and state.readings[-1].counters.generated == 8)
        word.write_text("fewer")
        await until(lambda: state.readings[-1].counters.generated == 1)
        first = next(reading for reading in state.readings if reading.counters.generated == 1)
        assert not first.joined
        rates = state.readings.window(60.0, time.time())
        assert rates is None or rates.tok_s >= 0
