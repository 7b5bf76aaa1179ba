"""An A/B of starts: the verdict on seconds by the same statistics as on speeds, and the phases by arm."""

import math

import pytest
from msgspec.structs import replace

from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.measures import START
from dflash_tui.experiments.analysis.report import ExperimentReport, Verdict
from dflash_tui.experiments.analysis.stats import Ratio
from dflash_tui.experiments.design import Arm, Boot, Design
from dflash_tui.planning.request import LaunchRequest
from dflash_tui.presentation import experiment_report, verdict_text
from dflash_tui.presentation.report import to_terminal
from tests.support.experiment_factories import a_plan


def a_design(boots: int, *, cold: bool = False) -> Design:
    plan = replace(a_plan(), env={}, argv=("vllm", "serve", "m"), patches=())
    arms = tuple(Arm(name, LaunchRequest(recipe="toy"), plan) for name in ("off", "on"))
    order = tuple(number % 2 for number in range(2 * boots))
    return Design(
        id="x", made_at=0.0, version="1", recipe="toy", vary="start.fork", arms=arms, order=order, suite="quick",
        digest="", measures_start=True, cold=cold,
    )  # fmt: skip


def a_boot(number: int, seconds: float, *, inspected: float = 0.0, start: str = "measured") -> Boot:
    phases = {"import": 0.5 * seconds, "engine": 0.3 * seconds}
    return Boot(
        number=number, arm=number % 2, run=f"r{number}", up=0.9 * seconds, ready=seconds, phases=phases, generated=0.0,
        start=start, inspected=inspected,
    )  # fmt: skip


def report_of(off: list[float], on: list[float], *, inspected: float = 0.0, filling: bool = False) -> ExperimentReport:
    pairs = [seconds for pair in zip(off, on, strict=True) for seconds in pair]
    boots = [
        a_boot(
            number,
            seconds,
            inspected=inspected if number % 2 else 0.0,
            start="filling" if filling and number < 2 else "measured",
        )
        for number, seconds in enumerate(pairs)
    ]
    return verdict.build_report(a_design(len(off)), boots)


def test_arm_ready_sooner_is_called_faster():
    """With the seconds of both, and the ratio of the seconds: more of a speed is less of them."""
    report = report_of([50.0, 51.0, 49.5, 50.4], [39.0, 39.6, 38.8, 39.3])
    [one] = report.comparisons
    assert (one.measure, one.word, one.boots) == (START, Verdict.FASTER, (4, 4))
    assert one.ratio is not None
    assert one.ratio.ratio == pytest.approx(50.2 / 39.2, rel=0.01)
    assert sorted(round(figure.value, 1) for figure in one.figures if figure.arm == 1) == [38.8, 39.0, 39.3, 39.6]
    assert "start.fork=on is ready sooner" in verdict_text.format_headline(report, one)
    assert one.break_even == ()


def test_earlier_model_inspection_counts():
    """Else a measure would win by doing the same work a moment earlier."""
    off, on = [50.0, 50.5, 49.5, 50.2], [30.0, 30.4, 29.8, 30.1]
    assert report_of(off, on, inspected=20.0).comparisons[0].word is Verdict.NO_DIFFERENCE
    assert report_of(off, on).comparisons[0].word is Verdict.FASTER


def test_cache_filling_boot_does_not_count():
    report = report_of([300.0, 50.0, 51.0, 50.0], [280.0, 39.0, 39.5, 39.2], filling=True)
    [one] = report.comparisons
    assert one.boots == (3, 3)
    table = experiment_report.build_phases_table(report.design, report.boots, (0, 1))
    assert table
    rows = [(cells[0][0], *cells[1:]) for cells in table.rows]
    assert ("ready", "50.0 s", "39.2 s") in rows
    assert ("import", "25.0 s", "19.6 s") in rows


def test_figures_of_starts_are_seconds():
    """No dash stands for what was not sent, and the ratio beside the verdict is that of its sentence."""
    report = report_of([300.0, 50.0, 51.0, 50.0], [120.0, 39.0, 39.5, 39.2], filling=True)
    [one] = report.comparisons
    [row] = experiment_report.build_intervals(one).intervals
    assert row.ratio.ratio == pytest.approx(39.2 / 50.3, rel=0.01)
    assert row.ratio.low < row.ratio.ratio < row.ratio.high < 1
    arms = experiment_report.build_arms_table(report.design, report.boots)
    assert arms.header[2:] == ("first start", "later starts")
    assert [row[1:] for row in arms.rows] == [("3", "5:00", "50.0 s ±1%"), ("3", "2:00", "39.2 s ±0.6%")]
    text, markdown = to_terminal(experiment_report.build_report(report)), experiment_report.render_markdown(report)
    assert "tok/s" not in text
    assert "TTFT" not in markdown
    assert "5:00" in text
    assert "2:00" in markdown


def test_cold_starts_have_no_first_one():
    """And what was inspected before the launch counts as in the verdict."""
    boots = [a_boot(number, 50.0 + number, inspected=20.0 * (number % 2)) for number in range(4)]
    report = verdict.build_report(a_design(2, cold=True), boots)
    arms = experiment_report.build_arms_table(report.design, report.boots)
    assert arms.header[2:] == ("cold starts",)
    assert [row[2] for row in arms.rows] == ["51.0 s ±2%", "1:12 ±1%"]
    assert "1:12" in verdict_text.format_figures(report, report.comparisons[0])


def test_foreign_report_may_have_infinite_interval():
    [one] = report_of([50.0, 51.0], [39.0, 39.6]).comparisons
    wild = replace(one, ratio=Ratio(0.0, 0.0, math.inf))
    assert experiment_report.build_intervals(wild).intervals == ()
    report = replace(report_of([50.0, 51.0], [39.0, 39.6]), comparisons=(wild,))
    assert "too noisy to tell" in to_terminal(experiment_report.build_report(report, details=True))


def test_the_report_shows_the_phases_by_arm():
    report = report_of([50.0, 51.0], [39.0, 39.6], inspected=5.0)
    for text in (to_terminal(experiment_report.build_report(report)), experiment_report.render_markdown(report)):
        rows = [line for line in text.splitlines() if "inspected before" in line and "5.0 s" in line]
        assert rows
    design = replace(report.design, measures_start=False)
    assert experiment_report.build_phases_table(design, report.boots, (0, 1)) is None
