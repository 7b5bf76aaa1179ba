"""Finished requests one by one: our own, and those of others from the counters."""

import math
import random
import re
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from dflash_tui.events import WARM_UP, Counters, RequestDone, Sampled
from dflash_tui.run_state.finished_requests import FinishedRequest, SlowCycle, find_slow_cycle
from tests.support import request_streams
from tests.support.request_streams import PUBLISHED
from tests.support.states import fold
from tests.support.values import present


def counted(at: float, requests: int, tokens: float, seconds: float, steps: float, *, running: int = 0) -> Sampled:
    made = Counters(
        tokens, steps=steps, proposed=7 * steps, accepted=3 * steps, running=running,
        finished=requests, finished_tokens=tokens, decode_seconds=seconds,
    )  # fmt: skip
    return Sampled(at, made)


def test_foreign_requests_are_measured_from_counters():
    """Speed is of the decoding alone, by the server's own clock, however coarsely it is asked."""
    state = fold(
        counted(0, 0, 0, 0, 0), counted(1, 0, 0, 0, 20, running=1),
        counted(2, 1, 101, 0.5, 25), counted(9, 1, 101, 0.5, 25), counted(10, 3, 303, 1.5, 75),
    )  # fmt: skip
    one, two, three = state.finished.requests
    assert (one.at, one.kind, one.averaged_over) == (2, "", 1)
    assert [one.tok_s, one.acceptance_length, one.steps_s] == pytest.approx([200.0, 4.0, 50.0])
    assert two == three
    assert [two.averaged_over, two.tok_s] == pytest.approx([2, 200.0])


@pytest.mark.parametrize(("counted_first", "at"), [(False, 5.3), (True, 4.8)])
def test_our_own_request_is_one_cell(counted_first, at):
    """The counters show it too, a little before or after it is recorded; it is not counted twice."""
    own = RequestDone(5.0, "Code", 101, 9, 0.1, 0.6, 210.0, "length", steps=25.0, accepted=75.0)
    seen = counted(at, 1, 101, 0.5, 25)
    state = fold(counted(4.0, 0, 0, 0, 0), *((seen, own) if counted_first else (own, seen)))
    [cell] = state.finished.requests
    assert (cell.kind, cell.tok_s, cell.acceptance_length) == ("Code", 210.0, 4.0)
    assert cell.steps_s == pytest.approx(52.5)
    state.apply(counted(8.0, 2, 202, 1.0, 50))
    assert [request.kind for request in state.finished.requests] == ["Code", ""]


def test_requests_of_the_recorder_are_none():
    """What we send to look after the server is no measurement."""
    state = fold(counted(4.0, 0, 0, 0, 0), RequestDone(5.0, WARM_UP, 8), counted(5.5, 1, 8, 0.1, 2))
    assert not state.finished.requests


def test_failed_request_has_no_figures():
    [cell] = fold(counted(0, 0, 0, 0, 0), RequestDone(5.0, "Math", error="HTTP 500")).finished.requests
    assert (cell.failed, cell.tok_s) == (True, None)


def test_requests_finished_in_reading_gap_are_omitted():
    """Over a hole in the readings nothing is known of single requests."""
    state = fold(counted(0, 0, 0, 0, 0), counted(100, 50, 5000, 30, 1200), counted(101, 51, 5101, 30.5, 1225))
    assert [round(request.tok_s or 0) for request in state.finished.requests] == [200]


def test_slow_cycle_is_found_in_finished_requests():
    """From the counters of the server alone, and not searched for again until another request finishes."""
    state, tokens, seconds, steps = fold(counted(0, 0, 0, 0, 0)), 0.0, 0.0, 0.0
    for place in range(40):
        speed = (221, 214, 218, 222, 230, 103, 59, 62, 62, 212)[place % 10]
        tokens, seconds, steps = tokens + 101, seconds + 100 / speed, steps + 25
        state.apply(counted(10.0 * place + 5, place, tokens - 101, seconds - 100 / speed, steps - 20, running=1))
        state.apply(counted(10.0 * place + 10, place + 1, tokens, seconds, steps))
    found = present(state.finished.cycle)
    assert (found.period, found.slow, found.cause) == (10, 4, "steps/s")
    assert state.finished.cycle is found


def test_foreign_prompts_are_distinguished_by_size():
    """Five prompts in turn are no cycle of the server's, though nobody says which was asked."""
    state, tokens, seconds, asked = fold(counted(0, 0, 0, 0, 0)), 0.0, 0.0, 0.0
    for place in range(60):
        tokens, seconds, asked = (
            tokens + 101,
            seconds + 100 / (240, 240, 240, 61, 61)[place % 5],
            asked + 31 + place % 5,
        )
        reading = counted(10.0 * place + 10, place + 1, tokens, seconds, 25 * place)
        state.apply(replace(reading, counters=replace(reading.counters, finished_prompt_tokens=asked)))
    assert [request.prompt_tokens for request in state.finished.requests][1:7] == [32, 33, 34, 35, 31, 32]
    assert state.finished.cycle is None


def test_figures_without_earlier_count_are_unknown():
    """What was accepted since the server's start is no figure of one request."""
    before = Sampled(0, Counters(0, steps=9000.0, finished=0))
    [request] = fold(before, counted(5, 1, 101, 0.5, 9025)).finished.requests
    assert (request.acceptance_length, request.prompt_tokens) == (None, None)


def cycle_of(requests: Sequence[FinishedRequest]) -> SlowCycle:
    return present(find_slow_cycle(requests))


def trace(speeds, length: Callable[[float], float] = lambda _: 5.0) -> list[FinishedRequest]:
    return [FinishedRequest(float(at), "", s, length(s), s / length(s)) for at, s in enumerate(speeds)]


def published(count: int, rnd: random.Random, noise: float = 0.03) -> list[float]:
    return [PUBLISHED[place % 10] * rnd.gauss(1, noise) for place in range(count)]


def test_falling_acceptance_in_cycle_blames_drafter():
    """Speed follows the acceptance length at a constant rate of steps: the drafter is to blame."""
    found = present(
        find_slow_cycle(trace((PUBLISHED[place % 10] for place in range(26)), lambda speed: 5.2 * speed / 220))
    )
    assert (found.period, found.slow, found.cause) == (10, 4, "acceptance length")
    assert re.findall(r"\d+", found.what)[:3] == ["4", "10", "62"]
    assert found.evidence.endswith("the drafter")


def test_falling_steps_in_cycle_blame_engine():
    """Speed falls at a constant acceptance length: the engine is to blame."""
    found = cycle_of(trace(PUBLISHED[place % 10] for place in range(26)))
    assert (found.period, found.slow, found.cause) == (10, 4, "steps/s")
    assert found.evidence.endswith("the engine")


def test_both_may_fall():
    found = cycle_of(trace((PUBLISHED[place % 10] for place in range(50)), math.sqrt))
    assert found.cause == "both"


def test_a_cycle_that_begins_late_is_found():
    """Two hundred steady requests before it do not hide it."""
    rnd = random.Random(3)
    found = cycle_of(trace([*(rnd.gauss(220, 6) for _ in range(300)), *published(50, rnd)]))
    assert found.period == 10


def test_alternating_prompt_kinds_are_no_cycle():
    """Five kinds sent in rounds differ in speed by themselves; within each kind nothing cycles."""
    rnd = random.Random(5)
    kinds = {"Q&A": 120, "Code": 240, "JSON": 260, "Math": 80, "LongCode": 230}
    requests = [
        FinishedRequest(float(at), kind, speed * rnd.gauss(1, 0.04))
        for at, (kind, speed) in enumerate(list(kinds.items()) * 12)
    ]
    assert find_slow_cycle(requests) is None
    slowed = [r._replace(tok_s=(r.tok_s or 0) * PUBLISHED[place % 10] / 220) for place, r in enumerate(requests)]
    found = cycle_of(slowed)
    assert (found.period, found.cause) == (10, "")


@pytest.mark.parametrize("speeds", [[5.0], [5.0] * 100, [None] * 50])
def test_little_or_odd_is_no_cycle(speeds):
    assert find_slow_cycle([FinishedRequest(float(at), "", speed) for at, speed in enumerate(speeds)]) is None


@pytest.mark.parametrize("row", request_streams.CYCLES, ids=lambda row: row.stream.name)
def test_a_cycle_is_named_in_time(row):
    """Asked after each request, wherever in its cycle the server is: the first that is named is the right one."""
    rng = random.Random(row.stream.name)
    for _ in range(10):
        first = present(request_streams.find_first(request_streams.draw_requests(rng, row.stream)))
        count, cycle = first
        assert (cycle.period, cycle.slow) == (row.period, row.slow)
        assert count <= row.within


@pytest.mark.parametrize("stream", request_streams.NULLS, ids=lambda stream: stream.name)
def test_streams_without_cycle_give_no_false_alarms(stream):
    """Asked after each request; docs/numbers.md says how many of a thousand streams are called one."""
    assert request_streams.count_false_alarms(stream, 12) <= 1


def test_means_of_several_requests_are_no_cycle():
    """Four at once between two readings are one speed, not four that agree."""
    means = [request for request in trace([220, 61] * 20) for _ in range(4)]
    assert find_slow_cycle([request._replace(averaged_over=4) for request in means]) is None
