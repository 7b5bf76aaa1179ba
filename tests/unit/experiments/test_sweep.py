"""A sweep over numbers: its curve, its plateau and what is recommended."""

import pytest
from msgspec.structs import replace

from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.measures import collect_measure, compare_measure
from dflash_tui.experiments.analysis.report import Sweep
from dflash_tui.experiments.design import Boot, Design
from tests.support.boot_factories import boots, design, plan
from tests.support.values import present

ORDER = (0, 1, 2, 3, 3, 2, 1, 0)


def sweep(*values: str) -> Design:
    """An honest sweep over n."""
    return design("n", {value: plan(num_speculative_tokens=int(value)) for value in values}, ORDER)


def measured(of: Design, speeds: dict[str, float]) -> list[Boot]:
    """Two boots of each arm, 1 % apart."""
    names = [of.arms[arm].name for arm in ORDER]
    return boots(of, [speeds[name] * (1.0 if n < 4 else 1.01) for n, name in enumerate(names)])


def swept(of: Design, found: list[Boot]) -> Sweep:
    sweep = verdict.build_report(of, found).sweep
    assert sweep
    return sweep


def test_fastest_of_other_numbers_is_recommended():
    """Only of drafted tokens is fewer better by itself."""
    of = replace(sweep("8", "4", "15", "12"), vary="max-num-seqs")
    found = swept(of, measured(of, {"4": 8.0, "8": 10.0, "12": 10.1, "15": 7.0}))
    assert ([of.arms[arm].name for arm in found.plateau], found.recommended, found.to_best) == (["8", "12"], 3, None)


def test_all_comparisons_with_the_best_hold_together():
    """The intervals of a sweep are wider than that of one comparison: they have the level for all at once."""
    of = sweep("4", "8", "12", "15")
    found = measured(of, {"4": 10.0, "8": 9.0, "12": 9.0, "15": 9.0})
    report = verdict.build_report(of, found)
    assert report.sweep is not None
    point, alone = report.sweep.points[1], present(compare_measure(collect_measure(of, found, "tok/s"), 0, 1, "tok/s"))
    assert point.low == pytest.approx(alone.ratio(1 - 0.05 / 6).low * report.sweep.points[0].tok_s)
    assert point.high == pytest.approx(alone.ratio(1 - 0.05 / 6).high * report.sweep.points[0].tok_s)
    (first, *_) = report.comparisons
    assert first.test is not None
    assert [first.test.comparisons, first.test.level] == pytest.approx([6, 1 - 0.05 / 6])


def test_a_drift_makes_no_best():
    """A machine that loses a tenth over twelve boots makes none of four equal arms the only fast one."""
    of = design("n", {n: plan(num_speculative_tokens=int(n)) for n in ("4", "8", "12", "15")}, (*ORDER, 0, 1, 2, 3))
    jitter = (1.0, 1.004, 0.997, 1.002, 0.998, 1.003, 1.001, 0.996, 1.002, 0.999, 1.004, 0.997)
    found = boots(of, [10.0 * own * (1 - 0.1 * n / 11) for n, own in enumerate(jitter)])
    report = verdict.build_report(of, found)
    assert report.sweep is not None
    assert all(point.like_best for point in report.sweep.points)
    speeds = [point.tok_s for point in report.sweep.points]
    assert max(speeds) / min(speeds) < 1.01
    (first, *_) = report.comparisons
    assert first.test is not None
    assert first.test.drift == pytest.approx(-0.1, abs=0.01)


def test_without_speculation_is_a_point_like_any():
    """n=0 has a speed and no AL."""
    of = sweep("0", "4", "8", "12")
    found = swept(of, measured(of, {"0": 3.0, "4": 8.0, "8": 10.0, "12": 9.9}))
    assert found.points[0].al is None
    assert found.points[0].tok_s == pytest.approx(3.0 * 3 * 1.21, rel=0.01)


def test_a_refused_comparison_recommends_nothing():
    """The curve is shown, but no number is recommended from boots that were not alike."""
    of = sweep("4", "8", "12", "15")
    found = boots(of, [8.0, 10.0, 9.0, 7.0, 7.1, 9.1, 10.1, 8.1], driver="580")
    sweep_of_all = swept(of, [*found[:-1], *boots(of, [8.0] * 8, driver="590")[-1:]])
    assert sweep_of_all.recommended is None
    assert len(sweep_of_all.points) == 4


@pytest.mark.parametrize("names", [("4", "8"), ("on", "off", "8"), ("4", "8", "nan")])
def test_two_arms_or_words_are_no_sweep(names):
    """A sweep is three or more numbers."""
    of = design("x", {name: plan() for name in names}, range(len(names)))
    assert verdict.build_report(of, boots(of, [10.0] * len(names))).sweep is None


def test_an_arm_without_boots_has_no_point():
    """What never started is left out of the curve, and the rest is recommended from all the same."""
    of = sweep("4", "8", "12", "15")
    found = [b for b in measured(of, {"4": 8.0, "8": 10.0, "12": 9.0, "15": 7.0}) if b.arm != 3]
    assert [point.arm for point in swept(of, found).points] == [0, 1, 2]
    assert swept(of, found).recommended == 1
    assert verdict.build_report(of, []).sweep is None
