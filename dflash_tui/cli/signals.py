"""Let signals that would end a command at once end what it has begun like Ctrl-C does."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cancelled_by_signals(*, wanted: bool = True) -> Iterator[None]:
    """Let SIGTERM and a lost connection clean up like Ctrl-C, if `wanted`: while something is half-made, or ours."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None  # noqa: S101 - called from a coroutine
    numbers = (signal.SIGTERM, signal.SIGHUP) if wanted else ()
    for number in numbers:
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextmanager
def ended_by_signals(*, wanted: bool = True) -> Iterator[None]:
    """Let these signals end a command at once within `cancelled_by_signals`, if `wanted`: while nothing is ours."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None  # noqa: S101 - called from a coroutine
    numbers = (signal.SIGTERM, signal.SIGHUP) if wanted else ()
    for number in numbers:
        loop.remove_signal_handler(number)
    try:
        yield
    finally:
        for number in numbers:
            loop.add_signal_handler(number, task.cancel)
