"""What the boots of each arm measured, as figures to stand side by side; they are no verdict. Pure.

A boot counts once: its figure is the median of its requests, that of an arm the median of its boots.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from dflash_tui.events import RequestDone
from dflash_tui.experiments.analysis.measures import classify_start, measure_seconds_to_ready
from dflash_tui.experiments.design import Boot


class MedianFigure(NamedTuple):
    """The median of `n` values, and the least and the greatest of them."""

    median: float
    low: float
    high: float
    n: int


class ArmSummary(NamedTuple):
    """An arm: how many boots measured something, how many failed, and its figures; None where nothing was measured.

    `cold` and `cached` are seconds from launch to the first answer, by what the start found in the compile cache; one
    that does not say has no cache that it could find, and does all its work each time, as a cold one does. `ready` are
    those of all that count, with what was inspected before the launch, `filling` the same of the boots that filled the
    caches of others and count for nothing else. `first` are those of the first real request.
    """

    boots: int
    failed: int
    requests: int
    steps_s: MedianFigure | None = None
    tok_s: MedianFigure | None = None
    al: MedianFigure | None = None
    ttft: MedianFigure | None = None
    cold: MedianFigure | None = None
    cached: MedianFigure | None = None
    first: MedianFigure | None = None
    filling: MedianFigure | None = None
    ready: MedianFigure | None = None


def summarize_arm(boots: Sequence[Boot], arm: int) -> ArmSummary:
    """Return the figures of `arm`."""
    mine = [boot for boot in boots if boot.arm == arm]
    up = [boot for boot in mine if not boot.error]
    good = [boot for boot in up if boot.start != "filling"]

    def ready(*caches: str) -> MedianFigure | None:
        return _figure(boot.ready for boot in good if classify_start(boot) in caches)

    return ArmSummary(
        boots=len(good),
        failed=len(mine) - len(up),
        requests=sum(len(boot.requests) for boot in good),
        steps_s=_figure(_median(boot, lambda done: done.steps_s) for boot in good),
        tok_s=_figure(_median(boot, lambda done: done.decode_tok_s) for boot in good),
        al=_figure(_median(boot, lambda done: done.acceptance_length) for boot in good),
        ttft=_figure(_median(boot, lambda done: done.ttft) for boot in good),
        cold=ready("cold", ""),
        cached=ready("cached"),
        first=_figure(boot.cold_request.total for boot in good if boot.cold_request and not boot.cold_request.error),
        filling=_figure(measure_seconds_to_ready(boot) for boot in up if boot.start == "filling"),
        ready=_figure(map(measure_seconds_to_ready, good)),
    )


def is_uncached(boots: Sequence[Boot], arm: int) -> bool:
    """Whether an arm has no compile cache: it started, and no start found anything in one, nor that it was empty."""
    started = [boot for boot in boots if boot.arm == arm and boot.ready is not None]
    return bool(started) and not any(map(classify_start, started))


def _median(boot: Boot, value: Callable[[RequestDone], float | None]) -> float | None:
    numbers = [number for done in boot.requests if not done.error and (number := value(done)) is not None]
    return statistics.median(numbers) if numbers else None


def _figure(values: Iterable[float | None]) -> MedianFigure | None:
    numbers = [value for value in values if value is not None]
    return MedianFigure(statistics.median(numbers), min(numbers), max(numbers), len(numbers)) if numbers else None
