"""What a measure saved against this machine's own history: said only where every start shows it."""

import pytest

from dflash_tui.events import Launched, Phase, PhaseStarted
from dflash_tui.monitoring.startup_history import RecordedStart, find_saved_seconds
from dflash_tui.presentation import startup_text
from dflash_tui.run_state.state import RunState

ENGINE, RESOLVE = Phase.ENGINE, Phase.RESOLVE


def start(at: float, *measures: str, cache: str = "", **phases: float) -> RecordedStart:
    return RecordedStart(
        run=f"r{at}", at=at, recipe="toy", mode="eager", engine="vllm", setup="", kind=(), cache=cache,
        phases={Phase(name): seconds for name, seconds in phases.items()}, up=60.0, measures=measures,
    )  # fmt: skip


def test_a_measure_that_every_start_shows():
    """The median of the starts without it, less that of those with it, this one among them."""
    earlier = [start(1, engine=18), start(2, engine=17), start(3, "fork", engine=2), start(4, engine=16)]
    saved = find_saved_seconds(["fork"], {ENGINE: 1.0}, "", earlier)
    assert saved[ENGINE]._asdict() == {
        "measure": "fork", "phase": ENGINE, "seconds": 15.5, "taken": 2, "before": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("measures", "phases", "earlier"),
    [
        ((), {ENGINE: 1.0}, [start(1, engine=18)]),  # it has none
        (("fork",), {ENGINE: 1.0}, [start(1, "fork", engine=18)]),  # nobody knows it without
        (("fork",), {ENGINE: 5.0}, [start(1, engine=18), start(2, engine=4)]),  # a start without it was as quick
        (("fork",), {ENGINE: 1.0}, [start(1, engine=18), start(2, "fork", engine=20)]),  # one with it was not
        (("fork",), {ENGINE: 1.0}, [start(1, engine=1.5)]),  # less than a second is nothing
    ],
)
def test_what_history_does_not_show_is_not_said(measures, phases, earlier):
    assert find_saved_seconds(measures, phases, "", earlier) == {}


def test_starts_with_another_cache_are_no_measure_of_it():
    earlier = [start(1, cache="cold", profile=60), start(2, cache="cached", profile=6)]
    saved = find_saved_seconds(["startup-plan"], {Phase.PROFILE: 2.0}, "cached", earlier)
    assert saved[Phase.PROFILE].seconds == 4.0


def test_inspections_are_held_against_the_first_start_only():
    """VLLM keeps them itself: later starts without the measure are as quick."""
    earlier = [start(1, resolve=40), start(2, resolve=1)]
    assert find_saved_seconds(["modelinfos"], {RESOLVE: 1.0}, "", earlier)[RESOLVE].seconds == 39.0
    assert find_saved_seconds(["modelinfos"], {RESOLVE: 1.0}, "", earlier[1:]) == {}
    taken = [start(0, "modelinfos", resolve=1), *earlier]
    assert find_saved_seconds(["modelinfos"], {RESOLVE: 1.0}, "", taken) == {}


def test_the_row_of_the_phase_says_it(snapshot):
    state = RunState()
    state.apply(Launched(0.0, "r", "toy", 1, 8000, "eager"))
    for at, phase in ((0.0, Phase.IMPORT), (20.0, RESOLVE), (21.0, ENGINE), (23.0, Phase.WEIGHTS)):
        state.apply(PhaseStarted(at, phase))
    saved = startup_text.find_saved(state, 25.0, ("fork",), [start(1, engine=18, weights=30)])
    assert {*saved} == {ENGINE}
    notes = {row.name: row.note for row in startup_text.build_startup_rows(state, 25.0, None, saved)}
    assert notes["engine"] == snapshot
    assert "saved" not in notes["weights"]
