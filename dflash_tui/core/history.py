"""What earlier runs on this machine tell about the next one."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from dflash_tui.core import observe, server
from dflash_tui.core.plan import Plan

_MOST = 5
_known: dict[str, float | None] = {}


class Ready(NamedTuple):
    """Seconds from launch to ready: the median, and from how many runs."""

    seconds: float
    runs: int


def ready(plan: Plan) -> Ready | None:
    """Return how long the last five runs of the same recipe, mode and engine took to be ready; None without any.

    Runs of other profiles, variants or models do not count, nor those that never got ready.
    """
    times = []
    for run in reversed(server.runs()):
        if run.plan.kind != plan.kind:
            continue
        if run.id not in _known:
            seconds = observe.replay(run).time_to_ready
            if seconds is None and server.alive(run):
                continue
            _known[run.id] = seconds
        if (seconds := _known[run.id]) is not None:
            times.append(seconds)
        if len(times) == _MOST:
            break
    return Ready(statistics.median(times), len(times)) if times else None
