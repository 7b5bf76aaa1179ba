"""Guards of methods that Textual or a worker calls when the parts of a widget are not there: not yet, or no longer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widget import Widget

Composed = TypeVar("Composed", bound=Widget)
Opened = TypeVar("Opened", bound=Screen[Any])


def once_composed(mount: Callable[[Composed], None]) -> Callable[[Composed], None]:
    """Return an `on_mount` that does nothing without children, as Textual calls it while the panel closes, too."""

    @functools.wraps(mount)
    def mount_if_composed(widget: Composed) -> None:
        if widget.children:
            mount(widget)

    return mount_if_composed


def while_open(draw: Callable[[Opened], None]) -> Callable[[Opened], None]:
    """Return a `draw` that may come when parts of its screen are missing: a worker draws while the panel closes."""

    @functools.wraps(draw)
    def draw_if_open(screen: Opened) -> None:
        try:
            draw(screen)
        except NoMatches:
            if screen.app.is_running and screen.is_active and screen.is_mounted:
                raise

    return draw_if_open
