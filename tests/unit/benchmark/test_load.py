"""Loads on a server: what is under way, what counts, when requests arrive; time is simulated."""

import asyncio
from collections.abc import Iterator
from itertools import count, islice, pairwise
from statistics import fmean

import pytest

from dflash_tui.benchmark import load
from dflash_tui.benchmark.load import Load, LoadRecord, MeasuredWindow
from dflash_tui.benchmark.prompts import Prompt
from dflash_tui.benchmark.sse import CompletionStream
from dflash_tui.events import FILLER, RequestDone

# Seconds of an answer: one is much longer than the others, as in the suite `field`.
LENGTHS = (2.0, 1.0, 0.5, 8.0, 1.5, 1.0, 0.5)


class Clock(asyncio.SelectorEventLoop):
    """An event loop that does not wait: where it would sleep, its clock goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        select = self._selector.select  # type: ignore[attr-defined]

        def skip(timeout: float | None = None) -> object:
            self.now += timeout or 0.0
            return select(0)

        self._selector.select = skip  # type: ignore[attr-defined]

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Iterator[Clock]:
    loop = Clock()
    monkeypatch.setattr("time.perf_counter", loop.time)
    yield loop
    loop.close()


def prompts(lengths: tuple[float, ...], first: int = 0) -> Iterator[tuple[Prompt, int]]:
    return ((Prompt(f"{place % len(lengths)}", "x", 8), place) for place in count(first))


def run(
    clock: Clock,
    of: Load,
    requests: int = 16,
    *,
    failing: bool = False,
    takes: float = 0.0,
) -> tuple[list[RequestDone], MeasuredWindow, list[float]]:
    """Send requests of those lengths, four tokens a second each; return them, the window, and when each began.

    Who takes a request as it ends `takes` so many seconds before the next.
    """
    joules, began = iter(range(0, 100_000, 100)), list[float]()

    async def send(prompt: Prompt, number: int, stream: CompletionStream, *, counts: bool) -> RequestDone:
        began.append(clock.now)
        if failing and not counts:
            return RequestDone(0.0, prompt.kind, error="no")
        for token in range(1, round(LENGTHS[int(prompt.kind)] * 4) + 1):
            await asyncio.sleep(0.25)
            stream.arrivals.take(token, carries=True)
        return RequestDone(0.0, prompt.kind, tokens=token)

    async def collect(record: LoadRecord) -> list[RequestDone]:
        counted = list(islice(prompts(LENGTHS), requests))
        taken = []
        async for one in load.keep_under_way(record, counted, prompts(LENGTHS, requests), send, seed=3):
            taken.append(one)
            await asyncio.sleep(takes)
        return taken

    record = LoadRecord(of, lambda: float(next(joules)))
    done = clock.run_until_complete(collect(record))
    return done, record.measure_window(), began


@pytest.mark.parametrize("streams", [2, 4, 8])
def test_load_keeps_concurrency_until_last_counted_request(clock, streams):
    """Sixteen requests count, whatever others keep them company, and the tokens of both are in the output."""
    done, window, began = run(clock, Load(streams))
    assert sum(request.kind != FILLER for request in done) == 16
    assert window.under_way == pytest.approx(streams, rel=0.01)
    assert window.tok_s == pytest.approx(4 * streams, rel=0.05)
    assert len(done) == len(began)
    assert window.answers <= len(done)
    assert window.filler_tokens > 0
    assert window.joules == 1600.0
    assert window.joules_per_token == pytest.approx(1600.0 / window.tokens)


def test_slow_consumer_does_not_delay_next_request(clock):
    """A disk may take a while to keep each: by then the next one is under way."""
    _, window, began = run(clock, Load(4, refill=False), 40, takes=0.2)
    assert began[4] == 0.5  # the shortest of the first four has just ended
    assert window.under_way > 3


def test_requests_begun_during_ramp_are_not_counted(clock):
    """One more may be under way each half second, for four seconds; those that are over are followed by others."""
    load = Load(8, ramp=4.0)
    assert [load.most_at(seconds) for seconds in (0.0, 0.4, 0.6, 3.9, 4.0, 9.0)] == [1, 1, 2, 8, 8, 8]
    done, window, began = run(clock, load)
    assert sum(at < 0.49 for at in began) == 1
    assert {round(2 * at) for at in began if at < 3.9} == set(range(8))
    assert sum(at < 3.9 for at in began) > 8
    assert sum(request.kind != FILLER for request in done) == 16
    assert window.under_way == pytest.approx(8, rel=0.02)


def test_arrivals_at_rate_are_poisson_process(clock):
    """Gaps are those of an exponential distribution, and as many are under way as Little's law says."""
    done, window, began = run(clock, Load(0, rate=3.0), requests=400)
    gaps = [later - earlier for earlier, later in pairwise(began)]
    assert fmean(gaps) == pytest.approx(1 / 3, rel=0.1)
    assert fmean(gap**2 for gap in gaps) == pytest.approx(2 / 9, rel=0.25)
    assert window.under_way == pytest.approx(3 * fmean(LENGTHS), rel=0.15)
    assert (window.streams, window.rate) == (0, 3.0)
    assert sum(request.kind != FILLER for request in done) == 400


def test_a_rate_rises_over_its_ramp():
    """Half as many arrive in it as in as long a time after it."""
    starts = [list(islice(Load(0, rate=10.0, ramp=20.0).list_starts(seed), 400)) for seed in range(20)]
    early, late = (fmean(sum(low <= at < low + 20 for at in each) for each in starts) for low in (0, 20))
    assert early == pytest.approx(100, rel=0.1)
    assert late == pytest.approx(200, rel=0.1)


def test_fillers_that_fail_are_not_sent_again(clock):
    """A server that refuses them at once would be asked a thousand times a second."""
    done, _, began = run(clock, Load(8), failing=True)
    assert len(began) == len(done) <= 16 + 8


def test_tokens_are_counted_where_they_arrived(monkeypatch):
    """In a part of the time, of a server that counts and of one that does not."""
    clock = iter([0.0, *(float(n) for n in range(1, 5))] * 2)
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    for counting in (True, False):
        stream = CompletionStream("x")
        for tokens in (1, 4, 7, 12):
            stream.arrivals.take(tokens if counting else None, carries=True)
        parts = [(0.0, 9.0), (2.0, 3.5), (3.5, 9.0), (5.0, 9.0)]
        counted = [stream.count_tokens(*part) for part in parts]
        assert counted == ([12, 6, 5, 0] if counting else [4, 2, 1, 0])


def test_token_gaps_exclude_failed_requests():
    """As all other latencies are: what came before an error says little of what comes between tokens."""
    record = LoadRecord(Load(1))
    for kind, failed in (("Math", False), ("Code", True)):
        stream = CompletionStream(kind)
        flight = record.begin_flight(stream, counts=True)
        for tokens in (1, 2, 3):
            stream.arrivals.take(tokens, carries=True)
        record.end_flight(flight, failed=failed)
    assert {kind: len(gaps) for kind, gaps in record.gaps.items()} == {"Math": 2}
