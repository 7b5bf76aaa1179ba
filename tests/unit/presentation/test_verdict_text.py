"""Verdicts in words: what they are called, what qualifies them, when a start has paid back."""

from collections.abc import Sequence

import msgspec

from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.report import ExperimentReport
from dflash_tui.experiments.design import Boot, Design
from dflash_tui.presentation import verdict_text
from tests.support.boot_factories import boots, design, modes, plan

SPEEDS = [10.0, 20.0, 20.1, 10.1]


def said(of: Design, measured: Sequence[Boot]) -> tuple[str, str]:
    """Headline and details of an experiment's first comparison."""
    report = verdict.build_report(of, measured)
    one = report.comparisons[0]
    return verdict_text.format_headline(report, one), "\n".join(map(str, verdict_text.list_details(report, one)))


def test_the_headline_says_which_arm_and_how_much():
    """Times where it is far, percent where it is near, with interval, measure and boots."""
    headline, details = said(modes(), boots(modes(), [10.0, 49.0, 49.2, 10.1]))
    assert headline.startswith("compile is faster than eager: 4.89x (4.")
    assert headline.endswith(" in steps/s, 2 boots each")
    assert "compile to eager, 95 % intervals: steps/s 4.89 (" in details
    assert "what makes the difference in tok/s: steps/s" in details
    headline, _ = said(modes(), boots(modes(), [10.0, 8.0, 8.1, 10.1]))
    assert headline.startswith("compile is slower than eager: -19.9 % (-2")


def test_no_difference_names_what_would_have_been_found():
    """The reader is told what the experiment could have seen."""
    headline, details = said(modes(), boots(modes(), [10.0, 10.1, 10.2, 10.3]))
    assert headline.startswith(
        "no difference shown between eager and compile in steps/s; smallest detectable here about "
    )
    assert "variation between boots of an arm: 2.1 %" in details
    headline, _ = said(modes(), boots(modes(), [10.0, 90.0, 30.0, 40.0]))
    assert "smallest detectable here about a factor of " in headline


def test_one_boot_each_is_marked():
    """In the headline and in the details."""
    of = modes((0, 1))
    headline, details = said(of, boots(of, [10.0, 20.0]))
    assert headline.endswith("1 boot each (suggestive)")
    assert "suggestive only: " in details


def test_a_refusal_says_why_and_shows_the_evidence():
    """The reason is in the headline, its evidence first among the details."""
    headline, details = said(
        modes(), [*boots(modes(), [10.0, 12.0, 12.1]), *boots(modes(), [10.0] * 4, driver="590")[3:]]
    )
    assert headline == "refused: the driver differs"
    assert details.startswith("✗ the driver differs: driver: 580 in boot 1, 590 in boot 4")


def test_random_weights_are_marked_first():
    """Nobody takes their figures for a statement about real answers."""
    of = modes(synthetic="random weights, synthetic acceptance length 7.8")
    _, details = said(of, boots(of, [10.0, 12.0, 12.1, 10.1]))
    assert details.startswith("! random weights, synthetic acceptance length 7.8: not a statement about real answers\n")
    assert details.count("random weights") == 1


def started(cold: float, speeds: Sequence[float]) -> str:
    """The details of boots that start cold, compile after `cold` seconds and eager after a minute."""
    measured = [msgspec.structs.replace(b, cache="cold", ready=cold if b.arm else 60.0) for b in boots(modes(), speeds)]
    return said(modes(), measured)[1]


def test_a_later_start_pays_back_or_never_does():
    """With bounds where it does, without end where it may not, never where it cannot."""
    pays = started(160, [10.0, 20.0, 20.1, 10.1])
    assert "first answer after a cold start: eager 1:00, compile 2:40" in pays
    assert (
        "compile is 1:40 behind after a cold start and pays back after 7,200 tokens (7,000 to 7,600), 36 requests"
        in pays
    )
    assert "not shown to pay back: never, or not before " in started(160, [10.0, 10.2, 10.1, 10.3])
    assert "compile is 1:40 behind after a cold start and never pays back" in started(160, [20.0, 10.0, 10.1, 20.1])


def test_a_start_that_was_seen_once_each_is_said_to_be():
    """One start of each arm does not say how far the next ones are apart; where a boot was lost, that is no other."""
    of = modes()
    measured = [msgspec.structs.replace(b, cache="cold", ready=160.0 if b.arm else 60.0) for b in boots(of, SPEEDS)]
    lost = [msgspec.structs.replace(b, error="died", requests=()) if b.number > 1 else b for b in measured]
    assert "compile is 1:40 behind after a cold start (seen once each, and starts differ) and" in said(of, lost)[1]
    assert "seen once" not in said(of, measured)[1]
    assert "variation between boots of an arm" in said(of, measured[:3])[1]


def sweep(*speeds: float) -> ExperimentReport:
    """A sweep over n=4, 8, 12 with two boots each."""
    of = design("n", {str(n): plan(num_speculative_tokens=n) for n in (4, 8, 12)}, (0, 1, 2, 2, 1, 0))
    return verdict.build_report(of, boots(of, [*speeds, *(1.005 * speed for speed in reversed(speeds))]))


def test_a_sweep_says_its_plateau_and_what_it_recommends():
    """The fastest, what is like it, what is slower, and the smallest of the plateau with what it gives away."""
    lines = verdict_text.describe_sweep(sweep(8.0, 10.0, 10.1))
    assert lines[0] == "fastest measured: n=12 with 36.8 tok/s; not told apart from it: n=8"
    assert lines[1] == "slower: n=4"
    assert lines[2].startswith("recommended: n=8, the smallest of them; n=12 is 1.01 (0.")
    assert verdict_text.describe_sweep(sweep(8.0, 12.0, 10.0))[-1] == "recommended: n=8"


def test_what_is_no_sweep_says_nothing():
    """Two modes have no curve."""
    assert verdict_text.describe_sweep(verdict.build_report(modes(), boots(modes(), [10.0, 12.0, 12.1, 10.1]))) == []


def test_arms_are_called_by_what_speaks_for_itself():
    """A mode needs no key; a number, `on` and `off` do."""
    assert verdict_text.label_arm(modes(), 1) == "compile"
    assert verdict_text.label_arm(design("spec", {"on": plan(), "off": plan()}, (0, 1)), 1) == "spec=off"
