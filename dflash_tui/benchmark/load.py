"""A load on a server: when each request is sent, which requests count, and what is measured meanwhile.

The counted requests are the same in every boot. *Fillers* keep the concurrency constant while counted requests run:
they replace requests that have ended, and are cancelled when the last counted one has ended.
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

# Most concurrent requests, however fast they arrive.
MOST_UNDER_WAY = 1024


class Load(NamedTuple):
    """How requests are sent to a server: with a fixed concurrency, or at a rate."""

    streams: int = 1
    """Concurrent requests; 0 if they are sent at a rate."""
    rate: float = 0.0
    """Requests per second, at random times (Poisson); 0 with a fixed concurrency."""
    ramp: float = 0.0
    """Seconds over which the load rises; requests that begin in them do not count."""
    refill: bool = True
    """Whether fillers keep the load up until the last counted request has ended."""

    def most_at(self, seconds: float) -> int:
        """Return how many requests may run `seconds` after the beginning."""
        if not self.streams:
            return MOST_UNDER_WAY
        return self.streams if seconds >= self.ramp else 1 + int(self.streams * seconds / self.ramp)

    def next_rise(self, seconds: float) -> float:
        """Return the second at which one more request may run; infinity if the load rises no more."""
        return self.ramp * self.most_at(seconds) / self.streams if self.streams and seconds < self.ramp else math.inf

    def list_starts(self, seed: int) -> Iterator[float]:
        """Yield the second at which each request may begin: a Poisson process, thinned during the ramp."""
        while not self.rate:
            yield 0.0
        draw, at = random.Random(seed), 0.0  # noqa: S311 - nothing secret
        while True:
            at += draw.expovariate(self.rate)
            if at >= self.ramp or draw.random() < at / self.ramp:
                yield at


class MeasuredWindow(msgspec.Struct, frozen=True, omit_defaults=True):
    """The time from the start of the first counted request to the end of the last, with its measures."""

    streams: Whole
    """The requested concurrency; 0 with a rate."""
    seconds: Amount
    tokens: Whole
    """The tokens that arrived in it, of counted and uncounted requests."""
    under_way: Amount
    """The average concurrency."""
    answers: Whole = 0
    """Requests with at least one arrival, those outside the window included."""
    filler_tokens: Whole = 0
    """The tokens of uncounted requests, in the window or not."""
    joules: Amount | None = None
    """The energy that the GPUs used in it; None if the driver does not report it."""
    rate: Amount = 0.0
    """The requested rate per second; 0 with a fixed concurrency."""
    completed: Whole = 0
    """Requests that ended in it, uncounted ones included."""
    filler_failures: Whole = 0
    """Uncounted requests that failed; after any failure no more fillers are sent."""
    kind: str = ""
    """The kind of prompt that was sent alone; empty if all kinds were sent together."""

    @property
    def tok_s(self) -> float | None:
        """The output tokens per second of all requests."""
        return self.tokens / self.seconds if self.seconds else None

    @property
    def joules_per_token(self) -> float | None:
        """The energy per output token."""
        return None if self.joules is None or not self.tokens else self.joules / self.tokens


@dataclass(eq=False)
class Flight:
    """A running or finished request."""

    stream: CompletionStream
    counts: bool
    began: float
    ended: float | None = None
    failed: bool = False


class LoadRecord:
    """Records the requests of a load, and summarizes its window."""

    def __init__(self, load: Load, meter: Callable[[], float | None] | None = None) -> None:
        """Record a load; `meter` returns the joules that the GPUs have used so far."""
        self.load, self._meter = load, meter
        self._flights: list[Flight] = []
        self._joules: list[float | None] = []

    def begin_flight(self, stream: CompletionStream, *, counts: bool) -> Flight:
        """Record the start of a request."""
        if counts and self._meter and not self._joules:
            self._joules.append(self._meter())
        self._flights.append(flight := Flight(stream, counts, time.perf_counter()))
        return flight

    def end_flight(self, flight: Flight, *, failed: bool = False) -> None:
        """Record the end of a request, cancelled ones included."""
        flight.ended, flight.failed = time.perf_counter(), failed
        if flight.counts and self._meter:
            self._joules[1:] = [self._meter()]

    @property
    def gaps(self) -> dict[str, list[float]]:
        """The seconds between arrivals of counted, successful requests, by prompt kind."""
        gaps: dict[str, list[float]] = {}
        for flight in self._flights:
            if flight.counts and not flight.failed:
                gaps.setdefault(flight.stream.kind, []).extend(flight.stream.arrivals.gaps)
        return gaps

    def measure_window(self) -> MeasuredWindow:
        """Return the window of the counted requests, once all of them have ended."""
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
    """Sends a prompt and returns its measures, which the stream takes."""

    def __call__(
        self, prompt: Prompt, number: int, stream: CompletionStream, *, counts: bool
    ) -> Coroutine[Any, Any, RequestDone]:
        """Send request `number` of a prompt."""


async def keep_under_way(
    record: LoadRecord, counted: list[tuple[Prompt, int]], fillers: Iterator[tuple[Prompt, int]], send: Send, seed: int
) -> AsyncGenerator[RequestDone, None]:
    """Send requests until all counted ones have ended, yield each as it ends, and cancel the fillers."""
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
                    due = max(due, load.ramp)  # no more fillers: counted requests begin when the load is up
                    break
                prompt, number = left.popleft() if counts else next(fillers)
                flight = record.begin_flight(
                    CompletionStream(prompt.kind, number, load.streams, load.rate), counts=counts
                )
                under_way.add(asyncio.create_task(_fly(record, flight, send, prompt, number)))
                due = next(starts)
            # Only now, as new requests are running again: the caller may be slow, such as one that writes to disk.
            for request in over:
                yield request
            done = await _wait_for_some(under_way, began + (due if free else load.next_rise(now)))
            under_way -= done
            over = [task.result() for task in done]
            counting -= sum(request.kind != FILLER for request in over)
            refill = refill and not any(request.error for request in over)  # a failing filler would be repeated
        for request in [*over, *await _break_off(under_way)]:
            yield request
    finally:
        await _break_off(under_way)


async def _break_off(under_way: set[asyncio.Task[RequestDone]]) -> list[RequestDone]:
    """Cancel running requests; return the partial results of the fillers among them."""
    for task in under_way:
        task.cancel()
    ended = await asyncio.gather(*under_way, return_exceptions=True)
    return [request for request in ended if isinstance(request, RequestDone)]


async def _fly(record: LoadRecord, flight: Flight, send: Send, prompt: Prompt, number: int) -> RequestDone:
    """Send a request; a cancelled filler returns its partial result."""
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
    patience = None if math.isinf(due) else max(0.0, due - time.perf_counter())
    if not under_way:
        await asyncio.sleep(patience or 0.0)
        return set()
    return (await asyncio.wait(under_way, timeout=patience, return_when=asyncio.FIRST_COMPLETED))[0]
