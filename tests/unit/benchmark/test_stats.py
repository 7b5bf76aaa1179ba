"""The numerics of an A/B against published tables and worked examples."""

import math

import pytest

from dflash_tui.benchmark.stats import (
    CLOSEST,
    SWING,
    UNSEEN,
    ArmDifference,
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


def boot(*speeds: float | list[float]) -> dict[PromptCell, list[float]]:
    """A boot with a request for each speed, each of another prompt; a list is several requests of one."""
    each = [speed if isinstance(speed, list) else [speed] for speed in speeds]
    return {PromptCell(f"p{i}"): [math.log(speed) for speed in speeds] for i, speeds in enumerate(each)}


@pytest.mark.parametrize(("level", "values"), TABLE)
def test_students_t_is_that_of_the_tables(level, values):
    """Every quantile agrees with the published table to its last digit."""
    assert {df: round(student_t_quantile(level, df), 3) for df in values} == values


def test_many_degrees_of_freedom_are_the_normal_distribution():
    """None stands for the normal quantile, which t comes close to."""
    assert student_t_quantile(0.975, None) == pytest.approx(1.959964, abs=1e-6)
    assert student_t_quantile(0.975, 100_000) == pytest.approx(student_t_quantile(0.975, None), abs=1e-4)


def test_two_boots_each_are_students_two_samples():
    """With prompts that say nothing of their own, the interval is the textbook's with pooled variance."""
    found = compare_arms([[boot(10.0), boot(10.5)], [boot(12.0), boot(12.2)]], 0, 1)
    assert found is not None
    spread = (math.log(10.5 / 10) ** 2 + math.log(12.2 / 12) ** 2) / 2 / 2
    assert found.df == 2
    assert found.error == pytest.approx(math.sqrt(spread * (1 / 2 + 1 / 2)))
    ratio = found.ratio()
    assert ratio.ratio == pytest.approx(math.sqrt(12 * 12.2 / 10 / 10.5))
    assert math.log(ratio.high / ratio.ratio) == pytest.approx(4.3027 * found.error, rel=1e-4)


def test_prompts_that_an_arm_treats_differently_widen_the_interval():
    """Boots that agree to the last digit leave what the prompts disagree in: a paired t over the prompts."""
    arm, other = boot(10.0, 20.0, 40.0), boot(11.0, 24.0, 40.0)
    found = compare_arms([[arm, arm], [other, other]], 0, 1, closest=0.0)
    assert found is not None
    logs = [math.log(1.1), math.log(1.2), 0.0]
    mean = sum(logs) / 3
    assert found.log == pytest.approx(mean)
    assert found.error == pytest.approx(math.sqrt(sum((log - mean) ** 2 for log in logs) / 2 / 3))
    assert found.df == 2


def test_boots_and_prompts_add_up():
    """What boots and what prompts differ by are added, with Satterthwaite's degrees of freedom: 1.6, so 1."""
    arm, other = [boot(10.0, 20.0), boot(10.5, 21.0)], [boot(11.0, 24.0), boot(11.0, 24.0)]
    found = compare_arms([arm, other], 0, 1)
    assert found is not None
    boots = math.log(1.05) ** 2 / 2 / 2
    prompts = (math.log(1.2) - math.log(1.1)) ** 2 / 2 / 2
    assert found.error == pytest.approx(math.sqrt(boots + prompts))
    assert (boots + prompts) ** 2 / (boots**2 / 2 + prompts**2 / 1) == pytest.approx(1.64, abs=0.01)
    assert found.df == 1


def test_the_noise_of_requests_is_counted_once():
    """Requests that swing within boots move prompts apart, too: that is in the boots' spread already."""
    noisy = [boot(10.0, 11.0, 10.0, 11.5), boot(11.0, 10.0, 11.0, 10.0)]
    found = compare_arms([noisy, [boot(11.0, 10.0, 11.5, 10.0), boot(10.0, 11.5, 10.0, 11.0)]], 0, 1, closest=0.0)
    assert found is not None
    means = [sum(map(math.log, speeds)) / 4 for speeds in ((10, 11, 10, 11.5), (11, 10, 11, 10))]
    assert found.error == pytest.approx(abs(means[0] - means[1]) / 2)


def test_boots_that_happen_to_agree_are_not_believed():
    """Two boots each that agree to the last digit leave an interval of what boots differ by at least."""
    found = compare_arms([[boot(10.0), boot(10.0)], [boot(10.3), boot(10.3)]], 0, 1)
    assert found is not None
    assert found.error == pytest.approx(CLOSEST)
    assert not found.is_shown


def test_one_boot_each_is_paired_by_prompt_and_never_surer_than_boots_are():
    """The interval is that of the prompts; less than two boots of one server differ by is never shown."""
    sure = compare_arms([[boot(10.0, 20.0, 30.0)], [boot(10.8, 21.6, 32.5)]], 0, 1)
    assert sure is not None
    assert sure.ratio().excludes_one
    assert sure.least == UNSEEN
    assert not sure.is_shown
    more = compare_arms([[boot(10.0, 20.0, 30.0)], [boot(11.8, 23.6, 35.5)]], 0, 1)
    assert more is not None
    assert more.is_shown


def test_one_prompt_of_one_boot_has_its_repetitions():
    """A pooled t over the requests, of all arms; with one request each, what such requests differed by elsewhere."""
    arms = [[boot([10.0, 10.2, 10.4])], [boot([11.0, 11.4])], [boot([12.0, 12.0, 12.0])]]
    found = compare_arms(arms, 0, 1)
    assert found is not None
    assert found.df == 5
    alone = compare_arms([[boot(35.9)], [boot(36.2)]], 0, 1)
    assert alone is not None
    assert alone.cv is None
    assert math.log(alone.ratio().high / alone.ratio().ratio) == pytest.approx(SWING)


def test_only_what_both_arms_were_asked_counts():
    """A prompt that one boot lacks is left out; arms without a common one are not compared."""
    found = compare_arms([[boot(10.0, 50.0), boot(10.0)], [boot(12.0, 1.0), boot(12.1, 1.0)]], 0, 1)
    assert found is not None
    assert found.ratio().ratio == pytest.approx(math.sqrt(1.2 * 1.21))
    assert compare_arms([[boot(10.0)], [{PromptCell("other"): [1.0]}]], 0, 1) is None
    assert compare_arms([[boot(10.0)], []], 0, 1) is None


def test_the_spread_of_all_arms_is_pooled():
    """A third arm's boots add a degree of freedom and their part of the spread."""
    two = [[boot(10.0), boot(10.5)], [boot(12.0), boot(12.2)]]
    more = compare_arms([*two, [boot(1.0), boot(1.0)]], 0, 1)
    less = compare_arms(two, 0, 1)
    assert more is not None
    assert less is not None
    assert (more.df, less.df) == (3, 2)
    assert more.error == pytest.approx(less.error * math.sqrt(2 / 3))


def test_a_difference_is_shown_only_beyond_twice_the_larger_variation():
    """An interval that excludes 1 is not enough when one arm's boots are far apart."""
    tight = [boot(10.0), boot(10.01), boot(10.02), boot(10.01), boot(10.0), boot(10.02)]
    loose = [boot(11.0), boot(10.2), boot(10.6), boot(11.2), boot(10.1), boot(10.9)]
    found = compare_arms([tight, loose], 0, 1)
    assert found is not None
    assert found.cv == pytest.approx(0.0422, abs=1e-3)
    assert found.ratio().excludes_one
    assert not found.is_shown


def test_what_is_detectable_has_a_power_of_80_percent():
    """The reach of the interval, or twice the variation, and another 0.84 standard errors."""
    sure, wild = ArmDifference(0.0, 0.02, None, 0.0, 0.0), ArmDifference(0.0, 0.02, None, 0.05, math.log(1.1))
    assert sure.detectable == pytest.approx(math.expm1((1.95996 + 0.84162) * 0.02), rel=1e-4)
    assert wild.detectable == pytest.approx(math.expm1(math.log(1.1) + 0.84162 * 0.02), rel=1e-4)


def test_the_variation_of_single_requests_is_half_of_their_differences():
    """Of one boot each with one request per prompt: both requests of a pair vary."""
    found = compare_arms([[boot(10.0, 10.0)], [boot(11.0, 12.0)]], 0, 1)
    assert found is not None
    assert found.cv == pytest.approx(math.log(12 / 11) / 2, rel=1e-2)
