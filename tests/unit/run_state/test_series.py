"""Windows over readings and histograms: what is kept of a day, and what a difference says."""

from itertools import pairwise

import pytest

from dflash_tui.events import Counters, Histogram, LatenciesSampled
from dflash_tui.run_state.series import (
    DENSE_SECONDS,
    MAX_AGE,
    THINNED_INTERVAL,
    THINNING_PERIOD,
    CounterSeries,
    ThinnedSeries,
)
from dflash_tui.run_state.state import RunState
from dflash_tui.vllm_output.metrics import estimate_quantile, subtract_histograms
from tests.support import recordings
from tests.support.scrapes import parse_metrics
from tests.support.values import present

BOUNDS = (0.1, 0.2, 0.4)


def counters(steps: float, **more) -> Counters:
    return Counters(4 * steps, steps=steps, proposed=7 * steps, accepted=3 * steps, **more)


def test_day_is_thinned_but_windows_stay_exact():
    """All of the last hour, one in ten minutes of the day before; a window depends on nothing dropped."""
    track = CounterSeries()
    for second in range(100_000):
        track.add(float(second), counters(2.0 * second))
    assert len(track) == pytest.approx(
        DENSE_SECONDS + (MAX_AGE - DENSE_SECONDS) / THINNED_INTERVAL, abs=THINNING_PERIOD + 3
    )
    assert track[0].at >= 100_000 - MAX_AGE - 700
    assert all(b.at - a.at <= THINNED_INTERVAL for a, b in pairwise(track))
    old, new = present(track.between(40_000.5, 50_000.5)), present(track.window(600, 99_999.0))
    assert [old.tok_s, old.acceptance_length] == pytest.approx([8.0, 4.0])
    assert [new.tok_s, new.seconds] == pytest.approx([8.0, 600.0])


def test_gap_remains_after_thinning_samples():
    """What nobody recorded a day ago is still a hole after the samples around it were thinned."""
    track = CounterSeries()
    for second in [*range(1000), *range(1100, 12_000)]:
        track.add(float(second), counters(float(second)))
    assert track.between(1010.0, 1090.0) is None
    across = present(track.between(900.0, 1200.0))
    assert across.seconds == pytest.approx(100.0)


def test_mean_spans_reading_gap_but_one_server():
    """What was counted in a hole counts, though nobody knows when; a window of the present begins after it."""
    track = CounterSeries()
    for at, steps in ((0.0, 0.0), (1.0, 10.0), (50.0, 10.0), (51.0, 20.0), (70.0, 30.0)):
        track.add(at, counters(steps))
    means = [track.mean(seconds, 70.0) for seconds in (1000, 40)]
    assert [(mean.steps, mean.seconds) for mean in means if mean] == [(30.0, 70.0), (20.0, 20.0)]
    assert track.window(1000, 70.0) is None
    assert (stopped := track.mean(110, 160.0)) is not None
    assert (stopped.steps, stopped.seconds) == (20.0, 20.0)
    assert (track.mean(100, 160.0), CounterSeries().mean(80, 160.0)) == (None, None)
    track.add(161.0, counters(1.0))
    track.add(162.0, counters(3.0))
    assert (other := track.mean(1000, 162.0)) is not None
    assert (other.steps, other.seconds) == (2.0, 1.0)


def test_another_server_begins_a_new_track():
    """Counters that fell belong to another server: no rate spans the change."""
    track = CounterSeries()
    for at, steps in ((0.0, 50.0), (1.0, 60.0), (2.0, 1.0), (3.0, 11.0)):
        track.add(at, counters(steps))
    found = present(track.window(10, 3.0))
    assert (found.steps, found.seconds) == (10.0, 1.0)


def test_new_engine_begins_new_track():
    """Also every second time, as with two replicas behind one address: no window spans the change."""
    series = CounterSeries()
    for second in range(10):
        both = second % 2
        series.add(float(second), counters(1e6 * both + second, series=7 + both))
    assert not any(reading.joined for reading in series)
    assert series.window(10.0, 9.0) is None
    for second in range(10, 13):
        series.add(float(second), counters(second, series=7))
    rates = present(series.window(10.0, 12.0))
    assert rates.steps_s == 1.0


def test_window_is_exact_only_at_readings():
    """A burst begins somewhere after the last reading of a rest: what of it is before an edge, nobody knows."""
    track = CounterSeries()
    for at, proposed, accepted in ((8.57, 0, 0), (9.56, 0, 0), (10.58, 112, 41), (11.57, 469, 182), (14.0, 469, 182)):
        track.add(at, Counters(0.0, steps=proposed / 7, proposed=proposed, accepted=accepted))
    whole, cut = present(track.between(9.56, 14.0)), present(track.between(10.0, 14.0))
    assert whole.acceptance == 182 / 469
    assert cut.acceptance == pytest.approx(182 / 469, rel=0.01)
    assert cut.acceptance != pytest.approx(182 / 469, rel=0.001)


def test_chart_columns_are_stable_between_bounds():
    """While a column has not passed, those before it do not move, whatever the time within it."""
    track = CounterSeries()
    for second in range(200):
        track.add(float(second), counters(float(second**1.3)))
    one, other = track.columns(191.0, 120, 10), track.columns(191.9, 120, 10)
    assert one[:-1] == other[:-1]
    assert track.columns(193.0, 120, 10)[:-2] == one[1:-1]


def test_past_values_are_held_then_forgotten():
    """A sample holds until the next one, but not for ever."""
    kept: ThinnedSeries[LatenciesSampled] = ThinnedSeries()
    kept.append(LatenciesSampled(10.0))
    assert kept.latest(9.9, 15) is None
    assert kept.latest(24.0, 15) is kept[0]
    assert kept.latest(26.0, 15) is None


def test_a_quantile_lies_in_its_bucket():
    """Inside a bucket values are spread evenly; above the last bound only the bound is known."""
    histogram = Histogram(BOUNDS, (0.0, 4.0, 4.0, 2.0), 5.0)
    middle = present(estimate_quantile(histogram, 0.5))
    assert list(middle[:2]) == pytest.approx([0.25, 0.2])
    assert estimate_quantile(histogram, 0.95) == (0.4, 0.4, None)
    assert estimate_quantile(histogram, 0.0) == (0.1, 0.1, 0.2)
    assert estimate_quantile(Histogram(BOUNDS, (0.0,) * 4), 0.5) is None


def test_a_window_holds_only_its_own_requests():
    """Slow requests of an hour ago are not in the quantiles of the last minutes."""
    state = RunState()
    for at, counts in ((0.0, (0, 0, 0, 0)), (10.0, (0, 0, 0, 9)), (1000.0, (0, 5, 0, 9)), (1010.0, (0, 8, 0, 9))):
        state.apply(LatenciesSampled(at, Histogram(BOUNDS, tuple(float(n) for n in counts))))
    recent, whole = present(state.ttft(600, 1011.0)), present(state.ttft(3600, 1011.0))
    assert recent.counts == (0, 8, 0, 0)
    assert whole.counts == (0, 8, 0, 9)
    assert state.ttft(600, 3000.0) is None
    assert state.tpot(600, 1011.0) is None


def test_histograms_of_two_servers_have_no_difference():
    """Other bounds or fallen counts are of another server."""
    one, less = Histogram(BOUNDS, (1.0, 1.0, 0.0, 0.0)), Histogram(BOUNDS, (0.0, 5.0, 0.0, 0.0))
    assert subtract_histograms(one, less) is None
    assert subtract_histograms(one, Histogram((1.0,), (3.0, 3.0))) is None
    assert subtract_histograms(None, one) is None


@pytest.mark.parametrize("name", ["cpu-vllm-0.32.0/dflash", "h200-vllm-0.26.0/g26-dflash-compile"])
def test_histograms_match_response_body(name):
    """Bucket by bucket as recorded: their sum is the count that the server states itself."""
    text = recordings.metrics(name, "end")
    found = present(parse_metrics(text))
    assert found.ttft is not None
    assert found.tpot is not None
    for histogram, family in ((found.ttft, "time_to_first_token"), (found.tpot, "request_time_per_output_token")):
        [count] = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if f"{family}_seconds_count{{" in line]
        assert sum(histogram.counts) == count > 0
        assert len(histogram.counts) == len(histogram.bounds) + 1
    assert found.counters.finished == sum(found.tpot.counts)
    assert found.counters.finished_tokens > 0
    assert found.counters.decode_seconds > 0
