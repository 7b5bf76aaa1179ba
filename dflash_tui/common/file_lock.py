"""Take the lock on a file, or wait for it; the kernel drops it when its holder ends, however that ends."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable

_INTERVAL = 0.05


def try_lock(descriptor: int) -> bool:
    """Take the exclusive lock on an open file if nobody has it; return whether it is ours now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def acquire_lock(descriptor: int, timeout: float, check: Callable[[], None] = lambda: None) -> bool:
    """Wait at most `timeout` seconds for the exclusive lock on an open file; return whether it is ours now.

    `check` is called before each attempt, and may raise to give up.
    """
    deadline = time.monotonic() + timeout
    while True:
        check()
        if try_lock(descriptor):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_INTERVAL)
