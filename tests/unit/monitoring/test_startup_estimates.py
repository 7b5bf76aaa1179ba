"""What earlier starts say about the present one: medians with n, and an estimate that never goes below zero."""

import pytest
from msgspec.structs import replace

from dflash_tui.events import Phase, Preparing, Step
from dflash_tui.monitoring.startup_history import (
    RecordedStart,
    estimate_time_to_launch,
    estimate_time_to_ready,
    expect_startup,
    summarize_steps,
)
from tests.support.recorded_startups import COMPILED, start, state
from tests.support.values import present

THREE = [start(COMPILED, factor) for factor in (1.0, 0.8, 1.1)]


def cached(seconds: float) -> RecordedStart:
    return replace(start(COMPILED), cache="cached", up=seconds, phases={Phase.COMPILE: seconds})


def test_phase_estimate_is_median_of_its_starts():
    """The expected seconds say from how many starts they are; a phase that only one had is from one."""
    only = replace(THREE[0], phases={**THREE[0].phases, Phase.RESOLVE: 9.0})
    bare = replace(THREE[1], phases={Phase.RESOLVE: 1.0})
    expected = present(expect_startup([only, bare]))
    assert expected.phases[Phase.RESOLVE] == (5.0, 2)
    assert expected.phases[Phase.GRAPHS].n == 1
    assert expected.phases[Phase.GRAPHS].seconds == pytest.approx(14.645)


def test_a_cold_start_is_expected_once():
    """After a cold start comes a cached one, so while the log does not tell that is expected, if there was one."""
    history = [cached(20.0), THREE[0]]
    likely = present(expect_startup(history))
    assert (likely.cache, likely.phases[Phase.COMPILE].seconds) == ("cached", 20.0)
    told = present(expect_startup(history, "cold"))
    assert told.phases[Phase.COMPILE].seconds == pytest.approx(62.252)
    alone = present(expect_startup([THREE[0]]))
    assert alone.cache == "cold"


@pytest.mark.parametrize("second", [0.5, 50.0, 143.7, 162.5])
def test_estimate_of_repeated_start_is_right(second):
    """At any moment the estimate of a start that goes as the one before is what is really left, to a second."""
    expected = present(expect_startup([start(COMPILED)]))
    found = present(estimate_time_to_ready(state(COMPILED, second).startup, expected, second, second))
    left = 162.44 + 3.0 - second
    assert found.seconds == pytest.approx(left, abs=1.5)  # unattributed moments are not counted ahead
    assert found.n == 1


def test_estimate_is_never_negative_and_has_limit():
    """A phase that takes longer than ever leaves the rest; past the longest start there is no number any more."""
    expected = present(expect_startup(THREE))
    stuck = state(COMPILED, 158.0).startup
    for now in range(158, 400):
        found = present(estimate_time_to_ready(stuck, expected, float(now), float(now)))
        assert (found.seconds is None) == (now > found.longest)
        assert found.seconds is None or found.seconds >= 0
        assert found.longest == pytest.approx(165.44 * 1.1)


def prepared(step: Step, seconds: float) -> list[Preparing]:
    """Return a step's first and last event."""
    return [Preparing(100.0, step, "begins"), Preparing(100.0 + seconds, step, "ends", done=True)]


def test_step_estimate_ignores_launches_without_work():
    """What was there already took no time, and would make a real install look quick."""
    there = [Preparing(100.0, Step.INSTALL, "as installed", done=True), *prepared(Step.CHECK, 0.02)]
    earlier = [prepared(Step.INSTALL, seconds) for seconds in (900.0, 40.0, 44.0, 42.0, 46.0, 48.0)]
    assert summarize_steps([*earlier, there, prepared(Step.PATCHES, 20.0)]) == {
        Step.INSTALL: (44.0, 5),
        Step.PATCHES: (20.0, 1),
    }
    two = [*prepared(Step.MODELS, 30.0), Preparing(150.0, Step.MODELS, "the drafter, too", done=True)]
    assert summarize_steps([two]) == {Step.MODELS: (50.0, 1)}
    assert summarize_steps([]) == {}


@pytest.mark.parametrize(
    ("events", "left"),
    [
        (prepared(Step.INSTALL, 30.0)[:1], 34.0),  # 10 of 44 s are over
        ([*prepared(Step.INSTALL, 4.0), *prepared(Step.PATCHES, 9.0)[:1]], 10.0),
        (prepared(Step.INSTALL, 0.0)[1:], 0.0),  # it was there
        (prepared(Step.MODELS, 30.0)[:1], None),  # nobody knows how long that takes
    ],
)
def test_launch_is_estimated_by_running_steps(events, left):
    """Ten seconds after the first word."""
    usual = summarize_steps([prepared(Step.INSTALL, 44.0), prepared(Step.PATCHES, 20.0)])
    preparing, begun = {e.step: e for e in events}, {e.step: e.at for e in reversed(events)}
    assert estimate_time_to_launch(preparing, begun, usual, 110.0) == left
