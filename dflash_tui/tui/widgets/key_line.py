"""The last row of a screen or a dialog: the keys that do something now, or what was said last."""

from __future__ import annotations

from typing import NamedTuple

from textual.app import RenderResult
from textual.content import Content
from textual.events import Click
from textual.geometry import Size
from textual.widget import Widget

from dflash_tui.tui.terminal import StatusMessage, TerminalApp

_SEVERITIES = {"information": ("·", "$primary"), "warning": ("!", "$warning"), "error": ("✗", "$error")}
# These are never left out: whoever is lost needs them.
_LAST = ("escape", "question_mark", "q")


class ShownKey(NamedTuple):
    """A key of the row."""

    name: str
    """The key as Textual calls it; empty for one that a widget handles itself."""
    display: str
    """The key as it is written."""
    label: str
    """What it does."""

    @property
    def width(self) -> int:
        """The cells that it takes."""
        return len(self.display) + len(self.label) + 1


def fit_keys(keys: list[ShownKey], width: int) -> list[ShownKey]:
    """Return the keys that fit into `width` cells with a blank between two; escape, help and quit stay, at the end."""
    last = sorted((key for key in keys if key.name in _LAST), key=lambda key: _LAST.index(key.name))
    left, fitting = width - sum(key.width + 1 for key in last) + 1, []
    for key in keys:
        if key not in last:
            left -= key.width + 1
            if left < 0:
                break
            fitting.append(key)
    return [*fitting, *last]


class KeyLine(Widget):
    """One row in place of Textual's `Footer`, whose ten widgets cost a tenth of the first drawing, and of its toasts.

    A click on a key presses it.

    Args:
        enter: What enter does, where the focused widget handles it.
    """

    DEFAULT_CSS = """
    KeyLine { dock: bottom; height: auto; max-height: 3; background: $footer-background; }
    """
    ALLOW_SELECT = False

    def __init__(self, enter: str = "") -> None:
        super().__init__()
        self.enter = enter
        self.only: list[ShownKey] = []  # the keys of what fills the screen, in place of the screen's own

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, lambda _: self.refresh())
        if isinstance(self.app, TerminalApp):
            self.app.status_changed.subscribe(self, lambda _: self.refresh(layout=True))

    def on_unmount(self) -> None:
        self.screen.bindings_updated_signal.unsubscribe(self)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the rows of what was said last, else one: which keys there are is asked when they are drawn."""
        return super().get_content_height(container, viewport, width) if self._status else 1

    def render(self) -> RenderResult:
        if status := self._status:
            mark, color = _SEVERITIES[status.severity]
            return Content.assemble((f"{mark} ", f"bold {color}"), (status.text, "bold"))
        # Without colours a key would be a dimmer grey than its label.
        style = "bold underline" if self.app.no_color else "bold $footer-key-foreground"
        parts: list[str | tuple[str, str]] = []
        for key in self._keys():
            parts += [(key.display, style), f" {key.label} "]
        return Content.assemble(*parts)

    @property
    def _status(self) -> StatusMessage | None:
        return self.app.status if isinstance(self.app, TerminalApp) else None

    def _keys(self) -> list[ShownKey]:
        if self.only:
            return fit_keys(self.only, self.size.width)
        keys = [ShownKey("", "⏎", self.enter)] if self.enter else []
        done: set[str] = set()
        for active in self.screen.active_bindings.values():
            binding = active.binding
            if binding.show and active.enabled and binding.action not in done:
                done.add(binding.action)
                keys.append(ShownKey(binding.key, self.app.get_key_display(binding), binding.description))
        return fit_keys(keys, self.size.width)

    def on_click(self, event: Click) -> None:
        """Press the key that was clicked."""
        if self._status:
            return
        place = 0
        for key in self._keys():
            place += key.width + 1
            if event.x < place:
                if key.name:
                    self.app.simulate_key(key.name)
                return
