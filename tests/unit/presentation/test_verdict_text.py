"""Verdicts in words: what they are called, what qualifies them, when a start has paid back."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.report import ExperimentReport, PromptRatio
from dflash_tui.experiments.analysis.stats import Ratio
from dflash_tui.experiments.design import Boot, Design
from dflash_tui.presentation import experiment_report, verdict_text
from dflash_tui.presentation.experiment_report import ABOUT_RATIOS
from dflash_tui.presentation.report import to_terminal
from tests.support.boot_factories import KINDS, boot, boots, design, modes, plan, request

SPEEDS = [10.0, 20.0, 20.1, 10.1]


def said(of: Design, measured: Sequence[Boot]) -> tuple[str, ...]:
    """Headline and details of an experiment's first comparison."""
    report = verdict.build_report(of, measured)
    one = report.comparisons[0]
    notes = [verdict_text.list_answer(report, one), verdict_text.list_notes(report, one)]
    return tuple(str(note) for note in (*notes[0], *notes[1], *verdict_text.list_details(report, one)))


@pytest.mark.parametrize(
    "speeds",
    [
        pytest.param([10.0, 49.0, 49.2, 10.1], id="times where it is far"),
        pytest.param([10.0, 8.0, 8.1, 10.1], id="percent where it is near"),
        pytest.param([10.0, 10.1, 10.2, 10.3], id="no difference, and what would have been found"),
        pytest.param([10.0, 90.0, 30.0, 40.0], id="no difference would have been found below a factor"),
    ],
)
def test_headline_names_arm_and_size_of_difference(speeds, snapshot):
    """With interval, measure and boots; the details say what makes the difference."""
    assert said(modes(), boots(modes(), speeds)) == snapshot


def test_prompts_that_disagree_are_the_answer():
    """Kinds of which one is sped up and another is not: the intervals of the two do not meet."""
    of = modes()
    report = verdict.build_report(of, boots(of, [10.0, 10.1, 10.2, 10.3]))
    prompts = [
        PromptRatio("JSON", 1135.0, 514.0, Ratio(0.45, 0.31, 0.66), 32),
        PromptRatio("Q&A", 454.0, 485.0, Ratio(1.06, 0.83, 1.36), 32),
    ]
    one = replace(report.comparisons[0], ratio=Ratio(0.64, 0.37, 1.11), prompts=tuple(prompts))
    lines = [str(note) for note in verdict_text.list_answer(report, one)]
    assert "compile is faster than eager depends on the prompt" in lines[0]
    assert "0.45 (0.31–0.66) with JSON, 1.06 (0.83–1.36) with Q&A" in lines[1]
    meet = replace(prompts[1], ratio=Ratio(1.06, 0.6, 1.8))
    noisy = replace(one, prompts=(prompts[0], meet))
    assert "too noisy" in str(verdict_text.list_answer(report, noisy)[0])


def test_refusal_states_reason_and_shows_evidence(snapshot):
    """The reason is in the headline, its evidence first among the details."""
    measured = [*boots(modes(), [10.0, 12.0, 12.1]), *boots(modes(), [10.0] * 4, driver="590")[3:]]
    assert said(modes(), measured)[:2] == snapshot


def test_random_weights_are_marked_once():
    synthetic = "random weights, synthetic acceptance length 7.8"
    of = modes(synthetic=synthetic)
    report = verdict.build_report(of, boots(of, [10.0, 12.0, 12.1, 10.1]))
    assert to_terminal(experiment_report.build_report(report)).count("random weights") == 1


def started(cold: float, speeds: Sequence[float]) -> tuple[str, ...]:
    """The details of boots that start cold, compile after `cold` seconds and eager after a minute."""
    measured = [replace(b, cache="cold", ready=cold if b.arm else 60.0) for b in boots(modes(), speeds)]
    return tuple(line for line in said(modes(), measured) if "from a cold start" in line)


@pytest.mark.parametrize(
    "speeds",
    [
        pytest.param([10.0, 20.0, 20.1, 10.1], id="with bounds where it does"),
        pytest.param([10.0, 10.2, 10.1, 10.3], id="without end where it may not"),
        pytest.param([20.0, 10.0, 10.1, 20.1], id="never where it cannot"),
    ],
)
def test_slower_start_pays_back_or_never_does(speeds, snapshot):
    assert started(160, speeds) == snapshot


def test_break_even_within_noise_has_no_number():
    """Both may start alike, and neither is shown to be faster: 0 tokens would say nothing."""
    (line,) = started(64, [10.0, 10.2, 10.1, 10.3])
    assert "too noisy" in line


def test_starts_seen_once_per_arm_are_marked(snapshot):
    """One start of each arm does not say how far the next ones are apart; where a boot was lost, that is no other."""
    of = modes()
    measured = [replace(b, cache="cold", ready=160.0 if b.arm else 60.0) for b in boots(of, SPEEDS)]
    lost = [replace(b, error="died", requests=()) if b.number > 1 else b for b in measured]
    assert [said(of, lost), said(of, measured), said(of, measured[:3])] == snapshot


def sweep(*speeds: float) -> ExperimentReport:
    """A sweep over n=4, 8, 12 with two boots each."""
    of = design("n", {str(n): plan(num_speculative_tokens=n) for n in (4, 8, 12)}, (0, 1, 2, 2, 1, 0))
    return verdict.build_report(of, boots(of, [*speeds, *(1.005 * speed for speed in reversed(speeds))]))


def test_sweep_names_plateau_and_recommended_value(snapshot):
    """The fastest, what is like it, what is slower, and the smallest of the plateau with what it gives away."""
    reports = sweep(8.0, 10.0, 10.1), sweep(8.0, 12.0, 10.0)
    assert [list(map(str, verdict_text.list_sweep_notes(report))) for report in reports] == snapshot


def test_arm_label_includes_key_only_if_needed():
    assert verdict_text.label_arm(modes(), 1) == "compile"
    assert verdict_text.label_arm(design("spec", {"on": plan(), "off": plan()}, (0, 1)), 1) == "spec=off"


def one_slow_prompt(slow: float) -> ExperimentReport:
    """Eager against compile, which is half as fast again but `slow` times as fast with the first prompt."""
    of = modes()
    factors = dict(zip(KINDS, (slow, *[1.5] * (len(KINDS) - 1)), strict=True))
    measured = [
        boot(of, number, [request(kind, 10.0 * 1.1**place * factors[kind] ** arm) for place, kind in enumerate(KINDS)])
        for number, arm in enumerate(of.order)
    ]
    return verdict.build_report(of, measured)


def test_prompt_dependent_ratio_gives_no_figure(snapshot):
    """The arm is slower with each, by 10 % to a factor of 3; boots agree."""
    of = modes()
    factors = dict(zip(KINDS, (0.3, 0.45, 0.6, 0.75, 0.9), strict=True))
    measured = [
        boot(of, number, [request(kind, 10.0 * factors[kind] ** arm) for kind in KINDS])
        for number, arm in enumerate(of.order)
    ]
    report = verdict.build_report(of, measured)
    assert [str(line) for line in verdict_text.list_answer(report, report.comparisons[0])] == snapshot


@pytest.mark.parametrize("slow", [pytest.param(0.03, id="named"), pytest.param(0.5, id="not where the others agree")])
def test_single_prompt_that_flips_verdict_is_named(slow, snapshot):
    """The medians of the arms, which one prompt does not move, say the opposite of a ratio over prompts."""
    report = one_slow_prompt(slow)
    assert [str(line) for line in verdict_text.list_notes(report, report.comparisons[0])] == snapshot


def test_report_explains_ratios_only_where_it_compares():
    report = one_slow_prompt(0.03)
    assert ABOUT_RATIOS in to_terminal(experiment_report.build_report(report, details=True))
    alone = replace(report, comparisons=())
    assert ABOUT_RATIOS not in to_terminal(experiment_report.build_report(alone, details=True))
