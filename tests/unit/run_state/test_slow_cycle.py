"""The published cycle is named with its cause; noise is not called a cycle."""

import math
import random
import re
from collections.abc import Callable

import pytest

from dflash_tui.run_state.finished_requests import FinishedRequest, find_slow_cycle
from tests.support import request_streams
from tests.support.request_streams import PUBLISHED


def trace(speeds, length: Callable[[float], float] = lambda _: 5.0) -> list[FinishedRequest]:
    return [FinishedRequest(float(at), "", s, length(s), s / length(s)) for at, s in enumerate(speeds)]


def published(count: int, rnd: random.Random, noise: float = 0.03) -> list[float]:
    return [PUBLISHED[place % 10] * rnd.gauss(1, noise) for place in range(count)]


@pytest.mark.parametrize("count", [26, 75])
def test_the_published_cycle_is_named_when_acceptance_falls(count):
    """Speed follows the acceptance length at a constant rate of steps: the drafter is to blame."""
    found = find_slow_cycle(trace((PUBLISHED[place % 10] for place in range(count)), lambda speed: 5.2 * speed / 220))
    assert found is not None
    assert (found.period, found.slow, found.cause) == (10, 4, "acceptance length")
    assert re.findall(r"\d+", found.what)[:3] == ["4", "10", "62"]
    assert found.evidence.endswith("the drafter")


@pytest.mark.parametrize("count", [26, 75])
def test_the_published_cycle_is_named_when_steps_fall(count):
    """Speed falls at a constant acceptance length: the engine is to blame."""
    found = find_slow_cycle(trace(PUBLISHED[place % 10] for place in range(count)))
    assert found is not None
    assert (found.period, found.slow, found.cause) == (10, 4, "steps/s")
    assert found.evidence.endswith("the engine")


def test_both_may_fall():
    found = find_slow_cycle(trace((PUBLISHED[place % 10] for place in range(50)), math.sqrt))
    assert found is not None
    assert found.cause == "both"


def test_noise_on_the_cycle_and_a_few_odd_requests_do_not_hide_it():
    """With 10 % noise and one odd request in thirty it is found nearly always."""
    rnd = random.Random(7)
    seen = 0
    for _ in range(200):
        speeds = [s if rnd.random() > 1 / 30 else 62.0 for s in published(60, rnd, 0.1)]
        found = find_slow_cycle(trace(speeds))
        seen += found is not None and found.period == 10
    assert seen >= 190


def test_a_cycle_that_begins_late_is_found():
    """Two hundred steady requests before it do not hide it."""
    rnd = random.Random(3)
    found = find_slow_cycle(trace([*(rnd.gauss(220, 6) for _ in range(300)), *published(50, rnd)]))
    assert found is not None
    assert found.period == 10


def test_kinds_of_prompts_in_turn_are_no_cycle():
    """Five kinds sent in rounds differ in speed by themselves; within each kind nothing cycles."""
    rnd = random.Random(5)
    kinds = {"Q&A": 120, "Code": 240, "JSON": 260, "Math": 80, "LongCode": 230}
    requests = [
        FinishedRequest(float(at), kind, speed * rnd.gauss(1, 0.04))
        for at, (kind, speed) in enumerate(list(kinds.items()) * 12)
    ]
    assert find_slow_cycle(requests) is None
    slowed = [r._replace(tok_s=(r.tok_s or 0) * PUBLISHED[place % 10] / 220) for place, r in enumerate(requests)]
    found = find_slow_cycle(slowed)
    assert found is not None
    assert (found.period, found.cause) == (10, "")


@pytest.mark.parametrize("speeds", [[], [5.0], [5.0] * 100, [1e-9, 1e9] * 3, [None] * 50])
def test_little_or_odd_is_no_cycle(speeds):
    assert find_slow_cycle([FinishedRequest(float(at), "", speed) for at, speed in enumerate(speeds)]) is None


@pytest.mark.parametrize("row", request_streams.CYCLES, ids=lambda row: row.stream.name)
def test_a_cycle_is_named_in_time(row):
    """Asked after each request, wherever in its cycle the server is: the first that is named is the right one."""
    rng = random.Random(row.stream.name)
    for _ in range(10):
        first = request_streams.find_first(request_streams.draw_requests(rng, row.stream))
        assert first is not None
        count, cycle = first
        assert (cycle.period, cycle.slow) == (row.period, row.slow)
        assert count <= row.within


@pytest.mark.parametrize("stream", request_streams.NULLS, ids=lambda stream: stream.name)
def test_what_is_no_cycle_of_the_server_is_none(stream):
    """Asked after each request; docs/numbers.md says how many of a thousand streams are called one."""
    assert request_streams.count_false_alarms(stream, 12) <= 1


def test_means_of_several_requests_are_no_cycle():
    """Four at once between two readings are one speed, not four that agree."""
    means = [request for request in trace([220, 61] * 20) for _ in range(4)]
    assert find_slow_cycle([request._replace(averaged_over=4) for request in means]) is None
