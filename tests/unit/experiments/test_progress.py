"""How far an experiment is, by what is in its folder."""

import pytest
from msgspec.structs import replace

from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.events import RequestDone
from dflash_tui.experiments import store, variation
from dflash_tui.experiments.design import (
    Arm,
    Boot,
    BootBegan,
    BootEnded,
    Design,
    ExperimentExtended,
    ExperimentFinished,
    ExperimentHalted,
    Happened,
    RequestMeasured,
)
from dflash_tui.experiments.progress import estimate_left, fold_progress, join_requests
from dflash_tui.planning.request import LaunchRequest
from tests.support.experiment_factories import BASE, a_design, boots, told
from tests.support.plans import plan_of


def designed(words: str = "mode=eager,compile", boots: int = 2) -> Design:
    """Return an A/B of the demo."""
    made = plan_of("demo-cpu")
    varied = variation.parse_variation(words)
    arms = tuple(Arm(name, LaunchRequest(recipe="toy"), made) for name in varied.arms)
    order = variation.order_boots(len(arms), boots)
    return Design("20261122-010203-demo-cpu", 100.0, "1", "demo-cpu", varied.key, arms, order, "f", "d")


def began(number: int, arm: int, attempt: int = 1, at: float = 100.0) -> BootBegan:
    return BootBegan(at, number, arm, f"run-{number}-{attempt}", attempt)


def ended(number: int, arm: int, attempt: int = 1, took: float = 30.0, error: str = "") -> BootEnded:
    return BootEnded(130.0, Boot(number, arm, f"run-{number}-{attempt}", attempt, took=took, error=error))


def request(number: int, stage: str) -> RequestMeasured:
    return RequestMeasured(110.0, number, stage, RequestDone(110.0, "Math", tokens=64))


def test_nothing_has_happened_yet():
    """The first boot is due, and nobody knows how long it will take."""
    found = fold_progress(designed(), [])
    assert (found.next, found.left, found.status, found.current) == ((0, 1), None, "interrupted", None)


def test_running_boot_counts_measured_requests_only():
    """The cold request and the warm-ups are stages, not measurements; those of another boot are nobody's."""
    happened: list[Happened] = [began(0, 0), request(0, "cold"), request(0, "warm-up"), request(0, "round")]
    found = fold_progress(designed(), [*happened, request(7, "round")], driven=True, due=5)
    assert found.current
    assert (found.current.stage, found.current.requests, found.due, found.status) == ("round", 1, 5, "running")


def test_requests_are_stored_once_with_their_boot():
    """Those of an interrupted attempt are not; an end that has its own, as earlier releases wrote it, keeps them."""
    tried: list[Happened] = [began(0, 0), request(0, "cold"), request(0, "round")]
    *_, end = join_requests([*tried, *tried, request(0, "warm-up"), request(0, "round"), ended(0, 0)])
    assert isinstance(end, BootEnded)
    assert (end.boot.cold_request is not None, len(end.boot.requests)) == (True, 2)
    own = replace(ended(0, 0).boot, requests=(request(0, "round").request,))
    assert [*join_requests([*tried, *tried, BootEnded(130.0, own)])][-1] == BootEnded(130.0, own)
    assert [*join_requests([*tried, ended(0, 0, error="died")])][-1] == ended(0, 0, error="died")


def test_failed_boot_is_retried_once_then_reported():
    """One failed attempt is followed by another; the second is the boot's last word, and the next one is due."""
    once: list[Happened] = [began(0, 0), ended(0, 0, error="died")]
    assert fold_progress(designed(), once).next == (0, 2)
    twice = fold_progress(designed(), [*once, began(0, 0, 2), ended(0, 0, 2, error="died again")])
    assert ([boot.error for boot in twice.boots], [boot.error for boot in twice.tries]) == (["died again"], ["died"])
    assert twice.next == (1, 1)


def test_an_interrupted_boot_is_due_again():
    """What was measured of it before does not count."""
    found = fold_progress(designed(), [began(0, 0), ended(0, 0), began(1, 1), request(1, "round"), began(1, 1)])
    assert found.next == (1, 1)
    assert found.current
    assert found.current.requests == 0


def test_new_boot_ends_a_halt():
    """The word of the last driver holds until another one works."""
    assert fold_progress(designed(), [began(0, 0), ExperimentHalted(1.0, "stopped")]).status == "halted"
    assert not fold_progress(designed(), [ExperimentHalted(1.0, "stopped"), began(0, 0)]).halted


def test_time_left_follows_boots_of_same_arm():
    """An arm that nobody has seen takes as long as the others until it has; the running boot has spent some of it."""
    design = designed()  # A B B A
    one = fold_progress(design, [began(0, 0), ended(0, 0, took=10)], now=130)
    assert one.left == 30
    two = fold_progress(design, [began(0, 0), ended(0, 0, took=10), began(1, 1), ended(1, 1, took=50)], now=130)
    assert two.left == 60
    running = fold_progress(design, [began(0, 0), ended(0, 0, took=10), began(1, 1, at=126)], now=130, driven=True)
    assert running.left == 26
    late = fold_progress(design, [began(0, 0), ended(0, 0, took=10), began(1, 1, at=119)], now=130, driven=True)
    assert late.left is None
    assert fold_progress(design, [ExperimentFinished(1.0)]).left == 0


def test_earlier_boots_estimate_time_of_unfinished_arm():
    """What this experiment has measured comes first; an arm of which nothing is known makes the rest unknown."""
    design = designed()  # A B B A
    first = fold_progress(design, [began(0, 0, at=126)], now=130, driven=True)
    assert first.left is None
    assert estimate_left(first, 130, (10.0, 40.0)) == 6 + 40 + 40 + 10
    assert estimate_left(first, 130, (10.0, None)) is None
    assert estimate_left(first, 137, (10.0, 40.0)) is None
    assert estimate_left(first, 137, (10.0, 40.0), whole=False) == 40 + 40 + 10
    assert estimate_left(fold_progress(design, [began(0, 0), ended(0, 0, took=12)]), 130, (10.0, 40.0)) == 40 + 40 + 12


def test_arm_that_never_booted_is_named_finally():
    """The others have their verdict."""
    failed = [ended(number, 1, 2, error="no") for number in (1, 2)]
    happened: list[Happened] = [ended(0, 0), *failed, ended(3, 0), ExperimentFinished(1.0)]
    assert fold_progress(designed(), happened).without == ("compile",)
    assert fold_progress(designed(), happened[:-1]).without == ()


def test_half_written_event_hides_no_later_event():
    """A driver that was killed while it wrote leaves half a line; the next one begins a new line after it."""
    design = designed()
    folder = store.create_experiment(design)
    store.append_event(folder, began(0, 0))
    with (folder / store.EVENTS).open("ab") as file:
        file.write(b'{"event":"boot ended","at":1,"bo')
    assert len(store.read_events(folder)) == 1
    store.append_event(folder, ended(0, 0))
    assert [type(event) for event in store.read_events(folder)] == [BootBegan, BootEnded]
    assert store.read_progress(folder).next == (1, 1)


def test_existing_experiment_is_never_overwritten():
    """Two that were planned in the same second have the same name; the one that begins first keeps it."""
    first = designed()
    folder = store.create_experiment(first)
    store.append_event(folder, began(0, 0))
    with pytest.raises(DflashError, match=f"experiment {first.id} already exists"):
        store.create_experiment(replace(first, seed=9))
    assert store.list_experiments() == [first]
    assert len(store.read_events(folder)) == 1


def test_experiment_is_found_by_id_or_recipe():
    """Without a name it is the newest; what cannot be read is none."""
    older, newer = designed(), replace(designed(), id="20261123-000000-demo-cpu", made_at=200.0)
    with pytest.raises(UsageError, match="no experiment yet"):
        store.find_experiment()
    store.create_experiment(newer)
    store.create_experiment(older)
    (store.experiment_folder("broken")).mkdir()
    (store.experiment_folder("broken") / "experiment.json").write_text("{")
    assert [design.id for design in store.list_experiments()] == [older.id, newer.id]
    assert store.find_experiment() == store.find_experiment("demo-cpu") == store.find_experiment("20261123") == newer
    assert store.find_experiment(older.id) == older
    with pytest.raises(UsageError, match="matches 2"):
        store.find_experiment("2026112")
    for none in ("x", ""):
        with pytest.raises(UsageError, match=f"called '{none}'"):
            store.find_experiment(none)
    store.remove_experiment(older)
    assert store.list_experiments() == [newer]


def test_extension_adds_boots_to_finished_experiment():
    """It is finished only when they are; an arm that the design lacks is not added."""
    design = a_design()
    events = [*told(design, boots(design, (10.0, 18.5))), ExperimentFinished(BASE + 9000)]
    assert fold_progress(design, events).finished
    more = fold_progress(design, [*events, ExperimentExtended(BASE + 9001, (0, 1))])
    assert (more.finished, more.next, more.design.order, more.design.looks) == (False, (4, 1), (0, 1, 1, 0, 0, 1), 2)
