"""Guards of methods that Textual, a timer or a worker calls when a widget is not ready for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from textual.css.query import NoMatches
from textual.widget import Widget
from textual.worker import Worker

Composed = TypeVar("Composed", bound=Widget)
Opened = TypeVar("Opened", bound=Widget)
Given = ParamSpec("Given")


def once_composed(mount: Callable[[Composed], None]) -> Callable[[Composed], None]:
    """Return an `on_mount` that does without children, as Textual calls it while the panel closes, too."""

    @functools.wraps(mount)
    def mount_if_composed(widget: Composed) -> None:
        if not widget.children:
            return
        try:
            mount(widget)
        except NoMatches:  # of its children some are there
            if widget.app.is_running:
                raise

    return mount_if_composed


def while_open(draw: Callable[Concatenate[Opened, Given], None]) -> Callable[Concatenate[Opened, Given], None]:
    """Return a `draw` that may come when parts of its screen are missing: a worker draws while the panel closes."""

    @functools.wraps(draw)
    def draw_if_open(widget: Opened, /, *args: Given.args, **kwargs: Given.kwargs) -> None:
        try:
            draw(widget, *args, **kwargs)
        except NoMatches:
            if widget.app.is_running and widget.is_mounted and widget.screen.is_active:
                raise

    return draw_if_open


def each_in_turn(begin: Callable[[], Worker[Any]]) -> Callable[[], None]:
    """Return what a timer calls to begin work anew: not before the last it began is over.

    Work that takes longer than the interval, as from a slow disk, would be cancelled by its successor each time.
    """
    begun: list[Worker[Any]] = []

    def begin_when_over() -> None:
        if not begun or begun[-1].is_finished:
            begun[:] = [begin()]

    return begin_when_over
