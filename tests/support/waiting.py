"""Waits for states, never for time: the limits only end tests that would hang, on a machine ten times slower."""

import asyncio
import time
from collections.abc import Callable

PATIENCE = 300.0


async def until(true: Callable[[], object], limit: float = PATIENCE) -> None:
    """Let the event loop work until something holds."""
    deadline = time.monotonic() + limit
    while not true():
        assert time.monotonic() < deadline, f"it did not happen within {limit:.0f} s"
        await asyncio.sleep(0.05)


def wait_until(true: Callable[[], object], limit: float = PATIENCE) -> None:
    """Do nothing until something holds."""
    deadline = time.monotonic() + limit
    while not true():
        assert time.monotonic() < deadline, f"it did not happen within {limit:.0f} s"
        time.sleep(0.03)
