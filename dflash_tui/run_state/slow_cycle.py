"""Detect requests that are slow in a regular cycle, and whether the drafter or the engine causes it. Pure.

Requests are told apart as fast or slow, and the pattern is compared with itself, shifted by every possible period.
What agrees must be too much for chance, also for a chance that likes to stay fast or slow for a while (a Markov chain
with the persistence that was seen), and for the number of periods that were tried.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

# Numbers of last requests to search, the most first: a cycle may have begun just now.
_WINDOWS = (200, 100, 50)
_MIN_REQUESTS = 12
_MIN_SPEED = 1e-6
_MAX_CHANCE = 0.015
_MIN_AGREEMENT = 0.8
_AGREEMENT_TOLERANCE = 0.05
_MIN_SPEED_RATIO = 1.3
_BLAME_SHARE = 0.7


class FinishedRequest(NamedTuple):
    """A finished request; `kind` is empty for one of another client, and None is unknown.

    `tok_s` is (N - 1) / seconds of decoding, `acceptance_length` of the steps meanwhile, `steps_s` their quotient.
    `averaged_over` requests ended between the same two readings, so that each has the mean of all.
    """

    at: float
    kind: str = ""
    tok_s: float | None = None
    acceptance_length: float | None = None
    steps_s: float | None = None
    averaged_over: int = 1
    failed: bool = False


class SlowCycle(NamedTuple):
    """A cycle of `period` requests, `slow` of which are slow; speeds are medians in tok/s, None is unknown.

    `cause` is `acceptance length` (the drafter), `steps/s` (the engine), `both`, or empty when unknown.
    """

    period: int
    slow: int
    periods: float
    fast_tok_s: float
    slow_tok_s: float
    cause: str
    fast_length: float | None
    slow_length: float | None
    fast_steps: float | None
    slow_steps: float | None
    since: float

    def __str__(self) -> str:
        """Return the cycle as a sentence."""
        return (
            f"{self.slow} of every {self.period} requests are slow: "
            f"{self.slow_tok_s:.0f} instead of {self.fast_tok_s:.0f} tok/s"
        )

    @property
    def evidence(self) -> str:
        """Which factor fell and which stayed, and what that says about the cause."""
        if self.fast_length is None or self.slow_length is None or self.fast_steps is None or self.slow_steps is None:
            return f"seen {self.periods:.1f} times; whether acceptance or steps fell is unknown"
        lengths, steps = (
            f"AL {self.fast_length:.2f} → {self.slow_length:.2f}",
            f"steps/s {self.fast_steps:.0f} → {self.slow_steps:.0f}",
        )
        blame = {"acceptance length": "the drafter", "steps/s": "the engine", "both": "drafter and engine"}
        return f"seen {self.periods:.1f} times; {lengths}, {steps}: {blame[self.cause]}"


def find_slow_cycle(requests: Iterable[FinishedRequest]) -> SlowCycle | None:
    """Return the cycle in which the speed of the last requests comes and goes, or None.

    Kinds of prompts that are known are each compared with their own best, since some kinds are slower than others.
    """
    measured = [request for request in requests if (request.tok_s or 0.0) > _MIN_SPEED and not request.failed]
    tried: set[int] = set()
    for window in _WINDOWS:
        last = measured[-window:]
        if len(last) >= _MIN_REQUESTS and len(last) not in tried:
            tried.add(len(last))
            if cycle := _find_cycle_in(last):
                return cycle
    return None


def _find_cycle_in(requests: Sequence[FinishedRequest]) -> SlowCycle | None:
    slow = _mark_slow(requests)
    share = sum(slow) / len(slow)
    if not 0.05 <= share <= 0.95:
        return None
    chance = _chance_agreement(slow)
    candidates = range(2, len(slow) // 2 + 1)
    agreement: dict[int, float] = {}
    for period in candidates:
        pairs = len(slow) - period
        same = sum(slow[place] == slow[place + period] for place in range(pairs))
        if same / pairs >= _MIN_AGREEMENT and _binomial_tail(same, pairs, chance) * len(candidates) < _MAX_CHANCE:
            agreement[period] = same / pairs
    # Twice the period agrees as well, and by luck a little better.
    best = max(agreement.values(), default=0.0)
    period = next((period for period, share in agreement.items() if share >= best - _AGREEMENT_TOLERANCE), 0)
    return _build_cycle(requests, slow, period) if period else None


def _mark_slow(requests: Sequence[FinishedRequest]) -> list[bool]:
    """Return which requests are slow: below the middle between two levels that are well apart; none without such."""
    logs = [math.log(speed) for speed in _relative_speeds(requests)]
    middle = (min(logs) + max(logs)) / 2
    for _ in range(20):
        low, high = [x for x in logs if x < middle], [x for x in logs if x >= middle]
        if not low or not high:
            return [False] * len(logs)
        moved = (statistics.fmean(low) + statistics.fmean(high)) / 2
        if abs(moved - middle) < 1e-9:
            break
        middle = moved
    apart = statistics.median(high) - statistics.median(low) >= math.log(_MIN_SPEED_RATIO)
    return [apart and x < middle for x in logs]


def _relative_speeds(requests: Sequence[FinishedRequest]) -> list[float]:
    """Return the speeds, each divided by what the best fifth of its kind of prompt reach when there are kinds."""
    speeds: dict[str, list[float]] = {}
    for request in requests:
        speeds.setdefault(request.kind, []).append(request.tok_s or 0.0)
    best = {kind: sorted(values)[math.ceil(0.8 * len(values)) - 1] for kind, values in speeds.items()}
    return [(request.tok_s or 0.0) / best[request.kind] for request in requests]


def _chance_agreement(slow: Sequence[bool]) -> float:
    """Return the probability that two places of such a sequence agree by chance, given that those before them did."""
    share = sum(slow) / len(slow)
    independent = share**2 + (1 - share) ** 2
    staying = 0.0
    for state, weight in ((True, share), (False, 1 - share)):
        after = [b for a, b in pairwise(slow) if a is state]
        stays = (sum(b is state for b in after) + 1) / (len(after) + 2)
        staying += weight * (stays**2 + (1 - stays) ** 2)
    stayed = sum(a is b for a, b in pairwise(slow)) / max(1, len(slow) - 1)
    # One that changes more often than chance would is a cycle of two, not persistence.
    return max(independent, staying) if stayed > independent else independent


def _binomial_tail(successes: int, trials: int, chance: float) -> float:
    """Return the probability of at least so many successes (binomial)."""
    return sum(
        math.comb(trials, count) * chance**count * (1 - chance) ** (trials - count)
        for count in range(successes, trials + 1)
    )


def _build_cycle(requests: Sequence[FinishedRequest], slow: Sequence[bool], period: int) -> SlowCycle:
    phases = [[slow[place] for place in range(phase, len(slow), period)] for phase in range(period)]
    slow_phases = sum(sum(phase) * 2 > len(phase) for phase in phases)
    groups = [[r for r, is_slow in zip(requests, slow, strict=True) if is_slow is wanted] for wanted in (False, True)]
    fast_tok_s, slow_tok_s = (statistics.median(r.tok_s or 0.0 for r in group) for group in groups)
    fast_length, slow_length = (_median([r.acceptance_length for r in group]) for group in groups)
    fast_steps, slow_steps = (_median([r.steps_s for r in group]) for group in groups)
    return SlowCycle(
        period=period,
        slow=max(1, slow_phases),
        periods=len(requests) / period,
        fast_tok_s=fast_tok_s,
        slow_tok_s=slow_tok_s,
        cause=_attribute_slowdown(fast_length, slow_length, fast_steps, slow_steps),
        fast_length=fast_length,
        slow_length=slow_length,
        fast_steps=fast_steps,
        slow_steps=slow_steps,
        since=requests[0].at,
    )


def _median(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return statistics.median(numbers) if len(numbers) * 2 > len(values) else None


def _attribute_slowdown(
    fast_length: float | None, slow_length: float | None, fast_steps: float | None, slow_steps: float | None
) -> str:
    """Say which factor fell: tok/s = steps/s x AL, so the logarithms of the two falls add up to that of the speed."""
    if not (fast_length and slow_length and fast_steps and slow_steps):
        return ""
    length, steps = math.log(fast_length / slow_length), math.log(fast_steps / slow_steps)
    whole = length + steps
    if whole <= 0 or length >= _BLAME_SHARE * whole:
        return "acceptance length"
    return "steps/s" if steps >= _BLAME_SHARE * whole else "both"
