"""A panel that a signal or the loss of its terminal ends gives up what it prepares and leaves all as it found it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from typing import TextIO

# Textual waits for a terminal that takes no more, as one that is gone does.
_PATIENCE = 3.0


def leave_on_signals(leave: Callable[[int], object]) -> None:
    """Call `leave` with the exit code when SIGTERM, or SIGHUP of a lost connection, comes; then end in any case.

    The loop itself may stand still, as over writes to a terminal that has vanished. So it is not the loop that is told.
    """
    loop = asyncio.get_running_loop()

    def end(number: int, _frame: object) -> None:
        code = 128 + number
        deadline = threading.Timer(_PATIENCE, os._exit, (code,))
        deadline.daemon = True
        with contextlib.suppress(RuntimeError):  # no more threads may be started
            deadline.start()
        loop.call_soon_threadsafe(leave, code)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    threading.Thread(target=_until_gone, args=(sys.__stdin__,), name="terminal", daemon=True).start()


def _until_gone(terminal: TextIO | None) -> None:
    """Wait until the terminal is gone, then do as SIGHUP: it may belong to a session of others, who alone get that."""
    if terminal is not None and terminal.isatty():
        gone = select.poll()
        gone.register(terminal, 0)  # a hang-up is told unasked
        gone.poll()
        os.kill(os.getpid(), signal.SIGHUP)
