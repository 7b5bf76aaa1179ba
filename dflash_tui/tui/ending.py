"""A panel that a signal ends gives up what it prepares and leaves the terminal as it found it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable

# Textual waits for a terminal that takes no more, as one that is gone does.
_PATIENCE = 3.0


def on_signals(leave: Callable[[int], object]) -> None:
    """Call `leave` with the exit code when SIGTERM, or SIGHUP of a lost connection, comes; then end in any case."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, _end, leave, 128 + number)


def _end(leave: Callable[[int], object], code: int) -> None:
    deadline = threading.Timer(_PATIENCE, os._exit, (code,))
    deadline.daemon = True
    with contextlib.suppress(RuntimeError):  # no more threads may be started
        deadline.start()
    leave(code)
