"""Quantiles of a time window, from the difference of two histograms of a server. Pure."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

from dflash_tui.events import Histogram


class Quantile(NamedTuple):
    """A quantile in the unit of the histogram: an estimate, and the bounds of the bucket that it certainly lies in.

    `high` is None, and the estimate `low`, when it lies above the last bound.
    """

    value: float
    low: float
    high: float | None


def subtract_histograms(before: Histogram | None, after: Histogram | None) -> Histogram | None:
    """Return the values added between two readings; None for none, or when the readings are of different servers."""
    if before is None or after is None or before.bounds != after.bounds:
        return None
    counts = tuple(b - a for a, b in zip(before.counts, after.counts, strict=True))
    if min(counts) < 0 or sum(counts) <= 0:
        return None
    return Histogram(after.bounds, counts, after.total - before.total)


def estimate_quantile(histogram: Histogram, share: float) -> Quantile | None:
    """Return the value that `share` (0 to 1) of all values do not exceed; None for an empty histogram.

    Inside a bucket values are taken as spread evenly, as Prometheus' histogram_quantile does.
    """
    count = sum(histogram.counts)
    if count <= 0:
        return None
    rank = share * count
    index, below = 0, 0.0
    for index, up_to in enumerate(accumulate(histogram.counts)):
        if up_to >= rank and histogram.counts[index] > 0:
            break
        below = up_to
    low = histogram.bounds[index - 1] if index else 0.0
    if index == len(histogram.bounds):
        return Quantile(low, low, None)
    high = histogram.bounds[index]
    inside = (rank - below) / histogram.counts[index]
    return Quantile(low + (high - low) * min(1.0, max(0.0, inside)), low, high)
