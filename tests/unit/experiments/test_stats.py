"""The numerics of an A/B against published tables and worked examples."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from dflash_tui.experiments.analysis.stats import (
    ArmDifference,
    BootLogs,
    PromptCell,
    compare_arms,
    student_t_quantile,
)

# Two-sided 95 % and 99 %, one-sided 80 %, by degrees of freedom: NIST/SEMATECH e-Handbook 1.3.6.7.2.
TABLE = [
    (0.975, {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 9: 2.262, 10: 2.228, 30: 2.042, 100: 1.984}),
    (0.995, {1: 63.657, 2: 9.925, 3: 5.841, 4: 4.604, 5: 4.032, 6: 3.707, 9: 3.250, 10: 3.169, 30: 2.750, 100: 2.626}),
    (0.90, {1: 3.078, 2: 1.886, 3: 1.638, 4: 1.533, 5: 1.476, 6: 1.440, 9: 1.383, 10: 1.372, 30: 1.310, 100: 1.290}),
]


def boot(*speeds: float | list[float]) -> BootLogs:
    """A boot with a request for each speed, each of another prompt; a list is several requests of one."""
    each = [speed if isinstance(speed, list) else [speed] for speed in speeds]
    return BootLogs({PromptCell(f"p{i}"): [math.log(speed) for speed in speeds] for i, speeds in enumerate(each)})


def compared(arms: Sequence[Sequence[BootLogs]], a: int = 0, b: int = 1, **how: Any) -> ArmDifference:
    """How far two arms that share a prompt are apart."""
    found = compare_arms(arms, a, b, **how)
    assert found
    return found


@pytest.mark.parametrize(("level", "values"), TABLE)
def test_students_t_is_that_of_the_tables(level, values):
    """Every quantile agrees with the published table to its last digit."""
    assert {df: round(student_t_quantile(level, df), 3) for df in values} == values


def test_each_arm_has_its_own_spread():
    """Welch's two samples: a tight arm is not believed to be as loose as the other, nor the other as tight."""
    arms = [[boot(10.0), boot(10.5)], [boot(12.0), boot(12.6)]]
    found = compared(arms)
    spreads = [math.log(1.05) ** 2 / 2, math.log(1.05) ** 2 / 2]
    assert found.error == pytest.approx(math.sqrt(spreads[0] / 2 + spreads[1] / 2))
    assert found.df == pytest.approx(2)
    ratio = found.ratio()
    assert ratio.ratio == pytest.approx(1.2)
    assert math.log(ratio.high / ratio.ratio) == pytest.approx(4.3027 * found.error, rel=1e-4)
    unlike = compared([[boot(10.0), boot(13.0)], [boot(12.0), boot(12.4)]])
    spreads = [math.log(1.3) ** 2 / 2 / 2, math.log(12.4 / 12) ** 2 / 2 / 2]
    assert unlike.error == pytest.approx(math.sqrt(sum(spreads)))
    assert unlike.df == pytest.approx(sum(spreads) ** 2 / sum(spread**2 for spread in spreads))
    assert list(unlike.cvs) == [pytest.approx(0.187, abs=1e-3), pytest.approx(0.0232, abs=1e-4)]
    assert unlike.cv == unlike.cvs[0]


@pytest.mark.parametrize(
    ("level", "df", "value"),
    [
        (0.975, 1.5, 6.016663),
        (0.975, 2.5, 3.574655),
        (0.975, 3.7, 2.867521),
        (0.9986, 1.25, 81.08058),
        (0.8, 1.5, 1.153364),
    ],
)
def test_degrees_of_freedom_need_not_be_whole(level, df, value):
    """Quantiles between whole degrees of freedom are those of SciPy 1.17."""
    assert student_t_quantile(level, df) == pytest.approx(value, rel=1e-6)


def test_prompts_treated_differently_widen_interval():
    """Boots that agree to the last digit leave what the prompts disagree in: a paired t over the prompts."""
    arm, other = boot(10.0, 20.0, 40.0), boot(11.0, 24.0, 40.0)
    found = compared([[arm, arm], [other, other]], closest=0.0)
    logs = [math.log(1.1), math.log(1.2), 0.0]
    mean = sum(logs) / 3
    assert found.log == pytest.approx(mean)
    assert found.error == pytest.approx(math.sqrt(sum((log - mean) ** 2 for log in logs) / 2 / 3))
    assert found.df == 2


def test_the_noise_of_requests_is_counted_once():
    """Requests that swing within boots move prompts apart, too: that is in the boots' spread already."""
    noisy = [boot(10.0, 11.0, 10.0, 11.5), boot(11.0, 10.0, 11.0, 10.0)]
    found = compared([noisy, [boot(11.0, 10.0, 11.5, 10.0), boot(10.0, 11.5, 10.0, 11.0)]], closest=0.0)
    means = [sum(map(math.log, speeds)) / 4 for speeds in ((10, 11, 10, 11.5), (11, 10, 11, 10))]
    assert found.error == pytest.approx(abs(means[0] - means[1]) / 2)


def test_only_prompts_of_both_arms_count():
    """A prompt that one boot lacks is left out; arms without a common one are not compared."""
    found = compared([[boot(10.0, 50.0), boot(10.0)], [boot(12.0, 1.0), boot(12.1, 1.0)]])
    assert found.ratio().ratio == pytest.approx(math.sqrt(1.2 * 1.21))
    assert compare_arms([[boot(10.0)], [BootLogs({PromptCell("other"): [1.0]})]], 0, 1) is None
    assert compare_arms([[boot(10.0)], []], 0, 1) is None


def test_an_interval_of_any_width_stays_finite():
    """Boots that have nothing in common, compared at the level of 36 pairs, leave a number that JSON can hold."""
    found = compared([[boot(1.0), boot(1e9)], [boot(1.0), boot(1e-9)]], comparisons=36)
    assert 0 < found.ratio().low < 1e-100
    assert 1e100 < found.ratio().high < math.inf
    assert found.detectable < math.inf


def test_no_arm_is_tighter_than_pooled_arms():
    """Two boots that came out alike have the spread of all six; an arm that spreads more keeps its own."""
    tight, loose, usual = [boot(10.0), boot(10.0)], [boot(12.0), boot(15.0)], [boot(10.0), boot(10.6)]
    variances = [math.log(15 / 12) ** 2 / 2, math.log(10.6 / 10) ** 2 / 2]
    pooled = sum(variances) / 3
    found = compared([tight, usual, loose])
    assert found.error == pytest.approx(math.sqrt(pooled / 2 + pooled / 2))
    assert found.df == pytest.approx(3)
    wide = compared([tight, usual, loose], 0, 2)
    assert wide.error == pytest.approx(math.sqrt(pooled / 2 + variances[0] / 2))
    assert wide.cvs[0] == pytest.approx(0.0)


def test_levels_are_no_sample_of_prompts():
    """An arm that gains more the longer the context is has a mean gain over these contexts, which is no chance."""
    speeds, gains = (30.0, 29.0, 27.0, 24.0), (1.05, 1.29, 1.49, 1.91)
    ours = [boot(*(speed * noise for speed in speeds)) for noise in (1.0, 1.01)]
    faster = [speed * gain for speed, gain in zip(speeds, gains, strict=True)]
    theirs = [boot(*(speed * noise for speed in faster)) for noise in (0.99, 1.0)]
    sample, levels = (compared([ours, theirs], text=0.05, levels=is_so) for is_so in (False, True))
    assert (sample.is_shown, levels.is_shown) == (False, True)
    assert levels.ratio().ratio == pytest.approx(math.exp(sum(map(math.log, gains)) / 4) * 0.99, rel=1e-2)
    boots_only = compared([ours, theirs], levels=True)
    assert levels.error**2 == pytest.approx(boots_only.error**2 + 0.05**2 / 4)
