"""Detect requests that are slow in a regular cycle, and whether the drafter or the engine causes it. Pure.

Requests are told apart as fast or slow, once what their prompt explains is taken out. A cycle is named where runs of
fast and runs of slow requests have come in turn, all of either kind equally long, more often than chance that likes to
stay fast or slow makes them do: at most one of a hundred such streams has one named, however often one looks.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import groupby, takewhile
from typing import NamedTuple

_LONGEST, _MIN_REQUESTS = 100, 12
_MIN_SPEED = 1e-6
_MIN_SPEED_RATIO = 1.3
# A share of the variance that two levels explain; of evenly spread speeds it is 0.75, of a normal distribution 0.64.
_MIN_EXPLAINED = 0.8
_MAX_AVERAGED = 0.25
_MIN_RUN = 3
_BLAME_SHARE = 0.7


class _Least(NamedTuple):
    """How many whole runs, and requests with those beside them, a cycle has at least."""

    runs: int
    requests: int


# Fast and slow requests of the cycles that users published (RTX 5090 Laptop GPU).
_PUBLISHED = frozenset({(5, 4), (6, 4)})
_LEAST_PUBLISHED, _LEAST, _LEAST_OF_ONE = _Least(3, 22), _Least(6, 24), _Least(8, 24)


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


def find_slow_cycle(requests: Iterable[FinishedRequest]) -> SlowCycle | None:
    """Return the cycle in which the speed of the last requests comes and goes, or None."""
    last = [r for r in deque(requests, _LONGEST) if (r.tok_s or 0.0) > _MIN_SPEED and not r.failed]
    if len(last) < _MIN_REQUESTS or sum(request.averaged_over > 1 for request in last) > _MAX_AVERAGED * len(last):
        return None  # the mean of several requests does not say which of them was slow
    prompts = _list_prompts(last)
    slow = _mark_slow(_compare_speeds(last, prompts))
    lengths = _find_repeated_runs([_Run(is_slow, len(list(run))) for is_slow, run in groupby(slow)])
    return _build_cycle(last, slow, *lengths) if lengths and _blames_server(*lengths, prompts, slow) else None


class _Run(NamedTuple):
    """So many slow, or so many fast, requests in a row."""

    slow: bool
    length: int


def _find_repeated_runs(runs: Sequence[_Run]) -> tuple[int, int] | None:
    """Return how many fast and how many slow requests come in turn often enough, the newest such; None without any.

    The runs beside those that repeat belong to the cycle as far as they are not longer: it may have begun, or
    the requests have ended, within them.
    """
    for start in range(len(runs) - 3, 0, -1):
        lengths = dict(runs[start : start + 2])
        end = start + sum(1 for _ in takewhile(lambda run: lengths[run.slow] == run.length, runs[start:-1]))  # noqa: B023
        sides = sum(min(run.length, lengths[run.slow]) for run in (runs[start - 1], runs[end]))
        covered = sides + sum(run.length for run in runs[start:end])
        shape = (lengths[False], lengths[True])
        least = _LEAST_PUBLISHED if shape in _PUBLISHED else _LEAST_OF_ONE if 1 in shape else _LEAST
        if end - start >= least.runs and covered >= least.requests:
            return shape
    return None


def _list_prompts(requests: Sequence[FinishedRequest]) -> list[str]:
    """Return what tells the prompts of the requests apart: their kind or size, empty where neither does.

    Sizes that do not come again, as those of a conversation, tell nothing: no prompt was sent twice.
    """
    sizes = Counter(request.prompt_tokens for request in requests if not request.kind)
    again = sum(count for size, count in sizes.items() if size is not None and count > 1)
    by_size = 2 * again > sum(sizes.values())
    return [request.kind or (f"{request.prompt_tokens}" if by_size else "") for request in requests]


def _blames_server(fast_run: int, slow_run: int, prompts: Sequence[str], slow: Sequence[bool]) -> bool:
    """Whether it is not the client that sends slow prompts in turn with fast ones.

    Most prompts are both fast and slow. Where prompts cannot be told apart, only several slow requests after several
    fast ones are what prompts in turn seldom make.
    """
    if not any(prompts):
        return min(fast_run, slow_run) >= _MIN_RUN
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


def _build_cycle(requests: Sequence[FinishedRequest], slow: Sequence[bool], fast_run: int, slow_run: int) -> SlowCycle:
    groups = [[r for r, is_slow in zip(requests, slow, strict=True) if is_slow is wanted] for wanted in (False, True)]
    fast_tok_s, slow_tok_s = (statistics.median(r.tok_s or 0.0 for r in group) for group in groups)
    fast_length, slow_length = (_median([r.acceptance_length for r in group]) for group in groups)
    fast_steps, slow_steps = (_median([r.steps_s for r in group]) for group in groups)
    return SlowCycle(
        period=fast_run + slow_run,
        slow=slow_run,
        periods=len(requests) / (fast_run + slow_run),
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
