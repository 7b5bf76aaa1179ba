"""How many answers are right, where the data set says what is."""

import re

import pytest
from msgspec.structs import replace

from dflash_tui.benchmark.answer import Answer
from dflash_tui.experiments.analysis import answers, exact_match
from dflash_tui.experiments.analysis.report import ExactMatch, OutputComparison, OutputVerdict
from dflash_tui.experiments.design import KeptAnswer
from dflash_tui.presentation import output_text
from tests.support.boot_factories import boot, modes, request

RIGHT = {f"gsm8k {number}": str(number) for number in range(1, 41)}


@pytest.mark.parametrize(
    ("text", "number", "right"),
    [
        ("So 6 x 7 = 42.\n#### 42", "42", True),
        ("#### $1,234.50", "1234.5", True),
        ("#### 42\nQuestion: what is 6 + 1?\n#### 7", "42", True),  # it went on past its end
        ("I think it is -3.", "-3", True),
        ("It is 42, of 100", "42", False),
        ("####", "42", False),
        ("", "42", False),
        ("#### 4" + "2" * 5000, "42", False),
    ],
)
def test_the_number_of_an_answer(text, number, right):
    assert exact_match.is_right(text, number) is right


def matched(wrong: dict[int, int], *, cut: bool = False) -> ExactMatch | None:
    """Return the match of two boots of each arm, where so many answers of a boot are wrong."""
    design = replace(modes(), right_answers=RIGHT)
    boots, kept = [], []
    for number in range(4):
        boots.append(boot(design, number, [request(kind, 10.0, digests=("x",)) for kind in RIGHT]))
        for place, (kind, text) in enumerate(RIGHT.items()):
            said = "0" if place < wrong.get(boots[-1].arm, 0) else text
            kept.append(KeptAnswer(f"run{number}", kind, 1, 0, Answer(f"#### {said}", (), cut)))
    return answers.compare_outputs(design, boots, 0, 1, kept).exact


def test_arms_that_answer_alike_match_alike():
    """Forty that do so do not prove that all would: the interval is that of a share that was never seen."""
    unseen = 1 - 0.025 ** (1 / 40)
    found = matched({})
    assert found == ExactMatch(40, (1.0, 1.0), 0.0, -unseen, unseen)


def test_an_arm_that_answers_worse_is_seen_with_its_interval():
    """Paired by prompt: ten of forty are wrong in one arm and right in the other."""
    found = matched({0: 4, 1: 14})
    assert found is not None
    assert (found.prompts, found.shares) == (40, (0.9, 0.65))
    assert found.difference == pytest.approx(-0.25)
    assert found.low == pytest.approx(-0.375, abs=0.03)
    assert found.high == pytest.approx(-0.125, abs=0.03)


def test_what_is_not_known_is_none():
    assert matched({}, cut=True) is None  # the end of an answer was not kept


def test_the_check_of_the_answers_says_it():
    found = OutputComparison(OutputVerdict.ALIKE, prompts=40, boots=(2, 2), exact=matched({0: 4, 1: 14}))
    line = output_text.list_output_details(found, "off", "on")[-1]
    assert re.findall(r"-?\d+\.\d", line)[:3] == ["90.0", "65.0", "-25.0"]
