"""The first answer of models that were served before: what counts as the same, as noise, and as the same models."""

import pytest
from msgspec.structs import replace

from dflash_tui.benchmark.sse import Answer
from dflash_tui.events import AnswerHeld
from dflash_tui.monitoring import first_answer
from dflash_tui.planning.plan import Plan
from dflash_tui.runs.run import FarRank, Run
from tests.support import command_line
from tests.support.values import present

FAR = (FarRank(1, "spark-b", "far-run"),)
HELLO = Answer("Hello! How can I help", (9906, 0, 2650, 649, 358, 1520))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return command_line.planned("gemma-4-31b", "--gpu", "h100").plan


def run_of(plan: Plan, name: str = "now", **fields) -> Run:
    run = Run(name, plan, 1, "born", 0.0, 0.0, "vllm 0.33.0", models={"target": "commit 1", "drafter": "commit 2"})
    return replace(run, **fields)


@pytest.mark.parametrize(
    ("a", "b", "alike"),
    [
        (HELLO, HELLO, True),
        (HELLO, Answer("Hello! How are you", (9906, 0, 2650, 527, 499)), True),  # a near-tie, turned by rounding
        (HELLO, Answer("ವ cdot Ваш", (77, 12, 9)), False),
        (HELLO, Answer("Hello", (9906,)), False),
        (replace(HELLO, tokens=()), Answer("Hello! How are you"), True),  # nobody named the tokens
        (replace(HELLO, tokens=()), Answer("Ваш"), False),
        (Answer(), Answer(), True),
    ],
)
def test_answers_that_begin_alike(a, b, alike):
    assert first_answer.begins_alike(a, b) is alike


@pytest.mark.parametrize(
    ("answer", "is_noise"),
    [
        (HELLO, False),
        (Answer("こんにちは！カフェ 漢字 hello", (1, 2, 3, 4, 5, 6, 7, 8)), False),
        (Answer("Привет! Hello ∂x", (1, 2, 3, 4, 5, 6, 7, 8)), False),
        (Answer("", ()), False),
        (Answer("!!!!!!!!", (0,) * 8), True),
        (Answer("ವ cdot Ваш", (77, 12, 9)), True),
    ],
)
def test_noisy_answers_are_recognised(answer, is_noise):
    assert bool(first_answer.describe_noise(answer)) is is_noise


def test_later_answers_are_compared_with_first(folders, plan):
    """On one host nothing is said of it; it stays what several hosts are held against."""
    assert first_answer.hold_answer(run_of(plan, "alone"), HELLO) is None
    other = Answer("ವ cdot Ваш", (77, 12, 9))
    held = present(first_answer.hold_answer(run_of(plan, far_ranks=FAR), other))
    assert (held.is_like_before, held.before, held.run, held.noise) == (False, HELLO.text, "alone", "")
    again = present(first_answer.hold_answer(run_of(plan, far_ranks=FAR), HELLO))
    assert again.is_like_before is True
    [record] = (folders / "state" / "dflash-tui" / "first-answers").iterdir()
    assert (str(record), record.stat().st_mode & 0o777) == (held.record, 0o600)


def test_noise_is_reported_and_not_kept(folders, plan):
    noise = Answer("!!!!!!!!", (0,) * 8)
    for _ in range(2):
        held = first_answer.hold_answer(run_of(plan, far_ranks=FAR), noise)
        assert isinstance(held, AnswerHeld)
        assert (bool(held.noise), held.is_like_before) == (True, None)


def with_words(plan: Plan, *words: str) -> Plan:
    return replace(plan, argv=(*plan.argv, *words))


@pytest.mark.parametrize(
    ("words", "fields", "is_held"),
    [
        (("--tensor-parallel-size", "2", "--nnodes", "2", "--headless"), {}, True),
        (("--max-num-seqs=4", "--enforce-eager"), {}, True),
        (("--quantization", "fp8"), {}, False),
        ((), {"engine": "vllm 0.32.0"}, False),
        ((), {"models": {"target": "commit 3", "drafter": "commit 2"}}, False),
        ((), {"models": {}}, None),
        (("--load-format", "dummy"), {}, None),
    ],
)
def test_which_launches_have_the_same_models(folders, plan, words, fields, is_held):
    """Where they run makes no difference; other weights, flags or releases do, and random ones are not held at all."""
    first_answer.hold_answer(run_of(plan), HELLO)
    held = first_answer.hold_answer(run_of(with_words(plan, *words), far_ranks=FAR, **fields), HELLO)
    assert (None if held is None else held.is_like_before is True) is is_held


def test_toy_weights_may_repeat_a_token(folders):
    toy = command_line.planned("demo-cpu", "--set", "synthetic=toy weights").plan
    held = present(first_answer.hold_answer(run_of(toy, far_ranks=FAR), Answer("aaaaaaaa", (5,) * 8)))
    assert not held.noise
