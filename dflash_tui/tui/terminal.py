"""The panel's terminal: threads, signals, control characters, crash reports."""

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
# One each for Textual's input, Textual's output, the GPU driver and the terminal watch.
_OTHER_THREADS = 4
# Textual waits for ever for a terminal that accepts no output, such as a closed one.
_SECONDS_TO_EXIT = 15.0


class ControlCharacterFilter(LineFilter):
    """Replaces control characters in drawn lines by spaces, as a last line of defence; widths are kept.

    It also gives every segment a style: Textual draws some in one to three columns without, on which its own filter for
    NO_COLOR fails.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - Textual's interface
        if not any(style is None or ACTS.search(text) for text, style, _ in segments):
            return segments
        return [Segment(_blank(text), style or Style.null(), control) for text, style, control in segments]


def _blank(text: str) -> str:
    return ACTS.sub(lambda match: " " * cell_len(match[0]), text)


_FILTER = ControlCharacterFilter()


class RedactedErrors(io.StringIO):
    """Standard error without secrets and control characters: Textual's crash report includes local variables."""

    def write(self, text: str) -> int:
        return sys.stderr.write(escape_control_characters(redact_secrets(clean_lines(text))))

    def flush(self) -> None:
        sys.stderr.flush()


class TerminalApp(App[str]):
    """A Textual app that filters control characters and redacts secrets from crash reports."""

    def __init__(self) -> None:
        super().__init__()
        self.error_console = Console(markup=False, highlight=False, file=RedactedErrors())

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [_FILTER, *super().get_line_filters()]


def start_threads() -> ThreadPoolExecutor:
    """Start all threads before Textual takes over the terminal, so that a thread limit is reported as a normal error.

    Raises:
        RuntimeError: the system does not allow as many threads as the panel needs.
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
    """Call `leave` with the exit code on SIGTERM, SIGHUP or a closed terminal, and force the exit soon after.

    A timer thread ends the process, since the event loop may be blocked, such as in writing to a closed terminal.
    """
    loop = asyncio.get_running_loop()

    def on_signal(number: int, _frame: object) -> None:
        code = 128 + number
        deadline = threading.Timer(_SECONDS_TO_EXIT, os._exit, (code,))
        deadline.daemon = True
        with contextlib.suppress(RuntimeError):  # the system allows no more threads
            deadline.start()
        loop.call_soon_threadsafe(leave, code)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    threading.Thread(target=_watch_terminal, args=(sys.__stdin__,), name="terminal", daemon=True).start()


def _watch_terminal(terminal: TextIO | None) -> None:
    """Wait until the terminal is closed, then send SIGHUP to this process.

    The kernel sends it only to the session leader, which may be another process.
    """
    if terminal is not None and terminal.isatty():
        hang_up = select.poll()
        hang_up.register(terminal, 0)  # a hang-up is always reported
        hang_up.poll()
        os.kill(os.getpid(), signal.SIGHUP)
