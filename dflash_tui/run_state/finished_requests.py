"""The finished requests of a run: ours as measured, those of other clients from the server's counters. Pure."""

from __future__ import annotations

from collections import deque

from dflash_tui.events import BROKEN_OFF, OURS, Counters, RequestDone
from dflash_tui.run_state.counters import CounterReading
from dflash_tui.run_state.slow_cycle import FinishedRequest, SlowCycle, find_slow_cycle
from dflash_tui.vllm_output.metrics import subtract

MAX_REQUESTS = 400
# Between the end of a request here and the reading that counts it, which may be the earlier on a busy machine.
_COUNTING_DELAY = 2.0
_MAX_AT_ONCE = 32
# Less than a millionth of a step or a second was never measured.
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
        """The cycle in which the speed of the last requests comes and goes, or None."""
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
        """Keep a request of ours from being counted twice: the counters show it as well, already or soon."""
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
    """Return the mean of `count` requests that ended between two readings; `base` is when the first may have begun."""
    tokens, seconds = now.finished_tokens - before.finished_tokens, now.decode_seconds - before.decode_seconds
    speed = (tokens - count) / seconds if seconds > _EPSILON and tokens > count else None
    steps, accepted = subtract(now.steps, base.steps), subtract(now.accepted, base.accepted)
    length = _acceptance_length(accepted, steps)
    sizes = subtract(now.finished_prompt_tokens, before.finished_prompt_tokens)
    size = None if sizes is None else sizes / count
    return FinishedRequest(at, "", speed, length, _steps_per_second(speed, length), count, prompt_tokens=size)


def _acceptance_length(accepted: float | None, steps: float | None) -> float | None:
    if accepted is None or steps is None or steps <= _EPSILON:
        return None
    return 1 + max(0.0, accepted) / steps


def _steps_per_second(speed: float | None, length: float | None) -> float | None:
    return speed / length if speed is not None and length else None
