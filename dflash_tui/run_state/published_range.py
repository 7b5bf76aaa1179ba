"""Do the figures of a run lie where others measured them? Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dflash_tui.planning.recipe import Mode, PublishedFigures
from dflash_tui.run_state.slow_cycle import FinishedRequest
from dflash_tui.vllm_output.metrics import Rates

_MAX_SPEEDS = 10
_MIN_PUBLISHED_STEPS = 100


class PublishedComparison(NamedTuple):
    """A figure against what was published: `word` is `within`, `below` or `above`; shares are 0 to 1."""

    name: str
    value: float
    low: float
    high: float
    word: str
    source: str


def choose_published_figures(bands: Sequence[PublishedFigures], mode: Mode) -> PublishedFigures | None:
    """Return the band for this mode, else one for any mode, else None."""
    return next((b for b in bands if b.mode is mode), next((b for b in bands if b.mode is None), None))


def compare_with_published(
    band: PublishedFigures, rates: Rates | None, finished: Iterable[FinishedRequest]
) -> list[PublishedComparison]:
    """Return each published figure with what the run shows, the speed first.

    The speed is the median of the last ten requests that ended one at a time, as published speeds are of one stream.
    """
    speeds = [r.tok_s for r in finished if r.tok_s and r.alike == 1 and not r.failed][-_MAX_SPEEDS:]
    known = rates if rates and rates.steps >= _MIN_PUBLISHED_STEPS else None
    values = (
        ("tok/s", statistics.median(speeds) if speeds else None, band.tok_s),
        ("AL", known.acceptance_length if known else None, band.acceptance_length),
        ("acceptance", known.acceptance if known else None, band.acceptance),
    )
    return [
        PublishedComparison(
            name, value, bounds[0], bounds[1], _position_in_range(value, bounds[0], bounds[1]), band.source
        )
        for name, value, bounds in values
        if value is not None and bounds
    ]


def _position_in_range(value: float, low: float, high: float) -> str:
    """Return where a value lies, with a twentieth of leeway: published figures are rounded."""
    if value < low * 0.95:
        return "below"
    return "above" if value > high * 1.05 else "within"
