"""The panel's threads, started before it takes the terminal: who may start none is told so at the prompt."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

_POOL = 8
# Textual reads keys in one and writes in another, the driver is asked in a third, the terminal is watched in a fourth.
_OTHERS = 4


def start_threads() -> ThreadPoolExecutor:
    """Return a pool all of whose threads run, so that nothing in the panel has to wait for leave to start one.

    Raises:
        RuntimeError: the system does not let so many be started as the panel needs.
    """
    pool, all_there = ThreadPoolExecutor(_POOL), threading.Event()
    try:
        for _ in range(_POOL):
            pool.submit(all_there.wait)
        for _ in range(_OTHERS):
            threading.Thread(target=all_there.wait).start()
    except RuntimeError:
        pool.shutdown(wait=False)
        raise
    finally:
        all_there.set()
    return pool
