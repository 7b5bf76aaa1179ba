"""What is said of answers with speculation whose tokens a server without it has scored."""

import pytest
from msgspec.structs import replace

from dflash_tui.benchmark.client import measure_gaps, measure_shifts
from dflash_tui.benchmark.sse import Answer
from dflash_tui.experiments.analysis import answers
from dflash_tui.experiments.analysis.report import OutputComparison, OutputVerdict
from dflash_tui.experiments.design import AnswerCheck, KeptAnswer
from dflash_tui.presentation import verdict_text
from tests.support.boot_factories import boot, design, plan, request

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
