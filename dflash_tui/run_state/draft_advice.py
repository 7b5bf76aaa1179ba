"""Which drafted positions are worth their work, and how many tokens to draft. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# Fewer steps tell too little: at 200 a share of 2 % is known to about one.
MIN_STEPS = 200
# A position is useful when it gives so much more tokens per step than those before it do.
MIN_GAIN = 0.02


class DraftAdvice(NamedTuple):
    """The first useless position (from 1; None when all are useful), and how many tokens to draft instead."""

    first_useless: int | None
    suggested: int


def advise_draft_length(shares: Sequence[float], steps: float) -> DraftAdvice | None:
    """Return what `shares` of `steps` in which each position was accepted say; None when that is too little.

    Position p adds shares[p] tokens to a step that gives 1 + the shares before it, the bonus token included. Where
    that is under `LEAST_GAIN`, verifying it costs at least as much in every model that was measured. The figures are
    those of the traffic in the window: another n is a guess until it was measured.
    """
    if not shares or steps < MIN_STEPS:
        return None
    length = 1.0
    for place, share in enumerate(shares):
        if share < MIN_GAIN * length:
            return DraftAdvice(place + 1, max(1, place))
        length += share
    return DraftAdvice(None, len(shares))
