"""A load on a server: when each request is sent, which of them count, and what is measured while they do.

Requests that count are the same in every boot, and as many as were asked for are under way as long as they are:
*fillers* take the places of those that are over, and are broken off when the last one that counts has ended.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import msgspec

from dflash_tui.benchmark.prompts import Prompt
from dflash_tui.benchmark.sse import CompletionStream
from dflash_tui.events import BROKEN_OFF, FILLER, Amount, RequestDone, Whole

# However fast requests arrive, no more than these are under way.
MOST_UNDER_WAY = 1024


class Load(NamedTuple):
    """How requests come to a server: so many under way at a time, or by a rate."""

    streams: int = 1
    """How many are under way at a time; 0 where they come by a rate."""
    rate: float = 0.0
    """Requests per second, which arrive at random (Poisson); 0 where so many are under way at a time."""
    ramp: float = 0.0
    """Seconds over which the load rises; requests that begin meanwhile do not count."""
    refill: bool = True
    """Whether fillers keep the load up until the last request that counts has ended."""

    def most_at(self, seconds: float) -> int:
        """Return how many may be under way so long after the beginning."""
        if not self.streams:
            return MOST_UNDER_WAY
        return self.streams if seconds >= self.ramp else 1 + int(self.streams * seconds / self.ramp)

    def next_rise(self, seconds: float) -> float:
        """Return at which second one more may be under way; infinity where the load rises no more."""
        return self.ramp * self.most_at(seconds) / self.streams if self.streams and seconds < self.ramp else math.inf

    def list_starts(self, seed: int) -> Iterator[float]:
        """Yield for each request when it may begin: the times of a Poisson process, thinned while its rate rises."""
        while not self.rate:
            yield 0.0
        draw, at = random.Random(seed), 0.0  # noqa: S311 - nothing secret
        while True:
            at += draw.expovariate(self.rate)
            if at >= self.ramp or draw.random() < at / self.ramp:
                yield at


class MeasuredWindow(msgspec.Struct, frozen=True, omit_defaults=True):
    """The time from when the first request that counts began until the last one ended, and what happened in it."""

    streams: Whole
    """How many requests were to be under way; 0 where they came by a rate."""
    seconds: Amount
    """How long it was."""
    tokens: Whole
    """The tokens that arrived in it, of whichever request."""
    under_way: Amount
    """How many requests were under way on average."""
    answers: Whole = 0
    """How many requests were answered or begun to be, those before and after it included."""
    filler_tokens: Whole = 0
    """The tokens of requests that do not count, in it or not."""
    joules: Amount | None = None
    """What the GPUs consumed in it; None where the driver does not say."""
    rate: Amount = 0.0
    """The requests per second that were to arrive; 0 where so many were to be under way."""
    completed: Whole = 0
    """How many requests ended in it, those that do not count included."""
    filler_failures: Whole = 0
    """How many requests that do not count failed; after the first one no more were sent."""

    @property
    def tok_s(self) -> float | None:
        """The output of all requests per second."""
        return self.tokens / self.seconds if self.seconds else None

    @property
    def joules_per_token(self) -> float | None:
        """The energy of an output token."""
        return None if self.joules is None or not self.tokens else self.joules / self.tokens


@dataclass(eq=False)
class Flight:
    """A request that is under way or was."""

    stream: CompletionStream
    counts: bool
    began: float
    ended: float | None = None
    failed: bool = False


class LoadRecord:
    """Takes down what is under way while a load is on, and sums up its window."""

    def __init__(self, load: Load, meter: Callable[[], float | None] | None = None) -> None:
        """Make the record of a load; `meter` returns the joules that the GPUs have consumed until now."""
        self.load, self._meter = load, meter
        self._flights: list[Flight] = []
        self._joules: list[float | None] = []

    def begin_flight(self, stream: CompletionStream, *, counts: bool) -> Flight:
        """Take down that a request begins."""
        if counts and self._meter and not self._joules:
            self._joules.append(self._meter())
        self._flights.append(flight := Flight(stream, counts, time.perf_counter()))
        return flight

    def end_flight(self, flight: Flight, *, failed: bool = False) -> None:
        """Take down that a request is over, or was broken off."""
        flight.ended, flight.failed = time.perf_counter(), failed
        if flight.counts and self._meter:
            self._joules[1:] = [self._meter()]

    @property
    def gaps(self) -> dict[str, list[float]]:
        """The seconds between arrivals of requests that count and did not fail, by prompt."""
        gaps: dict[str, list[float]] = {}
        for flight in self._flights:
            if flight.counts and not flight.failed:
                gaps.setdefault(flight.stream.kind, []).extend(flight.stream.arrivals.gaps)
        return gaps

    def measure_window(self) -> MeasuredWindow:
        """Return what happened while requests counted, after all of them are over."""
        counted = [flight for flight in self._flights if flight.counts and flight.ended is not None]
        began = min((flight.began for flight in counted), default=0.0)
        ended = max((flight.ended or 0.0 for flight in counted), default=0.0)
        fillers = [flight for flight in self._flights if not flight.counts]
        overlaps = (
            max(0.0, min(ended if f.ended is None else f.ended, ended) - max(f.began, began)) for f in self._flights
        )
        joules = [value for value in self._joules if value is not None]
        return MeasuredWindow(
            streams=self.load.streams,
            seconds=ended - began,
            tokens=sum(flight.stream.count_tokens(began, ended) for flight in self._flights),
            under_way=sum(overlaps) / (ended - began) if ended > began else 0.0,
            answers=sum(bool(flight.stream.arrivals.times) for flight in self._flights),
            filler_tokens=sum(flight.stream.count_tokens() for flight in fillers),
            joules=max(0.0, joules[1] - joules[0]) if len(joules) == 2 else None,
            rate=self.load.rate,
            completed=sum(flight.ended is not None and began <= flight.ended <= ended for flight in self._flights),
            filler_failures=sum(flight.failed for flight in fillers),
        )


class Send(Protocol):
    """Sends a prompt and returns what its answer took; the stream measures it."""

    def __call__(
        self, prompt: Prompt, number: int, stream: CompletionStream, *, counts: bool
    ) -> Coroutine[Any, Any, RequestDone]:
        """Send the `number`-th request with a prompt."""


async def keep_under_way(
    record: LoadRecord, counted: list[tuple[Prompt, int]], fillers: Iterator[tuple[Prompt, int]], send: Send, seed: int
) -> AsyncGenerator[RequestDone, None]:
    """Send requests as a load has them until all that count are over, and yield each as it ends; break off the rest."""
    load, under_way, left = record.load, set[asyncio.Task[RequestDone]](), deque(counted)
    counting, began, starts, refill = len(counted), time.perf_counter(), load.list_starts(seed), load.refill
    due, over = next(starts), list[RequestDone]()
    try:
        while counting:
            while True:
                now = time.perf_counter() - began
                free = len(under_way) < load.most_at(now) and bool(left or refill)
                if not free or due > now:
                    break
                counts = bool(left) and ((due if load.rate else now) >= load.ramp or not load.refill)
                if not counts and not refill:
                    due = max(due, load.ramp)  # no more fillers: what counts begins when the load is up
                    break
                prompt, number = left.popleft() if counts else next(fillers)
                flight = record.begin_flight(
                    CompletionStream(prompt.kind, number, load.streams, load.rate), counts=counts
                )
                under_way.add(asyncio.create_task(_fly(record, flight, send, prompt, number)))
                due = next(starts)
            # Whoever takes them may be slow, as one that writes to a disk: others are under way again by now.
            for request in over:
                yield request
            done = await _wait_for_some(under_way, began + (due if free else load.next_rise(now)))
            under_way -= done
            over = [task.result() for task in done]
            counting -= sum(request.kind != FILLER for request in over)
            refill = refill and not any(request.error for request in over)  # it would be sent again and again
        for request in [*over, *await _break_off(under_way)]:
            yield request
    finally:
        await _break_off(under_way)


async def _break_off(under_way: set[asyncio.Task[RequestDone]]) -> list[RequestDone]:
    """Cancel requests that are under way; return what the fillers among them had until then."""
    for task in under_way:
        task.cancel()
    ended = await asyncio.gather(*under_way, return_exceptions=True)
    return [request for request in ended if isinstance(request, RequestDone)]


async def _fly(record: LoadRecord, flight: Flight, send: Send, prompt: Prompt, number: int) -> RequestDone:
    """Send a request; a filler that is broken off has what it had until then."""
    failed = False
    try:
        done = await send(prompt, number, flight.stream, counts=flight.counts)
        failed = bool(done.error)
    except asyncio.CancelledError:
        if flight.counts:
            raise
        done = msgspec.structs.replace(flight.stream.result(), error="", finish=BROKEN_OFF)
    finally:
        record.end_flight(flight, failed=failed)
    return done if flight.counts else msgspec.structs.replace(done, kind=FILLER)


async def _wait_for_some(under_way: set[asyncio.Task[RequestDone]], due: float) -> set[asyncio.Task[RequestDone]]:
    """Wait until a request is over or another one is due, and return those that are over."""
    patience = None if math.isinf(due) else max(0.0, due - time.perf_counter())
    if not under_way:
        await asyncio.sleep(patience or 0.0)
        return set()
    return (await asyncio.wait(under_way, timeout=patience, return_when=asyncio.FIRST_COMPLETED))[0]
