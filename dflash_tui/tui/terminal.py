"""The panel and its terminal: threads, signals, control characters, changes of size, and how a crash is reported."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TextIO

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.app import App, ScreenError
from textual.color import Color
from textual.css.stylesheet import Stylesheet
from textual.events import Event, InputEvent, Key, Paste, Ready, ScreenResume
from textual.filter import LineFilter
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.signal import Signal
from textual.widgets import Input

from dflash_tui.common.errors import explain_resource_limit
from dflash_tui.common.sanitizer import ACTS, clean_line, clean_lines, escape_control_characters
from dflash_tui.common.secrets import redact_secrets

_POOL_THREADS = 8
# Textual reads keys in one and writes in another, the driver is asked in a third, the terminal is watched in a fourth.
_OTHER_THREADS = 4
# Textual waits for ever for a terminal that takes no more output, as one that is gone does.
_SECONDS_TO_EXIT = 15.0
# How long a message stays that does not say it.
_SECONDS: dict[SeverityLevel, float] = {"information": 4.0, "warning": 8.0, "error": 8.0}


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


class StatusMessage(NamedTuple):
    """What was said last, until a key is pressed or its time is over."""

    text: str
    severity: SeverityLevel


class CachedStylesheet(Stylesheet):
    """Styles that are parsed once for each theme; Textual itself parses all of them again for each new screen."""

    def set_variables(self, variables: dict[str, str]) -> None:
        if variables != self._variables:
            super().set_variables(variables)

    def reparse(self) -> None:
        self.parse()  # which knows what it has parsed with these variables


class TerminalApp(App[str]):
    """A Textual app that writes no control characters, reports a crash without secrets and survives fast resizing.

    It drops what is typed before the first frame, takes what is typed into a field in its order, and says in one line
    what other apps say in toasts.
    """

    def __init__(self) -> None:
        super().__init__()
        # Each screen would get a widget for them; ours says what there is to say in its last row.
        self._disable_notifications = self._disable_tooltips = True
        self._resizing: set[Screen[object]] = set()
        self._shown_at = math.inf  # when the first frame was seen
        self.status: StatusMessage | None = None
        self.status_changed: Signal[StatusMessage | None] = Signal(self, "status")

    def on_ready(self, _: Ready) -> None:
        """Take what is typed after the first frame."""
        if not (isinstance(self.screen, CoveredScreen) and self.screen.covered):
            self.take_input()

    def take_input(self) -> None:
        """Take what is typed from now on, if it is not taken already."""
        self._shown_at = min(self._shown_at, time.monotonic())

    async def on_event(self, event: Event) -> None:
        """Drop what was typed at a screen that nobody had seen yet; any later key takes the message away."""
        if isinstance(event, InputEvent) and not event.is_forwarded:
            if event.time < self._shown_at and not self.is_headless:
                return
            if isinstance(event, Key):
                self._set_status(None)
        if not (isinstance(event, Key | Paste) and not event.is_forwarded and await self._obey(event)):
            await super().on_event(event)

    async def _obey(self, event: Key | Paste) -> bool:
        """Do at once what a key is bound to, what is typed into a field or pasted; return whether it did anything.

        Textual itself does what keys with priority are bound to at once, and queues all others for the widget with the
        focus: of keys that come together, enter would go before those that chose what it starts, and letters get lost.
        """
        field = self.focused if isinstance(self.focused, Input) else None
        if isinstance(event, Key):
            if await self._check_bindings(event.key, priority=True):
                return True
            if field is None or not event.is_printable:
                return await self._check_bindings(event.key)
        if field is None:
            return False
        await field.on_event(event)
        return True

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        """Say something in the last row of the screen, where the keys are; a toast would cover what one looks at."""
        del title, markup
        status = StatusMessage(clean_line(message), severity)
        self._set_status(status)
        self.set_timer(timeout or _SECONDS[severity], lambda: self._end_status(status))

    def _end_status(self, status: StatusMessage) -> None:
        if self.status is status:
            self._set_status(None)

    def _set_status(self, status: StatusMessage | None) -> None:
        if status != self.status:
            self.status = status
            self.status_changed.publish(status)

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [_FILTER, *super().get_line_filters()]

    def _fatal_error(self) -> None:
        """Exit over a bug, or because no thread may be started.

        Textual itself would show local variables, and secrets may be among them.
        """
        if message := explain_resource_limit(sys.exc_info()[1]):
            self.panic(Text(f"dflash-tui: error: {message}"))
        else:
            self.panic(Text(escape_control_characters(redact_secrets(clean_lines(traceback.format_exc())))))

    def _check_resize(self) -> None:
        """Hold a new size of the terminal back until every screen has taken the one before.

        Two in a screen's queue follow each other for ever: for each the screen lays itself out and posts its size.
        """
        if self._resize_timer is not None:
            self._resize_timer.stop()
            self._resize_timer = None
        if self._resize_event is None or self._resizing:
            return
        try:
            screens = [self.screen, *self._background_screens]
        except ScreenError:  # there is none yet
            return
        super()._check_resize()
        self._resizing = {screen for screen in screens if screen.call_later(self._resized, screen)}

    def _resized(self, screen: Screen[object]) -> None:
        self._resizing.discard(screen)
        if not self._resizing:
            self._check_resize()


class CoveredScreen(Screen[None]):
    """A screen of which nothing is seen until it is drawn and laid out; before, it would be drawn several times."""

    covered, is_drawn = True, False

    def set_size_classes(self) -> None:
        """Set the classes of the terminal's size before there are widgets, so that their styles are found once."""
        width, height = self.app.size
        self.add_class(
            *self._get_breakpoint_classes(width, self.app.HORIZONTAL_BREAKPOINTS or []),
            *self._get_breakpoint_classes(height, self.app.VERTICAL_BREAKPOINTS or []),
        )

    def on_screen_resume(self, event: ScreenResume) -> None:
        """Find no styles anew for a screen that nobody has seen: its widgets have just got theirs."""
        event.refresh_styles = not self.covered

    def draw(self) -> None:
        """Bring every part up to date."""
        raise NotImplementedError

    def uncover(self) -> None:
        """Draw it for the first time, once more when that is laid out, and show it."""
        if not self.is_drawn:
            self.is_drawn = True
            self.draw()
            self.call_after_refresh(self._draw_fitting)

    def _draw_fitting(self) -> None:
        self.draw()
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        """Show it, whole and once, and take what is typed: before, or a key that comes at once would be lost."""
        self.covered = False
        if isinstance(self.app, TerminalApp):
            self.app.take_input()
        self._compositor.update_widgets({self})
        self._compositor_refresh()

    def _compositor_refresh(self) -> None:
        if not self.covered:
            super()._compositor_refresh()


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
