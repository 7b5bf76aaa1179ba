"""The panel and its terminal: threads, signals, control characters, and how a crash is reported."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.color import Color
from textual.filter import LineFilter

from dflash_tui.common.sanitizer import ACTS, clean_lines, escape_control_characters
from dflash_tui.common.secrets import redact_secrets

_POOL_THREADS = 8
# Textual reads keys in one and writes in another, the driver is asked in a third, the terminal is watched in a fourth.
_OTHER_THREADS = 4
# Textual waits for ever for a terminal that takes no more output, as one that is gone does.
_SECONDS_TO_EXIT = 15.0


class ControlCharacterFilter(LineFilter):
    """Replaces control characters in each drawn line by spaces, as the last line of defence; the width stays.

    It gives each part of a line a style: what Textual draws in one to three columns may have none, and its own filter
    for NO_COLOR fails over that.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - Textual's interface
        if not any(style is None or ACTS.search(text) for text, style, _ in segments):
            return segments
        return [Segment(_blank(text), style or Style.null(), control) for text, style, control in segments]


def _blank(text: str) -> str:
    return ACTS.sub(lambda match: " " * cell_len(match[0]), text)


_FILTER = ControlCharacterFilter()


class RedactedErrors(io.StringIO):
    """Standard error without secrets and control characters: Textual's crash report has the local variables."""

    def write(self, text: str) -> int:
        return sys.stderr.write(escape_control_characters(redact_secrets(clean_lines(text))))

    def flush(self) -> None:
        sys.stderr.flush()


class TerminalApp(App[str]):
    """A Textual app that writes no control characters of others and reports a crash without secrets."""

    def __init__(self) -> None:
        super().__init__()
        self.error_console = Console(markup=False, highlight=False, file=RedactedErrors())

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [_FILTER, *super().get_line_filters()]


def start_threads() -> ThreadPoolExecutor:
    """Start all threads before Textual takes over the terminal, so that a thread limit is reported as a normal error.

    Raises:
        RuntimeError: the system does not let so many be started as the panel needs.
    """
    pool, all_started = ThreadPoolExecutor(_POOL_THREADS), threading.Event()
    try:
        for _ in range(_POOL_THREADS):
            pool.submit(all_started.wait)
        for _ in range(_OTHER_THREADS):
            threading.Thread(target=all_started.wait).start()
    except RuntimeError:
        pool.shutdown(wait=False)
        raise
    finally:
        all_started.set()
    return pool


def leave_on_signals(leave: Callable[[int], object]) -> None:
    """Call `leave` with the exit code on SIGTERM, SIGHUP or a lost connection, and exit soon after in any case.

    The event loop may be blocked, for instance in writing to a terminal that has vanished, so a timer of its own ends
    the process.
    """
    loop = asyncio.get_running_loop()

    def on_signal(number: int, _frame: object) -> None:
        code = 128 + number
        deadline = threading.Timer(_SECONDS_TO_EXIT, os._exit, (code,))
        deadline.daemon = True
        with contextlib.suppress(RuntimeError):  # no more threads may be started
            deadline.start()
        loop.call_soon_threadsafe(leave, code)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    threading.Thread(target=_watch_terminal, args=(sys.__stdin__,), name="terminal", daemon=True).start()


def _watch_terminal(terminal: TextIO | None) -> None:
    """Wait until the terminal is closed, then send SIGHUP to ourselves.

    The kernel sends it to the session's leader only, which may be another process.
    """
    if terminal is not None and terminal.isatty():
        hang_up = select.poll()
        hang_up.register(terminal, 0)  # a hang-up is always reported
        hang_up.poll()
        os.kill(os.getpid(), signal.SIGHUP)
