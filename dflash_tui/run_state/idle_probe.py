"""When a resting server is asked for one token, since one that hangs while nobody asks looks like one that rests."""

from __future__ import annotations

import math
import os

AFTER = 600.0
PATIENCE = 60.0
_LEAST = 10.0


def idle_seconds_before_probe() -> float:
    """Return the idle seconds before a probe: DFLASH_TUI_PROBE, ten minutes by default; infinity where that is 0."""
    try:
        seconds = float(os.environ.get("DFLASH_TUI_PROBE", AFTER))
    except ValueError:
        return AFTER
    return max(_LEAST, seconds) if seconds > 0 else math.inf
