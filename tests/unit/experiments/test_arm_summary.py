"""The figures of an arm: medians of boots, each boot once, and nothing where nothing was measured."""

import pytest
from msgspec.structs import replace

from dflash_tui.experiments.analysis import measures
from tests.support.experiment_factories import a_boot, a_design, a_request, boots


def test_a_boot_counts_once():
    """An arm with a thousand requests in one boot and ten in another has the median of two values."""
    many = a_boot(0, 0, requests=tuple(a_request("Q&A", 0, 10.0, 3.0) for _ in range(100)))
    few = a_boot(1, 0, requests=tuple(a_request("Q&A", 0, 20.0, 4.0) for _ in range(3)))
    found = measures.summarize_arm([many, few, a_boot(2, 1)], 0)
    assert found.steps_s
    assert list(found.steps_s) == pytest.approx([15, 10, 20, 2])
    assert found.al
    assert found.al.median == pytest.approx(3.5)
    assert (found.boots, found.requests) == (2, 103)


def test_cold_and_cached_starts_stay_apart():
    """A start that says nothing of a cache has none: no start of it is a cached one."""
    found = measures.summarize_arm(
        [a_boot(0, 0, cache="cold", ready=100.0), a_boot(1, 0, cache="cached", ready=30.0)], 0
    )
    assert [figure and figure.median for figure in (found.cold, found.cached)] == [100.0, 30.0]
    without = measures.summarize_arm([a_boot(0, 0, ready=7.0)], 0)
    assert without.cached is None
    assert without.cold
    assert without.cold.median == 7.0


def test_failed_boots_and_requests_measure_nothing():
    """What failed is counted and has no part in a figure."""
    design = a_design()
    made = [replace(boot, error="died") if boot.number == 0 else boot for boot in boots(design, (10.0, 10.0))]
    found = measures.summarize_arm(made, 0)
    assert (found.boots, found.failed) == (1, 1)
    broken = a_boot(0, 0, requests=(a_request("Q&A", 0, 10.0, 3.0, error="HTTP 500"),))
    assert measures.summarize_arm([broken], 0).tok_s is None


def test_without_speculation_there_are_no_steps():
    """Tokens per second are still there."""
    plain = a_boot(0, 0, requests=(a_request("Q&A", 0, 10.0, 1.0, steps=None, accepted=None),))
    found = measures.summarize_arm([plain], 0)
    assert found.steps_s is None
    assert found.al is None
    assert found.tok_s
    assert found.tok_s.median == pytest.approx(10.0)
