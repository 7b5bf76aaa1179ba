"""What is known of how long two arms take to start, and of when a later start has paid back, as values."""

from __future__ import annotations

import msgspec


class StartComparison(msgspec.Struct, frozen=True):
    """Mean seconds of both arms' starts, None where none was seen."""

    cold: tuple[float | None, float | None] = (None, None)
    """From the launch to the first answer, where everything was compiled."""
    cached: tuple[float | None, float | None] = (None, None)
    """From the launch to the first answer, where the compile cache had it."""
    first_request: tuple[float | None, float | None] = (None, None)
    """What the first real request took."""
    uncached: tuple[bool, bool] = (False, False)
    """Whether an arm has no compile cache, so that all its starts are alike, while the other one has."""
    filling: tuple[float | None, float | None] = (None, None)
    """Of the boots that filled the caches and are in no verdict, with what was inspected before the launch."""


class BreakEven(msgspec.Struct, frozen=True):
    """After how many tokens the arm that starts later has made up for it."""

    by: int
    """The arm that starts later."""
    seconds: float
    """By how much it is behind when both arms have answered their first request."""
    cold: bool
    """Whether that is after cold starts."""
    tokens: float | None = None
    """After how many tokens it has made up for it; None is never, as it is not shown to be faster."""
    requests: float | None = None
    """The same in requests of the suite's mean length."""
    low: float | None = None
    """The fewest tokens that the interval of starts and speed allows; None: no speed in it makes up for the start."""
    high: float | None = None
    """The most tokens that the interval allows; None is without end."""
    starts: tuple[int, int] = (0, 0)
    """Of how many starts of each arm `seconds` is the mean."""
    start_cv: float | None = None
    """How far starts of one arm vary, which is in the interval; None in reports of before."""
    start_df: float | None = None
    """The degrees of freedom of that; None where no start was repeated and it is assumed."""
