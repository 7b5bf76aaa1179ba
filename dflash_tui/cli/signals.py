"""Handle SIGTERM and SIGHUP like Ctrl-C while a command has something to clean up."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def cancelled_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP cancel the task like Ctrl-C, so that it cleans up."""
    _cancel_task()
    try:
        yield
    finally:
        _end_program()


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let the signals end a command at once within `cancelled_by_signals`, while nothing needs cleaning up."""
    _end_program()
    try:
        yield
    finally:
        _cancel_task()


def _cancel_task() -> None:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - called from a coroutine
    for number in _ENDING:
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


def _end_program() -> None:
    for number in _ENDING:
        asyncio.get_running_loop().remove_signal_handler(number)
