"""Two answers that are written again as fast as they came."""

import pytest

from dflash_tui.benchmark.sse import Answer, ArrivalMark
from dflash_tui.experiments.analysis.answers import PromptKey
from dflash_tui.experiments.analysis.playback import PlayedAnswer, PlayedPair, find_typical_pair, list_played_pairs
from dflash_tui.experiments.design import Boot, KeptAnswer
from tests.support.boot_factories import boot, modes, request

MARKS = ((250, 1), (500, 60), (1000, 100), (1250, 200))


def answered(marks: tuple[ArrivalMark, ...] = MARKS, speed: float = 199.0, **changes) -> tuple[Boot, KeptAnswer]:
    """Return a boot with one request of 200 tokens, and its answer."""
    done = request("Code", speed, 1.0, ttft=0.25, total=0.25 + 199 / speed, **changes)
    made = boot(modes(), 0, [done])
    return made, KeptAnswer(made.run, "Code", 1, 0, Answer("ab" * 100), marks)


def played(made: Boot, *kept: KeptAnswer) -> PlayedAnswer:
    """Return what is played of an arm; the other one has the same boot."""
    boots = [made, boot(modes(), 1, made.requests)]
    return list_played_pairs(boots, 0, 1, kept)[0].a


def test_tokens_come_when_they_came():
    """Their speed is counted as that of the request, whose own figure stands at the end."""
    one = played(*answered())
    counts = [one.count_tokens(at) for at in (0.0, 0.24, 0.25, 0.6, 1.0, 1.24, 1.25, 9.0)]
    assert counts == [0, 0, 1, 60, 100, 100, 200, 200]
    assert (one.seconds, one.ttft, one.boot) == (1.25, 0.25, 0)
    assert [one.measure_speed(at) for at in (0.1, 0.3, 0.6, 1.1, 2.0)] == [None, None, 59 / 0.25, 99 / 0.75, 199.0]
    assert [one.measure_output(at) for at in (0.1, 0.5, 2.0)] == [None, 120.0, 160.0]
    assert [len(one.read_text(at)) for at in (0.1, 0.6, 2.0)] == [0, 60, 200]


@pytest.mark.parametrize(
    "marks",
    [(), ((250, 1), (1250, 199)), ((250, 1), (99_000, 200)), ((250, 5), (500, 5), (900, 200)),
     ((500, 1), (250, 60), (900, 200)), ((250, 1), (250, 200))],
)  # fmt: skip
def test_without_arrivals_that_fit_the_request_its_mean_speed_is_played(marks):
    """None were kept, or somebody else wrote them: other tokens, another time, back and forth, all at once."""
    one = played(*answered(marks))
    assert one.marks == ()
    assert [one.count_tokens(at) for at in (0.2, 0.25, 0.75, 1.25, 9.0)] == [0, 1, 100, 200, 200]
    assert [one.measure_speed(at) for at in (0.2, 0.5, 2.0)] == [None, 199.0, 199.0]


def test_an_answer_that_was_not_kept_has_its_figures():
    one = played(answered()[0])
    assert (one.text, one.read_text(1.0), one.count_tokens(0.75)) == (None, "", 100)


@pytest.mark.parametrize("changes", [{"error": "HTTP 400"}, {"decode_tok_s": None}, {"tokens": 0}])
def test_what_failed_or_came_at_once_is_not_played(changes):
    made = answered(**changes)[0]
    assert list_played_pairs([made, boot(modes(), 1, made.requests)], 0, 1, ()) == []


def test_the_boot_of_median_speed_is_played():
    """The lower one of two."""
    of = modes((0, 0, 0, 1, 1))
    speeds = (30.0, 10.0, 20.0, 50.0, 40.0)
    boots = [boot(of, number, [request("Code", each, ttft=0.1)]) for number, each in enumerate(speeds)]
    (pair,) = list_played_pairs(boots, 0, 1, ())
    assert (pair.a.boot, pair.b.boot) == (2, 4)


def test_the_ratio_is_that_of_the_output_until_then():
    """Of both since they were asked for; one that is done keeps its own."""
    slow, fast = (PlayedAnswer(arm, arm, 100, 1.0, speed, (), "", cut=False) for arm, speed in ((0, 10.0), (1, 99.0)))
    pair = PlayedPair(PromptKey("Code", 1, 0), slow, fast)
    assert (pair.measure_ratio(0.5), pair.seconds) == (None, 10.9)
    assert pair.measure_ratio(1.5) == pytest.approx(50 / 6)
    assert pair.measure_ratio(6.0) == pytest.approx((100 / 2.0) / (51 / 6.0))
    assert pair.measure_ratio(99.0) == pytest.approx(10.9 / 2.0)


def test_the_typical_pair_is_that_of_the_median_ratio():
    of = modes((0, 1))
    ratios = {"Q&A": 3.0, "Code": 1.5, "JSON": 2.0, "Math": 9.0}
    boots = [
        boot(of, arm, [request(kind, 10.0 * (ratio if arm else 1), ttft=0.0) for kind, ratio in ratios.items()])
        for arm in (0, 1)
    ]
    pairs = list_played_pairs(boots, 0, 1, ())
    assert pairs[find_typical_pair(pairs)].key.kind == "JSON"
