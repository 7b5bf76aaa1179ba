"""The clock of this machine: whether somebody set it, as a network service does after a start with a wrong time."""

from __future__ import annotations

import time

# Reading two clocks takes no time; a service that corrects by less slews the clock instead.
TOLERANCE = 2.0


def read_boot_time() -> float:
    """Return when the machine was booted, in seconds since the epoch, as its clock tells it now.

    It changes exactly when the clock is set, and by as much: the seconds since the boot are counted by another clock.
    """
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
