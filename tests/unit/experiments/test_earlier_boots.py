"""Boots of earlier experiments: which count, what they add to two boots each, and when they are left out."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from dflash_tui.benchmark.earlier_spread import LEAST_REACH
from dflash_tui.experiments import store
from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.earlier_boots import measure_earlier_arms
from dflash_tui.experiments.analysis.report import EarlierArm, ExperimentReport, Verdict
from dflash_tui.experiments.design import Boot, Design
from dflash_tui.presentation import verdict_text
from tests.support.boot_factories import boots, modes, plan

# In the order A B B A: arms 10 % apart, their boots 3 and 4 %.
NOW = (10.0, 11.4, 10.95, 10.4)
# The same launches before, whose boots spread as far or further.
BEFORE = ((10.0, 11.0, 11.6, 10.5), (10.3, 11.5, 11.0, 9.8), (9.9, 11.2, 11.7, 10.4), (10.4, 11.1, 11.6, 9.9))


def report_of(speeds: Sequence[float], design: Design | None = None, **changes: Any) -> ExperimentReport:
    """The report of an experiment with these steps/s, before."""
    of = design or modes()
    return verdict.build_report(of, boots(of, speeds, **changes))


def judge(
    speeds: Sequence[float] = NOW, reports: Sequence[ExperimentReport] | None = None, of: Design | None = None
) -> ExperimentReport:
    """The report of an experiment now, informed by the earlier ones that fit."""
    design = of or modes()
    before = [report_of(each) for each in BEFORE] if reports is None else reports
    measured = boots(design, speeds)
    return verdict.build_report(design, measured, measure_earlier_arms(design, measured, before))


def list_df(found: Sequence[EarlierArm]) -> list[tuple[int, str, int]]:
    return [(each.arm, each.measure, each.spread.df) for each in found]


def test_earlier_boots_of_the_same_launch_show_what_two_boots_each_do_not():
    """10 % with boots 3 to 4 % apart: nothing is shown by four boots, faster with sixteen earlier ones."""
    (alone,), (informed,) = judge(reports=()).comparisons, (report := judge()).comparisons
    assert (alone.word, informed.word) == (Verdict.NO_DIFFERENCE, Verdict.FASTER)
    assert list_df(report.earlier) == [(0, "steps/s", 4), (0, "tok/s", 4), (1, "steps/s", 4), (1, "tok/s", 4)]
    assert alone.test is not None
    assert informed.test is not None
    assert (alone.test.informed, informed.test.informed) == (False, True)
    assert (informed.test.df or 0) > 4 * (alone.test.df or 0)


def test_boots_that_spread_more_than_before_are_believed_by_themselves():
    """The machine has changed: 20 % between boots where they were 2 % apart is the interval of these boots alone."""
    changed = (10.0, 12.0, 10.5, 12.3)
    steady = [report_of((10.0, 11.0, 11.1, 10.1)) for _ in range(4)]
    (alone,), (informed,) = judge(changed, ()).comparisons, judge(changed, steady).comparisons
    assert informed == alone


def test_earlier_boots_widen_the_interval_of_boots_that_came_out_alike():
    """Two boots within 0.1 % on a machine whose boots are 6 % apart are chance."""
    alike, wild = (10.0, 11.0, 11.01, 10.01), [report_of((10.0, 11.0, 12.1, 11.0)) for _ in range(4)]
    (alone,), (informed,) = judge(alike, ()).comparisons, judge(alike, wild).comparisons
    assert (alone.word, informed.word) == (Verdict.FASTER, Verdict.NO_DIFFERENCE)


def test_however_alike_boots_were_a_change_of_the_machine_has_room():
    """The interval reaches 8 % to both sides, or as far as these boots alone say, which came out alike."""
    steady = [report_of((10.0, 11.0, 11.01, 10.01)) for _ in range(8)]
    wide, narrow = (10.0, 11.0, 11.32, 10.01), (10.0, 11.0, 11.01, 10.01)
    reaches = [reach(judge(speeds, reports)) for speeds in (wide, narrow) for reports in ((), steady)]
    assert reaches[1] == pytest.approx(LEAST_REACH)
    assert reaches[0] > reaches[1] > reaches[2] == pytest.approx(reaches[3])


def reach(report: ExperimentReport) -> float:
    """Half of the interval of the only comparison, as a logarithm."""
    ratio = report.comparisons[0].ratio
    assert ratio is not None
    return math.log(ratio.high / ratio.low) / 2


@pytest.mark.parametrize(
    "reports",
    [
        [report_of(BEFORE[0], versions={"vllm": "0.31.0", "torch": "2.11.0"})],
        [report_of(BEFORE[0], driver="570")],
        [report_of(BEFORE[0], argv=(*plan().argv, "--max-model-len", "4096"))],
        [report_of(BEFORE[0], modes(scale=0.5))],
        [report_of(BEFORE[0], modes(digest="another suite"))],
        [report_of(BEFORE[0][:3])],
        [report_of((10.0, 11.0), modes((0, 1)))],
        [replace(report_of(BEFORE[0]), comparisons=tuple(
            replace(one, word=Verdict.REFUSED) for one in report_of(BEFORE[0]).comparisons))],
    ],
    ids=["versions", "driver", "flags", "lengths", "prompts", "not over", "one boot", "refused"],
)  # fmt: skip
def test_other_boots_do_not_count(reports):
    """Another release, driver, flag or question, one boot, an experiment that was refused or is not over."""
    assert judge(reports=reports).earlier == ()


def test_three_boots_each_and_boots_of_unknown_launches_are_not_informed():
    of = modes((0, 1, 1, 0, 0, 1))
    assert judge((*NOW, 10.2, 11.1), of=of).earlier == ()
    unknown: list[Boot] = [replace(boot, argv=()) for boot in boots(modes(), NOW)]
    assert measure_earlier_arms(modes(), unknown, [report_of(each) for each in BEFORE]) == ()


def test_the_port_makes_no_other_launch():
    elsewhere = tuple("8001" if word == "8000" else word for word in plan().argv)
    moved = modes()
    eager = replace(moved.arms[0], plan=replace(moved.arms[0].plan, argv=(*elsewhere, "--enforce-eager")))
    compiled = replace(moved.arms[1], plan=replace(moved.arms[1].plan, argv=elsewhere))
    found = judge(reports=[report_of(BEFORE[0], replace(moved, arms=(eager, compiled)))]).earlier
    assert list_df(found) == [(0, "steps/s", 1), (0, "tok/s", 1), (1, "steps/s", 1), (1, "tok/s", 1)]


def test_a_report_says_of_how_many_earlier_boots_its_spread_is(snapshot):
    used, left_out = judge(), judge((10.0, 12.0, 10.5, 12.3))
    said = [[str(line) for line in verdict_text.list_details(each, each.comparisons[0])] for each in (used, left_out)]
    assert [[line for line in lines if "earlier" in line] for lines in said] == snapshot


def test_experiments_of_before_are_found_by_recipe_prompts_and_time():
    """Not those that began later, of other prompts, or that have no report."""
    kept = {"a": modes(made_at=1.0), "b": modes(made_at=9.0), "c": modes(made_at=2.0, digest="another")}
    for name, of in {**kept, "d": modes(made_at=3.0)}.items():
        design = replace(of, id=name)
        folder = store.create_experiment(design)
        if name != "d":
            store.write_json(folder / store.REPORT, report_of(BEFORE[0], design))
    assert [each.design.id for each in store.list_earlier_reports(modes(made_at=5.0))] == ["a"]
