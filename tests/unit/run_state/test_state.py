"""Events folded into the state of a run."""

import math

import pytest

from dflash_tui.events import (
    GREEDY_WARM_UP,
    LONG_WARM_UP,
    WARM_UP,
    Autopsy,
    Counters,
    Exited,
    Health,
    HealthChanged,
    Launched,
    MemorySampled,
    Phase,
    PhaseStarted,
    RequestDone,
    Sampled,
    Stopping,
    decode_recorded,
    encode,
)
from dflash_tui.run_state.state import RunState, sample_series
from tests.support import recordings
from tests.support.states import fold, read_lines
from tests.support.values import present


def launched(at: float = 0.0) -> Launched:
    return Launched(at, "20261121-000000-demo", "demo", 1, 8000, "eager")


def reading(at: float, steps: float) -> Sampled:
    """Seven proposed and three accepted tokens per step, so an acceptance length of four."""
    per_position = (2 * steps, steps, 0.0, 0.0, 0.0, 0.0, 0.0)
    counters = Counters(4 * steps, steps=steps, proposed=7 * steps, accepted=3 * steps, per_position=per_position)
    return Sampled(at, counters)


def test_recorded_phases_add_up_to_ready_time():
    """The phases of a recorded GPU start fill the time from launch to ready without a hole."""
    state = fold(launched(), *read_lines(recordings.lines("h200-vllm-0.26.0/g26-dflash-compile")))
    spans = state.spans(now=1000.0)
    assert all(span.finished for span in spans)
    assert sum(span.seconds for span in spans) == pytest.approx(162.44)
    by_phase = {span.phase: span.seconds for span in spans}
    assert by_phase[Phase.COMPILE] == pytest.approx(50.366 + 11.886)  # the target, then the drafter
    assert by_phase[Phase.PROFILE] == pytest.approx(4.444 + 19.494)
    assert spans[-1].phase is Phase.UNATTRIBUTED


def test_ready_requires_one_successful_generation():
    """A server that says that it serves is not ready before it has generated; a failed request does not count."""
    state = fold(launched(), PhaseStarted(0.0, Phase.IMPORT), PhaseStarted(60.0, Phase.UP))
    state.apply(HealthChanged(61.0, Health.HEALTHY))
    assert (state.status, state.time_to_ready) == ("healthy", None)
    state.apply(RequestDone(62.0, WARM_UP, total=0.2, error="HTTP 500"))
    assert state.time_to_ready is None
    state.apply(RequestDone(900.0, WARM_UP, tokens=8, total=2.5))  # asked late: the wait of nobody is no start-up
    state.apply(RequestDone(910.0, WARM_UP, tokens=8, total=0.1))
    assert state.time_to_ready == pytest.approx(62.5)
    assert state.startup.first_request is not None
    assert state.startup.first_request.total == 2.5


def test_ready_time_includes_earlier_warm_up_requests():
    """A client that waits for the server waits for all; later requests are no part of the start.

    Where they are sent again, since the first one failed, only the last ones count.
    """
    state = fold(launched(), PhaseStarted(0.0, Phase.IMPORT), PhaseStarted(60.0, Phase.UP))
    for at in (61.0, 91.0):
        state.apply(RequestDone(at, GREEDY_WARM_UP, total=1.0))
        state.apply(RequestDone(at + 1, LONG_WARM_UP, total=0.25))
        state.apply(RequestDone(at + 1, LONG_WARM_UP, total=0.5))
        assert state.time_to_ready is None
        state.apply(RequestDone(at + 3, WARM_UP, tokens=8, total=2.5, error="HTTP 500" if at < 90 else ""))
    state.apply(RequestDone(99.0, GREEDY_WARM_UP, total=9.0))
    state.apply(RequestDone(99.5, LONG_WARM_UP, total=9.0))
    assert state.time_to_ready == pytest.approx(64.25)
    assert state.startup.warm_up_seconds == pytest.approx(1.75)


def test_the_running_phase_grows_until_the_end():
    """The last phase lasts until now, and after a death until the death."""
    state = fold(launched(), PhaseStarted(0.0, Phase.IMPORT), PhaseStarted(9.0, Phase.RESOLVE))
    assert [(s.seconds, s.finished) for s in state.spans(12.0)] == [(9.0, True), (3.0, False)]
    state.apply(Exited(11.0, 1))
    assert [(s.seconds, s.finished) for s in state.spans(99.0)] == [(9.0, True), (2.0, True)]


def test_windows_are_differences_not_lifetime_ratios():
    """A window looks at its own seconds only: a fast start does not hide a slow now."""
    state = fold(*(reading(float(t), 10.0 * t) for t in range(11)), *(reading(11.0 + t, 101 + t) for t in range(10)))
    fast_and_slow, slow = present(state.readings.window(100, 20.0)), present(state.readings.window(5, 20.0))
    assert slow.tok_s == pytest.approx(4.0)
    assert fast_and_slow.tok_s > 20
    assert slow.acceptance == pytest.approx(3 / 7)
    assert slow.acceptance_length == pytest.approx(4.0)


def test_a_hole_is_not_a_zero():
    """While nobody recorded nothing is known: no rate spans the hole and the chart has a gap."""
    state = fold(reading(0.0, 0), reading(1.0, 10), reading(100.0, 20), reading(101.0, 30))
    assert [r.joined for r in state.readings] == [False, True, False, True]
    assert state.readings.between(10.0, 90.0) is None
    columns = state.readings.columns(101.0, 101.0, 101)
    assert columns[50] is None
    assert columns[-1]
    assert columns[-1].tok_s == pytest.approx(40.0)
    window = present(state.readings.window(1000, 101.0))
    assert window.seconds == pytest.approx(1.0)


def test_an_idle_server_is_zero_not_unknown():
    """The ten-second beat of an idle recorder fills the columns between with its zero."""
    state = fold(reading(0.0, 10), reading(10.0, 10), reading(20.0, 10))
    columns = state.readings.columns(20.0, 20.0, 20)
    assert [(rates.tok_s, rates.acceptance) for rates in columns if rates] == [(0.0, None)] * 20


def test_memory_is_held_between_samples():
    """Memory is recorded when it moves; between two samples the column shows what it was."""
    state = fold(*(MemorySampled(float(at), used, 100, "GPU") for at, used in ((0, 10), (8, 20), (10, 30))))
    values = sample_series(state.memory, 10.0, 10.0, 10, lambda sample: sample.used)
    assert not any(math.isnan(v) for v in values)
    assert values[4] == 10


def test_status_is_one_word_for_each_stage():
    """From preparing to failed, and stopped only when somebody asked."""
    state = RunState()
    words = [state.status]
    for event in (
        launched(),
        PhaseStarted(5.0, Phase.UP),
        HealthChanged(6.0, Health.HEALTHY),
        HealthChanged(7.0, Health.WARM),
        HealthChanged(8.0, Health.UNHEALTHY, "/health: HTTP 503"),
        Exited(9.0, 0),
    ):
        state.apply(event)
        words.append(state.status)
    assert words == ["preparing", "starting", "up", "healthy", "warm", "unhealthy", "failed"]
    assert fold(launched(), Stopping(1.0), Exited(2.0, 0)).status == "stopped"


def test_the_first_known_exit_code_stays():
    """Only who launched the server knows its code; what later observers see does not replace it."""
    assert fold(Exited(1.0, 137), Exited(2.0, None)).exit == Exited(1.0, 137)
    assert fold(Exited(1.0, None), Exited(2.0, 137)).exit == Exited(2.0, 137)


def test_window_ends_now_not_at_last_change():
    """After a burst the rate falls to nothing as it leaves the window, and is unknown when nobody records."""
    state = fold(*(reading(float(t), 10.0 * t) for t in range(6)))

    def speed(now: float) -> float | None:
        found = state.readings.window(5, now)
        return found.tok_s if found else None

    assert speed(5.0) == pytest.approx(40.0)
    assert speed(8.0) == pytest.approx(16.0)
    assert speed(11.0) == 0.0
    assert speed(30.0) is None


def test_a_window_begins_inside_an_idle_time():
    """A rest before the burst counts with its seconds inside the window only."""
    state = fold(reading(0.0, 0), reading(9.0, 0), reading(10.0, 10), reading(11.0, 20))
    found = present(state.readings.window(4, 11.0))
    assert found.seconds == pytest.approx(4.0)
    assert found.tok_s == pytest.approx(20.0)


def test_events_read_back_equal():
    """Every event comes back from its JSON line; a line that is none is skipped."""
    for event in (
        reading(1.5, 3),
        HealthChanged(2.0, Health.WARM, "ok"),
        Exited(3.0, None),
        Autopsy(4.0, ("Killed process 1 (x)",), 2),
    ):
        assert decode_recorded(encode(event)) == event
    foreign = (b"", b"{", b'{"event":"counters"}', b'{"event":"later","at":1}', b"\xff\xfe")
    for line in (*foreign, encode(launched()), encode(Exited(1e300, None)), encode(Exited(-1.0, None))):
        assert decode_recorded(line) is None
