"""Waits for states, never for time: the limits only end tests that would hang, on a machine ten times slower."""

import asyncio
import time
from collections.abc import Callable

PATIENCE = 300.0


async def until(true: Callable[[], object], limit: float = PATIENCE) -> None:
    """Let the event loop work until something holds."""
    deadline = time.monotonic() + limit
    while (pause := _look(true)) is not None:
        assert time.monotonic() < deadline, f"it did not happen within {limit:.0f} s"
        await asyncio.sleep(max(0.05, pause))


def wait_until(true: Callable[[], object], limit: float = PATIENCE) -> None:
    """Do nothing until something holds."""
    deadline = time.monotonic() + limit
    while (pause := _look(true)) is not None:
        assert time.monotonic() < deadline, f"it did not happen within {limit:.0f} s"
        time.sleep(max(0.03, pause))


def _look(true: Callable[[], object]) -> float | None:
    """Return None where it holds, or for how many seconds not to look again: twice as long as a look takes."""
    began = time.monotonic()
    return None if true() else 2 * (time.monotonic() - began)
