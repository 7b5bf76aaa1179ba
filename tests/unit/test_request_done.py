"""What a finished request says of its steps."""

import random

import pytest

from dflash_tui.events import RequestDone, measure_acceptance_length


@pytest.mark.parametrize("n", [4, 7, 15])
@pytest.mark.parametrize("tokens", [2, 64, 256])
def test_acceptance_length_counts_only_sent_tokens(n, tokens):
    """Steps are simulated until the answer has its tokens; the last one accepts beyond that, and is counted whole."""
    draw, overcounted = random.Random(n * tokens), 0
    for _ in range(50):
        steps = accepted = 0
        while 1 + steps + accepted < tokens:
            steps += 1
            accepted += next((hit for hit in range(n) if draw.random() > 0.9), n)
        done = RequestDone(0.0, "x", tokens, steps=float(steps), accepted=float(accepted), decode_tok_s=100.0)
        assert done.acceptance_length is not None
        assert done.acceptance_length == pytest.approx((tokens - 1) / steps)
        assert done.steps_s == pytest.approx(100.0 * steps / (tokens - 1))
        overcounted += done.acceptance_length < 1 + accepted / steps - 1e-9
    assert overcounted > 10


@pytest.mark.parametrize(
    ("counts", "length"),
    [
        ((10.0, 20.0, 31), 3.0),  # nothing was cut
        ((10.0, 20.0, 29), 2.8),  # two drafts were
        ((10.0, 20.0, 60), 3.0),  # half of the tokens came without drafts: what was cut is not known
        ((500.0, 900.0, 40), 2.8),  # most steps are of other clients
        ((10.0, 20.0, 0), 3.0),  # the tokens are not known
        ((0.0, 0.0, 5), None),
        ((None, 4.0, 5), None),
        ((3.0, None, 5), None),
    ],
)
def test_cut_drafts_are_subtracted_from_acceptance_length(counts, length):
    assert measure_acceptance_length(*counts) == (None if length is None else pytest.approx(length))


def test_several_answers_have_a_first_token_each():
    assert measure_acceptance_length(50.0, 150.0, 185, 5) == pytest.approx(180 / 50)
