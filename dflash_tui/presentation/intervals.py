"""Intervals of ratios: as text, and drawn around 1 on a logarithmic axis in cells that each renderer colours. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from dflash_tui.benchmark.stats import Ratio
from dflash_tui.common.formatting import UNKNOWN
from dflash_tui.presentation.verdict_text import format_factor

_LEAST_SCALE = math.log(1.05)
_MOST_SCALE = math.log(1000)


def format_ratio(value: Ratio | None) -> str:
    """Return `1.85 (1.79 to 1.92)`, or a dash."""
    if value is None:
        return UNKNOWN
    return f"{format_factor(value.ratio)} ({format_factor(value.low)} to {format_factor(value.high)})"


def axis_scale(ratios: Iterable[Ratio]) -> float:
    """Return the greatest distance from 1 among the ends of the intervals, as a logarithm: how far an axis goes."""
    ends = [
        abs(math.log(end)) for ratio in ratios for end in (ratio.low, ratio.ratio, ratio.high) if 0 < end < math.inf
    ]
    return min(_MOST_SCALE, max([*ends, _LEAST_SCALE]) * 1.05)


class IntervalCells(NamedTuple):
    """The cells of an axis at which an interval begins, has its estimate and ends, and that of 1."""

    low: int
    middle: int
    high: int
    no_difference: int


def place_interval(value: Ratio, most: float, width: int) -> IntervalCells:
    """Return the cells of an interval on an axis of `width` cells, from 1/e^most to e^most."""
    return IntervalCells(*(_cell(end, most, width) for end in (value.low, value.ratio, value.high, 1.0)))


def draw_interval(value: Ratio, most: float, width: int) -> str:
    """Return an interval drawn on an axis of `width` cells, with `│` at 1 where it is free."""
    low, middle, high, no_difference = place_interval(value, most, width)
    cells = [" "] * width
    cells[low : high + 1] = "━" * (high + 1 - low)
    cells[no_difference] = "┿" if low <= no_difference <= high else "│"
    cells[middle] = "◆"
    return "".join(cells)


def _cell(value: float, most: float, width: int) -> int:
    place = math.log(value) if 0 < value < math.inf else most if value > 0 else -most
    return round((max(-most, min(place, most)) + most) / (2 * most) * (width - 1))


def draw_axis(most: float, width: int) -> str:
    """Return the labels under an axis of ratios: both ends and 1."""
    left, right = f"{math.exp(-most):.2g}", f"{math.exp(most):.2g}"
    centre = _cell(1.0, most, width)
    line = left.ljust(centre) + "1"
    return line.ljust(width - len(right)) + right
