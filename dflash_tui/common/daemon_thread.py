"""Work in a daemon thread: neither a caller that gives up nor the end of the program waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def start_daemon(work: Callable[[], T]) -> Future[T]:
    """Run `work` in a daemon thread and return its future, which cannot be cancelled."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised by the future's result()
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
