"""Two answers that are written again as fast as they came."""

from dflash_tui.benchmark.sse import Answer
from dflash_tui.experiments.design import Boot, KeptAnswer
from dflash_tui.tui.screens.playback import PlayedPair, list_played_pairs
from tests.support.boot_factories import boot, modes, request

MARKS = ((250, 1), (500, 60), (1000, 100), (1250, 200))


def play(boots: list[Boot], marks: tuple[tuple[int, int], ...] = MARKS) -> list[PlayedPair]:
    kept = [KeptAnswer(each.run, "Code", 1, 0, Answer("ab" * 100), marks) for each in boots]
    return list_played_pairs(boots, 0, 1, kept)


def boots_at(*speeds: float, **changes) -> list[Boot]:
    """Return boots of arm 0, then one of arm 1, with one request each."""
    design = modes((*[0] * (len(speeds) - 1), 1))
    return [boot(design, place, [request("Code", speed, ttft=0.25, **changes)]) for place, speed in enumerate(speeds)]


def test_tokens_come_when_they_came():
    (pair,) = play(boots_at(199.0, 199.0))
    assert [pair.a.count_tokens(at) for at in (0.0, 0.24, 0.25, 0.6, 1.24, 1.25, 9.0)] == [0, 0, 1, 60, 100, 200, 200]
    assert [pair.a.measure_output(at) for at in (0.1, 0.5, 2.0)] == [0.0, 120.0, 160.0]
    assert (pair.measure_ratio(0.1), pair.measure_ratio(0.5), pair.seconds) == (None, 1.0, 1.25)


def test_the_boot_of_median_speed_is_played():
    """The lower one of two."""
    (pair,) = play(boots_at(30.0, 10.0, 20.0, 50.0))
    assert (pair.a.boot.number, pair.b.boot.number) == (2, 3)


def test_an_answer_without_arrivals_is_not_played():
    assert play(boots_at(10.0, 20.0), ()) == []
