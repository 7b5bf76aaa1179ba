"""How many tokens are worth drafting, and whether figures lie where others measured them."""

import pytest

from dflash_tui.planning.recipes.recipe import PublishedFigures
from dflash_tui.planning.recipes.resolution import ExpectedFigures
from dflash_tui.run_state.finished_requests import FinishedRequest
from dflash_tui.run_state.speculation import (
    MIN_STEPS,
    DraftAdvice,
    DraftForecast,
    advise_draft_length,
    choose_published_figures,
    compare_with_published,
    forecast_drafts,
)
from dflash_tui.vllm_output.metrics import Rates


@pytest.mark.parametrize(
    ("shares", "steps", "advice"),
    [
        ((0.9, 0.6, 0.4, 0.2, 0.03, 0.01), 5000, DraftAdvice(5, 4)),  # 0.03 tokens are less than 2 % of a step of 3.1
        ((0.9, 0.8, 0.7), MIN_STEPS, DraftAdvice(None, 3)),
        ((0.001, 0.0), 5000, DraftAdvice(1, 1)),  # one is drafted at least
        ((0.9, 0.0, None), 5000, DraftAdvice(2, 1)),
        ((0.9, None, 0.0), 5000, None),  # what is unknown may be worth something, and so may those after it
        ((0.9, 0.0), MIN_STEPS - 1, None),
    ],
)
def test_drafts_end_at_first_useless_position(shares, steps, advice):
    assert advise_draft_length(shares, steps) == advice


def even(conditional: float, drafts: int = 15) -> list[float]:
    """Return the shares of positions that are each accepted this often after the one before."""
    return [conditional**place for place in range(1, drafts + 1)]


# A step with n=7 as long as this share of one with n=15, measured on an H200 after 2k, 8k and 32k.
AT_7 = {"2k": 0.792, "8k": 0.810, "32k": 0.849}


@pytest.mark.parametrize(("context", "speed"), [("2k", 0.90), ("8k", 0.88), ("32k", 0.84)])
def test_fewer_drafts_lose_at_high_acceptance(context, speed):
    """Acceptance length 7.8 with n=15 is 5.56 with n=7, which was 0.90, 0.88 and 0.84 times as fast."""
    shares = even(0.8925)
    assert 1 + sum(shares) == pytest.approx(7.8, abs=0.1)
    assert 1 + sum(shares[:7]) == pytest.approx(5.56, abs=0.1)
    seven = DraftForecast(7, 1 + sum(shares[:7]), 1 + sum(shares), AT_7[context])
    assert seven.speed_ratio == pytest.approx(speed, abs=0.01)
    assert forecast_drafts(shares, 5000, {7: AT_7[context]}) is None


@pytest.mark.parametrize(("context", "conditional", "length"), [("2k", 0.848, 6.1), ("32k", 0.808, 5.0)])
def test_fewer_drafts_win_below_break_even(context, conditional, length):
    shares = even(conditional)
    assert 1 + sum(shares) == pytest.approx(length, abs=0.1)
    seven = DraftForecast(7, 1 + sum(shares[:7]), 1 + sum(shares), AT_7[context])
    assert seven.speed_ratio == pytest.approx(1, abs=0.01)
    found = forecast_drafts(even(0.7), 5000, {7: AT_7[context]})
    assert found is not None
    assert found.tokens == 7
    assert found.speed_ratio == pytest.approx(0.945 / AT_7[context], abs=0.01)


def test_forecast_between_measured_drafts():
    """A line between two measured step times; nothing beyond them, and nothing by an unknown position."""
    shares = [0.9, 0.8, 0.7, 0.6, 0.0, 0.0, 0.0, 0.0]
    found = forecast_drafts(shares, 5000, {2: 0.7, 12: 3.0})
    assert found is not None
    assert (found.tokens, found.length, found.length_now) == (4, 4.0, 4.0)
    assert found.step_ratio == pytest.approx(0.8)
    assert forecast_drafts([None, *shares[1:]], 5000, {2: 0.4}) is None
    assert forecast_drafts(shares, MIN_STEPS - 1, {2: 0.4}) is None


def test_unmeasured_steps_name_drafts_to_try():
    """Without the step times of other drafts no gain is named, and nothing where all positions are useful."""
    found = forecast_drafts([0.9, 0.6, 0.4, 0.2, 0.03, 0.01], 5000, {})
    assert found is not None
    assert (found.tokens, found.step_ratio, found.speed_ratio) == (4, None, None)
    assert found.length == pytest.approx(3.1)
    assert found.length_now == pytest.approx(3.14)
    assert forecast_drafts([0.9, 0.8, 0.7], 5000, {}) is None
    assert forecast_drafts([0.9, 0.8, 0.7, 0.6, 0.0], 5000, {}) is None  # one draft fewer is within noise


BAND = PublishedFigures("somebody", tok_s=(30.0, 40.0), acceptance=(0.25, 0.35), acceptance_length=(3.0, 3.5))


def rates(acceptance: float, length: float, steps: float = 500.0) -> Rates:
    return Rates(60.0, 100.0, steps=steps, acceptance=acceptance, acceptance_length=length)


def test_each_published_figure_gets_a_word():
    """Within a twentieth of the bounds is within: published figures are rounded."""
    requests = [FinishedRequest(float(at), "", speed) for at, speed in enumerate((20, 22, 24))]
    found = compare_with_published(BAND, rates(0.36, 4.2), requests)
    assert [(r.name, r.position) for r in found] == [("tok/s", "below"), ("AL", "above"), ("acceptance", "within")]
    assert found[0].value == 22


def test_unknown_value_gets_none():
    """Requests that ran at once are no single stream, failed ones have no speed, a few steps tell nothing."""
    requests = [FinishedRequest(0.0, "", 99.0, averaged_over=4), FinishedRequest(1.0, "Math", None, failed=True)]
    assert compare_with_published(BAND, rates(0.3, 3.1, steps=5), requests) == []
    assert compare_with_published(PublishedFigures("x"), rates(0.3, 3.1), [FinishedRequest(0.0, "", 35.0)]) == []


def test_published_figures_are_chosen_by_speculation():
    start, drafted = ExpectedFigures("s", ready_s=(1, 1)), ExpectedFigures("d", acceptance=(0.1, 0.2))
    both = ExpectedFigures("b", tok_s=(4, 5), baseline_tok_s=(2, 3))
    assert choose_published_figures((start, drafted, both), speculative=True) is drafted
    assert choose_published_figures((start, drafted, both), speculative=False) is both
    assert choose_published_figures((start,), speculative=True) is None


def test_server_without_speculation_compares_with_baseline():
    both = PublishedFigures("b", tok_s=(4, 5), baseline_tok_s=(2, 3), acceptance=(0.1, 0.2))
    compared = compare_with_published(both, rates(0.3, 3.1), [FinishedRequest(0.0, "", 2.5)], speculative=False)
    assert [(reading.name, reading.low, reading.position) for reading in compared] == [("tok/s", 2, "within")]
