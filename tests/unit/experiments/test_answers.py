"""What is said of the answers of two arms, compared with boots of one arm, and of tokens that a server scored."""

import hashlib
import random
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from dflash_tui.benchmark.client import measure_gaps, measure_shifts
from dflash_tui.benchmark.sse import Answer
from dflash_tui.experiments.analysis import answers, verdict
from dflash_tui.experiments.analysis.report import OutputComparison, OutputVerdict
from dflash_tui.experiments.design import AnswerCheck, Boot, Design, KeptAnswer
from dflash_tui.presentation import verdict_text
from tests.support.boot_factories import boot, design, modes, plan, request

PROMPTS = 20
WORDS = ("the", "lamp", "was", "put", "out", "before", "dawn", "and", "the", "keeper", "went", "down", "to", "it")


def said(of: Design, texts: Sequence[Sequence[str]], *, tokens: bool = False) -> tuple[list[Boot], list[KeptAnswer]]:
    """Return a boot for each list of answers, with digests as a client makes them, and the answers as they are kept."""
    measured, kept = [], []
    for number, texts_of_boot in enumerate(texts):
        done = []
        for place, text in enumerate(texts_of_boot):
            digest = hashlib.sha256(text.encode()).hexdigest()
            done.append(request("Code", 10.0, round=place, digests=("x", "y", digest)))
            numbers = tuple(map(hash, text.split())) if tokens else ()
            numbers = tuple(abs(each) % 1000 for each in numbers)
            kept.append(KeptAnswer(f"run{number}", "Code", 1, place, Answer(text, numbers)))
        measured.append(boot(of, number, done))
    return measured, kept


def compared(texts: Sequence[Sequence[str]], of: Design | None = None, **how: bool) -> OutputComparison:
    of = of or modes()
    measured, kept = said(of, texts, **how)
    return answers.compare_outputs(of, measured, 0, 1, kept)


def alike(count: int = PROMPTS) -> list[str]:
    return [f"{place} {' '.join(WORDS)}" for place in range(count)]


def turned(texts: Sequence[str], places: Sequence[int], word: int = 3, to: str = "is") -> list[str]:
    """Return the answers with another word from a place on in some of them."""
    return [
        " ".join([*text.split()[:word], to, *reversed(text.split()[word + 1 :])]) if place in places else text
        for place, text in enumerate(texts)
    ]


def test_the_same_answers_are_alike():
    """No difference between, none within; of 20 prompts one in six may differ all the same."""
    found = compared([alike()] * 4)
    assert (found.verdict, found.different, found.within) == (OutputVerdict.ALIKE, 0.0, (0.0, 0.0))
    assert (found.excess, found.low, found.first) == (0.0, 0.0, None)
    assert found.high == pytest.approx(1 - 0.025 ** (1 / 20))
    assert (found.prompts, found.boots) == (PROMPTS, (2, 2))


def test_an_arm_whose_answers_turn_is_different():
    """A third of the answers is another in the second arm, and the same in both of its boots."""
    other = turned(alike(), range(0, PROMPTS, 3))
    found = compared([alike(), other, other, alike()])
    assert found.verdict is OutputVerdict.DIFFERENT
    assert (found.different, *found.within) == pytest.approx((0.35, 0.0, 0.0))
    assert found.low is not None
    assert found.high is not None
    assert 0 < found.low < 0.35 < found.high < 0.65
    assert found.first is not None
    assert (found.first.kind, found.first.boots, found.unit) == ("Code", (0, 1), "character")
    assert (found.first.common[-4:], found.first.a[:3], found.first.b[:3]) == ("amp ", "was", "is ")
    assert found.first.position == len("0 the lamp ") + 1


def test_differences_within_one_arm_show_no_effect():
    """Each boot turns other answers, as rounding does that is chosen anew at each start: the arms are alike."""
    texts = [turned(alike(), range(boot, PROMPTS, 4), to=f"boot{boot}") for boot in range(4)]
    found = compared(texts)
    assert found.verdict is OutputVerdict.ALIKE
    assert (found.different, *found.within) == pytest.approx((0.5, 0.5, 0.5))


def test_tokens_are_compared_if_server_names_them():
    """Two answers of the same text may be of other tokens: special ones are no text."""
    of = modes()
    measured, kept = said(of, [alike()] * 4, tokens=True)
    arms = {f"run{number}": arm for number, arm in enumerate(of.order)}
    kept = [
        replace(each, answer=replace(each.answer, tokens=(*each.answer.tokens[:5], 1001))) if arms[each.run] else each
        for each in kept
    ]
    found = answers.compare_outputs(of, measured, 0, 1, kept)
    assert (found.verdict, found.unit) == (OutputVerdict.DIFFERENT, "token")
    assert found.first
    assert found.first.position == 6


def test_digests_show_difference_without_position():
    """Digests are enough for the verdict."""
    measured, _ = said(modes(), [alike(), *[turned(alike(), range(9))] * 2, alike()])
    found = answers.compare_outputs(modes(), measured, 0, 1)
    assert (found.verdict, found.first) == (OutputVerdict.DIFFERENT, None)


@pytest.mark.parametrize(
    ("order", "changes", "words"),
    [
        ((0, 1), {}, "two boots of each arm"),
        ((0, 1, 1, 0), {"temperature": 0.7}, "0.7"),
        ((0, 1, 1, 0), {"temperature": None}, "the model's own"),
    ],
)
def test_unknowable_values_are_unknown(order, changes, words, snapshot):
    """One boot of each, whose answers were compared nevertheless, or answers that were sampled."""
    found = compared([turned(alike(), range(9)) if arm else alike() for arm in order], modes(order, **changes))
    assert found.verdict is OutputVerdict.UNKNOWN
    assert words in found.why
    assert verdict_text.format_output_headline(found) == snapshot


@pytest.mark.parametrize(
    ("synthetic", "script", "known"),
    [
        ("hand-made toy weights", "/build.py", True),
        ("hand-made toy weights; synthetic acceptance", "/build.py", False),
        ("random weights (load-format dummy)", "", False),
        ("random weights of the shape", "", False),
        ("", "", True),
    ],
)
def test_synthetic_answers_are_not_compared(synthetic, script, known):
    """Toy weights that a recipe builds are real ones to a verification; random weights and drawn drafts are not."""
    arms = {name: plan(synthetic=synthetic, build_script=script, env={"A": name}) for name in "ab"}
    found = compared([alike()] * 4, design("env.A", arms, (0, 1, 1, 0)))
    assert (found.verdict is OutputVerdict.ALIKE) is known
    assert bool(found.why) is not known


def test_a_few_prompts_decide_nothing():
    """Four that differ in all boots are not enough."""
    other = ["other"] * 4
    assert compared([alike(4), other, other, alike(4)]).verdict is OutputVerdict.UNKNOWN
    assert compared([alike(5), ["other"] * 5, ["other"] * 5, alike(5)]).verdict is OutputVerdict.DIFFERENT


@pytest.mark.parametrize("share", [0.3])
def test_alike_arms_are_rarely_called_different(share):
    """Of 300 experiments whose boots turn answers at random at most one in twenty errs, and chance on top of that."""
    draw, wrong = random.Random(7), 0
    for _ in range(300):
        texts = [[f"{draw.random() if draw.random() < share else ''}" for _ in range(PROMPTS)] for _ in range(4)]
        wrong += compared(texts).verdict is OutputVerdict.DIFFERENT
    assert wrong <= 300 * 0.05 + 8


def test_report_checks_answers_only_if_launches_differ():
    """An arm that is compared with itself has none, nor have two runs side by side, or starts without requests."""
    of = modes()
    measured, kept = said(of, [alike()] * 4)
    report = answers.add_output_checks(verdict.build_report(of, measured), kept)
    assert [each.outputs.verdict for each in report.comparisons if each.outputs] == [OutputVerdict.ALIKE]
    same = design("n", {"8": plan(), "8 (2)": plan()}, (0, 1, 1, 0))
    for other in (same, replace(of, suite=""), replace(of, measures_start=True)):
        report = answers.add_output_checks(verdict.build_report(other, measured), kept)
        assert [each.outputs for each in report.comparisons] == [None]


def test_answers_of_two_arms_pair_by_prompt():
    """Of boots that differ, where there are any."""
    of = modes()
    other = turned(alike(), [1])
    measured, kept = said(of, [alike(), alike(), other, alike()])
    report = verdict.build_report(of, measured)
    pairs = list(answers.list_prompts(report, report.comparisons[0], kept))
    assert [pair.key.round for pair in pairs] == list(range(PROMPTS))
    assert [pair.boots for pair in pairs[:2]] == [(0, 1), (0, 2)]
    assert pairs[1].a.text != pairs[1].b.text
    assert answers.split_at_difference("abc", "abd") == ("ab", "c", "d")
    assert answers.split_at_difference("abc", "abc") == ("abc", "", "")
    assert answers.split_at_difference("ab", "abc") == ("ab", "", "c")


@pytest.mark.parametrize(("rejected", "verdict_"), [(0, OutputVerdict.UNKNOWN), (9, OutputVerdict.ALIKE)])
def test_fully_accepted_drafts_do_not_test_verification(rejected, verdict_):
    """As those of answers that repeat one token; where some are rejected, the answers are alike."""
    arms = {"off": plan(num_speculative_tokens=0), "on": plan()}
    of = design("spec", arms, (0, 1, 1, 0))
    measured, kept = said(of, [alike()] * 4)
    measured = [
        replace(each, requests=tuple(replace(done, steps=20.0, accepted=160.0 - rejected) for done in each.requests))
        for each in measured
    ]
    assert answers.compare_outputs(of, measured, 0, 1, kept).verdict is verdict_
    other = [replace(each, requests=(), error="") if each.arm else each for each in measured]
    assert answers.compare_outputs(of, other, 0, 1, kept).verdict is OutputVerdict.UNKNOWN


# Of SmolLM2-135M-Instruct on a CPU in bf16.
ALIKE = AnswerCheck("Code", 1, 0, tokens=200, rounding=0.5, positions=200)
ROUNDED = AnswerCheck("Code", 1, 1, tokens=113, parted=6, gap=0.125, place=6, rounding=0.25, positions=126)
FAULT = AnswerCheck("Code", 1, 2, tokens=200, parted=10, gap=5.375, place=101, rounding=0.375, positions=200)
UNSCORED = AnswerCheck("Code", 1, 3, error="the server did not name the tokens")


def judged(*checks: AnswerCheck, accepted: int = 20) -> OutputComparison:
    of = design("spec", {"off": plan(num_speculative_tokens=0), "on": plan()}, (1, 0))
    done = [[request("Code", 10.0, round=n, steps=10, accepted=accepted) for n in range(len(checks))] for _ in range(2)]
    boots = [boot(of, 0, done[0]), replace(boot(of, 1, done[1]), checks=checks)]
    kept = [KeptAnswer(f"run{b}", "Code", 1, n, Answer("x", (1,))) for b in range(2) for n in range(len(checks))]
    return answers.compare_outputs(of, boots, 0, 1, kept)


@pytest.mark.parametrize(
    ("checks", "verdict"),
    [
        ((ALIKE, ROUNDED), OutputVerdict.ALIKE),
        ((ALIKE, ROUNDED, FAULT), OutputVerdict.DIFFERENT),
        ((ALIKE, replace(ROUNDED, gap=0.5)), OutputVerdict.ALIKE),
        ((ALIKE, replace(ROUNDED, gap=0.5001)), OutputVerdict.DIFFERENT),
        ((ALIKE, replace(ROUNDED, ends_early=True, gap=0.0)), OutputVerdict.DIFFERENT),
        ((replace(ALIKE, positions=50, loses_words=True),), OutputVerdict.DIFFERENT),
        ((ALIKE, UNSCORED), OutputVerdict.ALIKE),
        ((UNSCORED,), OutputVerdict.UNKNOWN),
        ((replace(FAULT, positions=99),), OutputVerdict.UNKNOWN),
    ],
)
def test_a_gap_above_rounding_is_a_fault(checks, verdict):
    """Rounding is the largest that was measured in any answer."""
    assert judged(*checks).verdict is verdict


def test_counts_and_figures_are_reported(snapshot):
    found = judged(ALIKE, ROUNDED, FAULT, UNSCORED)
    assert found.tokens
    assert (found.tokens.alike, found.tokens.rounded, found.tokens.faults, found.tokens.unscored) == (1, 1, 1, 1)
    assert (found.tokens.worst, found.tokens.positions) == (FAULT, 526)
    assert verdict_text.list_output_details(found, "off", "on") == snapshot


def test_drafts_that_are_all_accepted_decide_nothing():
    assert judged(ALIKE, accepted=79).verdict is OutputVerdict.UNKNOWN


def test_gaps_and_shifts_come_from_scores():
    """A runner-up that only one of the two computations names is left out."""
    decoded = [{7: -0.5, 8: -1.0}, {3: -0.1, 4: -3.0}, {5: 0.0}]
    read = [{8: -0.625, 7: -0.75}, {3: -0.1, 9: -2.9}, {5: 0.0}]
    assert measure_gaps([7, 3, 5], read) == [0.125, 0.0, 0.0]
    assert measure_shifts([7, 3, 5], decoded, read) == [0.625]
