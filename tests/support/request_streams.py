"""Streams of finished requests with and without a cycle of the server's, and how the detector of cycles does on them.

Everything is drawn from a generator that is seeded by the row's name. A stream is asked about after each request.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import NamedTuple

from dflash_tui.run_state.finished_requests import FinishedRequest, SlowCycle, find_slow_cycle

# Gemma-4-26B-A4B with DFlash on an RTX 5090 Laptop GPU, tok/s of ten requests, "100 % reproducible".
PUBLISHED = (221, 214, 218, 222, 230, 103, 59, 62, 62, 212)
FIVE_FOUR = (220.0,) * 5 + (61.0,) * 4
FIVE_PROMPTS = (120.0, 240.0, 260.0, 80.0, 230.0)
LENGTH = 100
Speeds = Callable[[random.Random, int], list[float]]


class Stream(NamedTuple):
    """A row: the speeds of a client's requests, and how many prompts it sends in turn (0: its sizes are unknown)."""

    name: str
    speeds: Speeds
    prompts: int = 1


class Cycle(NamedTuple):
    """A row with a cycle of the server's, and within how many requests it is to be named."""

    period: int
    slow: int
    within: int
    stream: Stream


def draw_chain(rng: random.Random, count: int, falls: float, rises: float) -> list[float]:
    """Two speeds, of which the server leaves each with its own probability."""
    slow, speeds = rng.random() < falls / (falls + rises), []
    for _ in range(count):
        slow = not slow if rng.random() < (rises if slow else falls) else slow
        speeds.append(rng.gauss(60, 4) if slow else rng.gauss(220, 8))
    return speeds


def draw_dependent(rng: random.Random, count: int, persistence: float, spread: float) -> list[float]:
    """Speeds of which each is much like the one before: AR(1) of the logarithms."""
    value, speeds = rng.gauss(0, spread), []
    for _ in range(count):
        value = persistence * value + math.sqrt(1 - persistence**2) * rng.gauss(0, spread)
        speeds.append(200 * math.exp(value))
    return speeds


def draw_walk(rng: random.Random, count: int) -> list[float]:
    """A random walk."""
    speed, speeds = math.log(200), []
    for _ in range(count):
        speed += rng.gauss(0, 0.15)
        speeds.append(math.exp(speed))
    return speeds


def draw_drift(rng: random.Random, count: int, loss: float, spread: float) -> list[float]:
    """Speeds that fall evenly to `1 - loss` of the first."""
    return [220 * (1 - loss * place / count) * math.exp(rng.gauss(0, spread)) for place in range(count)]


def draw_turns(rng: random.Random, count: int, levels: tuple[float, ...], spread: float = 0.04) -> list[float]:
    """Prompts in turn, each with a speed of its own, or a cycle of the server's."""
    return [levels[place % len(levels)] * math.exp(rng.gauss(0, spread)) for place in range(count)]


def draw_at_random(rng: random.Random, count: int, levels: tuple[float, ...]) -> list[float]:
    """Prompts at random, each with a speed of its own."""
    return [rng.choice(levels) * math.exp(rng.gauss(0, 0.04)) for _ in range(count)]


NULLS = (
    Stream("steady, ±7 %", lambda rng, n: [220 * math.exp(rng.gauss(0, 0.07)) for _ in range(n)]),
    Stream("independent, ±30 %", lambda rng, n: [200 * math.exp(rng.gauss(0, 0.3)) for _ in range(n)]),
    Stream("independent, ±50 %", lambda rng, n: [200 * math.exp(rng.gauss(0, 0.5)) for _ in range(n)]),
    Stream("one of ten slow by chance", lambda rng, n: draw_at_random(rng, n, (220.0,) * 9 + (60.0,))),
    Stream("four of ten slow by chance", lambda rng, n: draw_at_random(rng, n, (220.0,) * 6 + (60.0,) * 4)),
    Stream("bursts, stay 0.8 and 0.75", lambda rng, n: draw_chain(rng, n, 0.2, 0.25)),
    Stream("bursts, stay 0.9 and 0.9", lambda rng, n: draw_chain(rng, n, 0.1, 0.1)),
    Stream("bursts, stay 0.5 to 0.9", lambda rng, n: draw_chain(rng, n, rng.uniform(0.1, 0.5), rng.uniform(0.1, 0.5))),
    Stream("AR(1) 0.9, ±30 %", lambda rng, n: draw_dependent(rng, n, 0.9, 0.3)),
    Stream("AR(1) 0.98, ±50 %", lambda rng, n: draw_dependent(rng, n, 0.98, 0.5)),
    Stream("random walk", draw_walk),
    Stream("drift of -40 %, ±3 %", lambda rng, n: draw_drift(rng, n, 0.4, 0.03)),
    Stream("drift of -40 %, ±10 %", lambda rng, n: draw_drift(rng, n, 0.4, 0.1)),
    Stream("drift of -70 %, ±5 %", lambda rng, n: draw_drift(rng, n, 0.7, 0.05)),
    Stream("one fall to 60", lambda rng, n: [rng.gauss(220 if place < n / 2 else 60, 5) for place in range(n)]),
    Stream("sawtooth of 60", lambda rng, n: [(220 - 2.5 * (place % 60)) * rng.gauss(1, 0.03) for place in range(n)]),
    Stream("five prompts in turn", lambda rng, n: draw_turns(rng, n, FIVE_PROMPTS), prompts=5),
    Stream("five prompts in turn, sizes unknown", lambda rng, n: draw_turns(rng, n, FIVE_PROMPTS), prompts=0),
    Stream("nine prompts in turn, five fast, four slow", lambda rng, n: draw_turns(rng, n, FIVE_FOUR), prompts=9),
    Stream("five prompts at random, sizes unknown", lambda rng, n: draw_at_random(rng, n, FIVE_PROMPTS), prompts=0),
)  # fmt: skip

CYCLES = (
    Cycle(9, 4, 22, Stream("five fast, four slow, ±3 %", lambda rng, n: draw_turns(rng, n, FIVE_FOUR, 0.03))),
    Cycle(9, 4, 22, Stream("the same, ±10 %", lambda rng, n: draw_turns(rng, n, FIVE_FOUR, 0.1))),
    Cycle(9, 4, 22, Stream("the same, sizes unknown", lambda rng, n: draw_turns(rng, n, FIVE_FOUR, 0.03), 0)),
    Cycle(9, 4, 25, Stream("the same, seven prompts in turn", lambda rng, n: draw_turns(rng, n, FIVE_FOUR, 0.03), 7)),
    Cycle(10, 4, 25, Stream("the published ten, ±3 %", lambda rng, n: draw_turns(rng, n, PUBLISHED, 0.03))),
    Cycle(2, 1, 24, Stream("one fast, one slow", lambda rng, n: draw_turns(rng, n, (220, 61), 0.03))),
    Cycle(10, 1, 60, Stream("nine fast, one slow", lambda rng, n: draw_turns(rng, n, (220,) * 9 + (61,), 0.03))),
    Cycle(
        23, 3, 90, Stream("twenty fast, three slow", lambda rng, n: draw_turns(rng, n, (220,) * 20 + (61,) * 3, 0.03))
    ),
)


def draw_requests(rng: random.Random, stream: Stream, count: int = LENGTH) -> list[FinishedRequest]:
    """Return requests of a stream; the engine is what is slow."""
    shift = rng.randrange(64)
    return [
        FinishedRequest(
            float(at), "", speed, 5.0, speed / 5, prompt_tokens=30.0 + at % stream.prompts if stream.prompts else None
        )
        for at, speed in enumerate(stream.speeds(rng, count + shift)[shift:])
    ]


def find_first(requests: list[FinishedRequest]) -> tuple[int, SlowCycle] | None:
    """Return after how many requests a cycle is named first, and which; None when none is."""
    for count in range(1, len(requests) + 1):
        if cycle := find_slow_cycle(requests[:count]):
            return count, cycle
    return None


def count_false_alarms(stream: Stream, runs: int) -> int:
    """Return in how many streams of 100 requests a cycle is named at any time."""
    rng = random.Random(stream.name)
    return sum(find_first(draw_requests(rng, stream)) is not None for _ in range(runs))
