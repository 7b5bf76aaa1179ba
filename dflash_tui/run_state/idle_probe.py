"""After how long an idle server is sent a probe request: one that hangs looks like one that is idle."""

from __future__ import annotations

import math
import os

_DEFAULT_IDLE_SECONDS = 600.0
PROBE_TIMEOUT = 60.0
_MIN_IDLE_SECONDS = 10.0


def idle_seconds_before_probe() -> float:
    """Return the idle seconds before a probe: DFLASH_TUI_PROBE, ten minutes by default; infinity where that is 0."""
    try:
        seconds = float(os.environ.get("DFLASH_TUI_PROBE", _DEFAULT_IDLE_SECONDS))
    except ValueError:
        return _DEFAULT_IDLE_SECONDS
    return max(_MIN_IDLE_SECONDS, seconds) if seconds > 0 else math.inf
