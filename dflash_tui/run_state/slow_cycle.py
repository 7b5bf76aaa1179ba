"""Detect requests that are slow in a regular cycle, and whether the drafter or the engine causes it. Pure.

Requests are told apart as fast or slow, once what their prompt and a trend over time explain is taken out. A cycle is
so many slow requests after so many fast ones, again and again. It is named where it is a hundred times as likely to
make what was seen as the best Markov chain that likes to stay fast or slow: such a chain, and so independent requests
as well, then reach that in at most one of a hundred streams, however often one looks (Ville's inequality).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

# Searched are the last requests from each place that such a number divides: a cycle may have begun just now.
_STRIDE, _LONGEST = 25, 200
_MIN_REQUESTS = 12
_MIN_SPEED = 1e-6
_MIN_ODDS = 100.0
# Period and slow requests of the cycles that users published (RTX 5090 Laptop GPU): half of the belief is in these.
_PUBLISHED = ((9, 4), (10, 4))
# Belief in how many requests of a cycle are not as their place says: a Beta distribution, its mean is one in eleven.
_ODD, _REGULAR = 0.2, 2.0
_MIN_SPEED_RATIO = 1.3
# A share of the variance that two levels explain; of evenly spread speeds it is 0.75, of a normal distribution 0.64.
_MIN_EXPLAINED = 0.8
_MAX_AVERAGED = 0.25
_MIN_RUN = 3
_BLAME_SHARE = 0.7


class FinishedRequest(NamedTuple):
    """A finished request; `kind` is empty for one of another client, and None is unknown.

    `tok_s` is (N - 1) / seconds of decoding, `acceptance_length` of the steps meanwhile, `steps_s` their quotient.
    `averaged_over` requests ended between the same two readings, so that each has the mean of all. `prompt_tokens`
    tells apart the prompts of another client.
    """

    at: float
    kind: str = ""
    tok_s: float | None = None
    acceptance_length: float | None = None
    steps_s: float | None = None
    averaged_over: int = 1
    failed: bool = False
    prompt_tokens: float | None = None


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


def find_slow_cycle(requests: Iterable[FinishedRequest], first: int = 0) -> SlowCycle | None:
    """Return the cycle in which the speed of the last requests comes and goes, or None.

    `first` is how many requests of the stream came before these.
    """
    listed = list(requests)
    oldest = max(0, len(listed) - _LONGEST)
    for start in range(oldest + -(first + oldest) % _STRIDE, len(listed), _STRIDE):
        last = [request for request in listed[start:] if (request.tok_s or 0.0) > _MIN_SPEED and not request.failed]
        if len(last) >= _MIN_REQUESTS and (cycle := _find_cycle_in(last)):
            return cycle
    return None


class _Blocks(NamedTuple):
    """A cycle of `period` requests, `slow` of them in a row, and the logarithm of the belief that it made the marks."""

    belief: float
    period: int
    slow: int


def _find_cycle_in(requests: Sequence[FinishedRequest]) -> SlowCycle | None:
    if sum(request.averaged_over > 1 for request in requests) > _MAX_AVERAGED * len(requests):
        return None  # the mean of several requests does not say which of them was slow
    prompts = _list_prompts(requests)
    slow = _mark_slow(_subtract_trend(_compare_speeds(requests, prompts)))
    if not any(slow):
        return None
    least = _believe_chance(slow) + math.log(_MIN_ODDS)
    fits = (_fit_blocks(slow, period) for period in _list_periods(slow, least))
    best = max(fits, key=lambda blocks: blocks.belief, default=None)
    if best is None or best.belief < least or not _blames_server(best, prompts, slow):
        return None
    return _build_cycle(requests, slow, best)


def _list_prompts(requests: Sequence[FinishedRequest]) -> list[str]:
    """Return what tells the prompts of the requests apart: their kind or size, empty where neither does.

    Sizes that do not come again, as those of a conversation, tell nothing: no prompt was sent twice.
    """
    sizes = Counter(request.prompt_tokens for request in requests if not request.kind)
    again = sum(count for size, count in sizes.items() if size is not None and count > 1)
    by_size = 2 * again > sum(sizes.values())
    return [request.kind or (f"{request.prompt_tokens}" if by_size else "") for request in requests]


def _blames_server(blocks: _Blocks, prompts: Sequence[str], slow: Sequence[bool]) -> bool:
    """Whether it is not the client that sends slow prompts in turn with fast ones.

    Most prompts are both fast and slow. Where prompts cannot be told apart, only several slow requests after several
    fast ones are what prompts in turn seldom make.
    """
    if not any(prompts):
        return min(blocks.slow, blocks.period - blocks.slow) >= _MIN_RUN
    speeds: dict[str, set[bool]] = {}
    for prompt, is_slow in zip(prompts, slow, strict=True):
        speeds.setdefault(prompt, set()).add(is_slow)
    return 2 * sum(len(speeds[prompt]) == 2 for prompt in prompts) > len(prompts)


def _compare_speeds(requests: Sequence[FinishedRequest], prompts: Sequence[str]) -> list[float]:
    """Return the logarithms of the speeds against what the best fifth of the same prompt reach."""
    speeds: dict[str, list[float]] = {}
    for request, prompt in zip(requests, prompts, strict=True):
        speeds.setdefault(prompt, []).append(request.tok_s or 0.0)
    best = {prompt: sorted(values)[math.ceil(0.8 * len(values)) - 1] for prompt, values in speeds.items()}
    return [math.log((r.tok_s or 0.0) / best[prompt]) for r, prompt in zip(requests, prompts, strict=True)]


def _subtract_trend(logs: Sequence[float]) -> list[float]:
    """Return what is left of the values without a straight line over their order."""
    slope, start = statistics.linear_regression(range(len(logs)), logs)
    return [value - start - slope * place for place, value in enumerate(logs)]


def _mark_slow(logs: Sequence[float]) -> list[bool]:
    """Return which requests are slow: below the middle between two levels that are well apart; none without such."""
    middle = (min(logs) + max(logs)) / 2
    low, high = list(logs), list[float]()
    for _ in range(20):
        low, high = [x for x in logs if x < middle], [x for x in logs if x >= middle]
        if not low or not high:
            return [False] * len(logs)
        moved = (statistics.fmean(low) + statistics.fmean(high)) / 2
        if abs(moved - middle) < 1e-9:
            break
        middle = moved
    apart = statistics.median(high) - statistics.median(low) >= math.log(_MIN_SPEED_RATIO)
    two_levels = _sum_squares(low) + _sum_squares(high) <= (1 - _MIN_EXPLAINED) * _sum_squares(logs)
    return [apart and two_levels and x < middle for x in logs]


def _sum_squares(values: Sequence[float]) -> float:
    """Return the sum of the squared distances from the mean; the variance of `statistics` is exact, and far slower."""
    mean = statistics.fmean(values)
    return math.fsum((value - mean) ** 2 for value in values)


def _list_periods(slow: Sequence[bool], least: float) -> Iterator[int]:
    """Yield the periods whose belief may reach `least`: a request that is not as its place says differs from two."""
    marks = sum(1 << place for place, is_slow in enumerate(slow) if is_slow)
    for period in range(2, len(slow) // 2 + 1):
        differ = ((marks ^ marks >> period) & ((1 << len(slow) - period) - 1)).bit_count()
        if _believe(_weigh(period, dict(_PUBLISHED).get(period, 1)), -(-differ // 2), len(slow)) >= least:
            yield period


def _weigh(period: int, slow: int) -> float:
    """Return the logarithm of the belief in a cycle that begins at some place; the longer, the less."""
    weight = 1 / (period * (period + 1)) / (period * (period - 1))
    if (period, slow) in _PUBLISHED:
        weight += 0.5 / sum(period for period, _ in _PUBLISHED)
    return math.log(weight)


def _believe(weight: float, odd: int, count: int) -> float:
    return weight + _log_beta(odd + _ODD, count - odd + _REGULAR) - _log_beta(_ODD, _REGULAR)


def _fit_blocks(slow: Sequence[bool], period: int) -> _Blocks:
    """Return the run of slow places in each period that agrees best, and the belief in it.

    A period, a run and where it begins are believed the less the more there are. Requests that are not as their place
    says are as often as a Beta distribution has it.
    """
    gains = [sum(1 if is_slow else -1 for is_slow in slow[phase::period]) for phase in range(period)]
    # The best run in a circle is the best one in a row, or all without the worst one.
    best, length = _find_best_run(gains)
    worst, left_out = _find_best_run([-gain for gain in gains])
    if sum(gains) + worst > best:
        best, length = sum(gains) + worst, period - left_out
    belief = _believe(_weigh(period, length), sum(slow) - best, len(slow))
    return _Blocks(belief, period, length)


def _find_best_run(gains: Sequence[int]) -> tuple[int, int]:
    """Return the largest sum of neighbours, of one at least and not of all, and how many they are."""
    best = (-len(gains) * max(map(abs, gains)) - 1, 0)
    total, length = 0, 0
    for gain in gains:
        total, length = (gain, 1) if total <= 0 else (total + gain, length + 1)
        if length < len(gains):
            best = max(best, (total, length), key=lambda run: run[0])
    return best


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _believe_chance(slow: Sequence[bool]) -> float:
    """Return the log likelihood of the marks after the first under the Markov chain that makes them likeliest.

    One that changes more often than independent requests do is no chance that is to be ruled out but a cycle.
    """
    changes = Counter(pairwise(slow))
    after = {state: changes[state, True] + changes[state, False] for state in (True, False)}
    turns = [changes[state, not state] / after[state] if after[state] else 0.0 for state in (True, False)]
    share = sum(slow[1:]) / (len(slow) - 1)
    if sum(turns) > 1:
        chances = {(before, now): share if now else 1 - share for before in (True, False) for now in (True, False)}
    else:
        chances = {(before, now): count / after[before] for (before, now), count in changes.items()}
    return sum(count * math.log(chances[change]) for change, count in changes.items())


def _build_cycle(requests: Sequence[FinishedRequest], slow: Sequence[bool], blocks: _Blocks) -> SlowCycle:
    groups = [[r for r, is_slow in zip(requests, slow, strict=True) if is_slow is wanted] for wanted in (False, True)]
    fast_tok_s, slow_tok_s = (statistics.median(r.tok_s or 0.0 for r in group) for group in groups)
    fast_length, slow_length = (_median([r.acceptance_length for r in group]) for group in groups)
    fast_steps, slow_steps = (_median([r.steps_s for r in group]) for group in groups)
    return SlowCycle(
        period=blocks.period,
        slow=blocks.slow,
        periods=len(requests) / blocks.period,
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
