"""The finished requests of a run, of dflash-tui and other clients, and the cycle in which some are slow. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from itertools import groupby, takewhile
from typing import NamedTuple

from dflash_tui.events import BROKEN_OFF, OURS, Counters, RequestDone
from dflash_tui.run_state.series import CounterReading
from dflash_tui.vllm_output.metrics import compute_rates, subtract

_LONGEST, _MIN_REQUESTS = 100, 12
_MIN_SPEED_RATIO = 1.3
# The share of variance that two levels explain: 0.75 for uniformly distributed speeds, 0.64 for normal ones.
_MIN_EXPLAINED = 0.8
_MAX_AVERAGED = 0.25
_MIN_RUN = 3
_BLAME_SHARE = 0.7
# (fast, slow) requests of the cycles that users published (RTX 5090 Laptop GPU).
_PUBLISHED = frozenset({(5, 4), (6, 4)})
# Minimum whole runs, and requests including the runs at both ends: of published cycles, of others, and of those in
# which a run is a single request.
_LEAST_PUBLISHED, _LEAST, _LEAST_OF_ONE = (3, 22), (6, 24), (8, 24)


class FinishedRequest(NamedTuple):
    """A finished request; `kind` is empty for another client's, unknown values are None.

    `tok_s` is (N - 1) / decode seconds, `acceptance_length` is of the steps meanwhile, `steps_s` is their quotient.
    `averaged_over` requests ended between the same two readings, so each has the mean of all. `prompt_tokens`
    distinguishes the prompts of other clients.
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
    """A cycle of `period` requests, of which `slow` are slow; `what` describes it, `evidence` has the figures.

    `cause` is `acceptance length` (the drafter), `steps/s` (the engine), `both`, or empty if unknown.
    """

    period: int
    slow: int
    since: float
    what: str
    evidence: str
    cause: str = ""


def find_slow_cycle(requests: Iterable[FinishedRequest]) -> SlowCycle | None:
    """Return the cycle in which the speed of the last requests alternates, or None.

    Each request is fast or slow compared with the best fifth of the same prompt. In a cycle, runs of fast and of slow
    requests alternate often enough, and all runs of a kind are equally long (docs/numbers.md has the false alarms).
    """
    last = [r for r in deque(requests, _LONGEST) if (r.tok_s or 0.0) > _EPSILON and not r.failed]
    if len(last) < _MIN_REQUESTS or sum(request.averaged_over > 1 for request in last) > _MAX_AVERAGED * len(last):
        return None  # the mean of several requests does not say which of them was slow
    prompts = _list_prompts(last)
    slow = _mark_slow(_compare_speeds(last, prompts))
    shape = _find_repeated_runs([(is_slow, len(list(run))) for is_slow, run in groupby(slow)])
    # If prompts cannot be distinguished, a client that alternates between prompts explains short runs.
    if shape is None or not (any(prompts) or min(shape) >= _MIN_RUN):
        return None
    return _build_cycle(last, slow, *shape)


def _list_prompts(requests: Sequence[FinishedRequest]) -> list[str]:
    """Return the kind or size that distinguishes each request's prompt; empty if neither does.

    Sizes that mostly do not recur, as in a conversation, are not used: no prompt was sent twice.
    """
    sizes = Counter(request.prompt_tokens for request in requests if not request.kind)
    again = sum(count for size, count in sizes.items() if size is not None and count > 1)
    by_size = 2 * again > sum(sizes.values())
    return [request.kind or (f"{request.prompt_tokens}" if by_size else "") for request in requests]


def _compare_speeds(requests: Sequence[FinishedRequest], prompts: Sequence[str]) -> list[float]:
    """Return the logarithms of the speeds, relative to the 80th percentile of the same prompt."""
    speeds = defaultdict[str, list[float]](list)
    for request, prompt in zip(requests, prompts, strict=True):
        speeds[prompt].append(math.log(request.tok_s or 1.0))
    best = {prompt: sorted(logs)[math.ceil(0.8 * len(logs)) - 1] for prompt, logs in speeds.items()}
    return [math.log(r.tok_s or 1.0) - best[prompt] for r, prompt in zip(requests, prompts, strict=True)]


def _mark_slow(logs: Sequence[float]) -> list[bool]:
    """Return which requests are slow: those in the lower of two well separated clusters; none without such clusters."""
    middle, low, high = (min(logs) + max(logs)) / 2, list[float](), list[float]()
    for _ in range(20):
        low, high = [x for x in logs if x < middle], [x for x in logs if x >= middle]
        if not low or not high:
            return [False] * len(logs)
        middle = (statistics.fmean(low) + statistics.fmean(high)) / 2
    apart = statistics.median(high) - statistics.median(low) >= math.log(_MIN_SPEED_RATIO)
    two_levels = _sum_squares(low) + _sum_squares(high) <= (1 - _MIN_EXPLAINED) * _sum_squares(logs)
    return [apart and two_levels and x < middle for x in logs]


def _sum_squares(values: Sequence[float]) -> float:
    mean = statistics.fmean(values)
    return math.fsum((value - mean) ** 2 for value in values)


def _find_repeated_runs(runs: Sequence[tuple[bool, int]]) -> tuple[int, int] | None:
    """Return the newest (fast, slow) run lengths that alternate often enough, or None.

    The runs at both ends count up to the length of a whole run: the requests may begin or end within them.
    """
    for start in range(len(runs) - 3, 0, -1):
        lengths = dict(runs[start : start + 2])
        end = start + sum(1 for _ in takewhile(lambda run: lengths[run[0]] == run[1], runs[start:-1]))  # noqa: B023
        sides = sum(min(length, lengths[is_slow]) for is_slow, length in (runs[start - 1], runs[end]))
        covered = sides + sum(length for _, length in runs[start:end])
        shape = (lengths[False], lengths[True])
        least = _LEAST_PUBLISHED if shape in _PUBLISHED else _LEAST_OF_ONE if 1 in shape else _LEAST
        if end - start >= least[0] and covered >= least[1]:
            return shape
    return None


def _build_cycle(requests: Sequence[FinishedRequest], slow: Sequence[bool], fast_run: int, slow_run: int) -> SlowCycle:
    def medians(name: str) -> list[float | None]:
        values = [(is_slow, getattr(r, name)) for r, is_slow in zip(requests, slow, strict=True)]
        return [_median([value for is_slow, value in values if is_slow is wanted]) for wanted in (False, True)]

    (fast, slowed), lengths, steps = medians("tok_s"), medians("acceptance_length"), medians("steps_s")
    period = fast_run + slow_run
    what = f"{slow_run} of every {period} requests are slow: {slowed:.0f} instead of {fast:.0f} tok/s"
    seen = f"seen {len(requests) / period:.1f} times"
    if not (lengths[0] and lengths[1] and steps[0] and steps[1]):
        evidence = f"{seen}; whether acceptance or steps fell is unknown"
        return SlowCycle(period, slow_run, requests[0].at, what, evidence)
    # tok/s = steps/s x AL, so the logarithms of their ratios add up to that of the speeds' ratio.
    length, step = math.log(lengths[0] / lengths[1]), math.log(steps[0] / steps[1])
    cause, blamed = "both", "drafter and engine"
    if length + step <= 0 or length >= _BLAME_SHARE * (length + step):
        cause, blamed = "acceptance length", "the drafter"
    elif step >= _BLAME_SHARE * (length + step):
        cause, blamed = "steps/s", "the engine"
    figures = f"AL {lengths[0]:.2f} → {lengths[1]:.2f}, steps/s {steps[0]:.0f} → {steps[1]:.0f}"
    return SlowCycle(period, slow_run, requests[0].at, what, f"{seen}; {figures}: {blamed}", cause)


def _median(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return statistics.median(numbers) if len(numbers) * 2 > len(values) else None


MAX_REQUESTS = 400
# Seconds between the end of a request and the reading that counts it; on a busy machine the reading may come first.
_COUNTING_DELAY = 2.0
_MAX_AT_ONCE = 32
# Fewer steps or seconds than this are not measured values.
_EPSILON = 1e-6


class FinishedLog:
    """The last finished requests of a run, oldest first in `requests`."""

    def __init__(self) -> None:
        self.requests: deque[FinishedRequest] = deque(maxlen=MAX_REQUESTS)
        self._cycle: tuple[FinishedRequest | None, SlowCycle | None] = (None, None)
        self._uncounted = 0
        self._before: Counters | None = None
        self._base: Counters | None = None

    @property
    def cycle(self) -> SlowCycle | None:
        """The slow cycle of the last requests, or None."""
        last = self.requests[-1] if self.requests else None
        if last is not self._cycle[0]:
            self._cycle = (last, find_slow_cycle(self.requests))
        return self._cycle[1]

    def add_request(self, done: RequestDone) -> None:
        """Add a request that dflash-tui sent."""
        if not done.error and done.finish != BROKEN_OFF:
            self._exclude_own(done)
        if done.kind not in OURS:
            speed, length = done.decode_tok_s, done.acceptance_length
            steps = _steps_per_second(speed, length)
            self.requests.append(FinishedRequest(done.at, done.kind, speed, length, steps, failed=bool(done.error)))

    def _exclude_own(self, done: RequestDone) -> None:
        """Keep an own request from being counted twice, since the server's counters include it now or soon."""
        earliest = done.at - min(done.total, _COUNTING_DELAY)
        for index in range(len(self.requests) - 1, -1, -1):
            request = self.requests[index]
            if request.at < earliest:
                break
            if not request.kind:
                del self.requests[index]
                return
        self._uncounted += 1

    def add_reading(self, reading: CounterReading) -> None:
        """Add the requests of other clients that finished since the last reading of the counters."""
        now, before = reading.counters, self._before
        self._before = now
        if before is None or not reading.joined:
            self._uncounted, self._base = 0, now
            return
        count = max(0, round(now.finished - before.finished))
        ours = min(count, self._uncounted)
        self._uncounted -= ours
        if count > ours:
            request = _mean_request(reading.at, before, self._base or before, now, count)
            for _ in range(min(count - ours, _MAX_AT_ONCE)):
                self.requests.append(request)
        if count or not now.running:
            self._base = now


def _mean_request(at: float, before: Counters, base: Counters, now: Counters, count: int) -> FinishedRequest:
    """Return the mean of `count` requests that ended between two readings; `base` precedes the first one's begin."""
    tokens, seconds = now.finished_tokens - before.finished_tokens, now.decode_seconds - before.decode_seconds
    speed = (tokens - count) / seconds if seconds > _EPSILON and tokens > count else None
    rates = compute_rates(base, now, 1.0)
    length = rates.acceptance_length if rates else None
    sizes = subtract(now.finished_prompt_tokens, before.finished_prompt_tokens)
    size = None if sizes is None else sizes / count
    return FinishedRequest(at, "", speed, length, _steps_per_second(speed, length), count, prompt_tokens=size)


def _steps_per_second(speed: float | None, length: float | None) -> float | None:
    return speed / length if speed is not None and length else None
