"""Dialogs used by several screens: a question, an error, the keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from dflash_tui.common.errors import DflashError
from dflash_tui.tui.widgets.failure import render_error


class Confirm(ModalScreen[bool]):
    """Asks a yes-or-no question; only `y` means yes."""

    BINDINGS: ClassVar = [
        Binding("y", "dismiss(True)", "yes"),
        Binding("n,escape,q", "dismiss(False)", "no"),
    ]

    def __init__(self, question: str, detail: str, yes: str, no: str = "cancel") -> None:
        super().__init__()
        self.question, self.detail, self.yes, self.no = question, detail, yes, no

    def compose(self) -> ComposeResult:
        keys = (("y", "bold $primary"), f"  {self.yes}\n", ("n", "bold $primary"), f"  {self.no}")
        with Vertical(classes="dialog"):
            yield Static(Content.assemble((self.question, "bold"), f"\n{self.detail}\n\n", *keys))


class ErrorDialog(ModalScreen[None]):
    """Shows an error that has no place of its own on the screen."""

    BINDINGS: ClassVar = [Binding("escape,enter,space,q", "dismiss", "close")]

    def __init__(self, error: DflashError) -> None:
        super().__init__()
        self.error = error

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -error"):
            yield Static(render_error(self.error.what, self.error.evidence, self.error.hint))
            yield Static(Content("\nesc  close"), classes="muted")


class Help(ModalScreen[None]):
    """Lists the keys of the screen below it."""

    BINDINGS: ClassVar = [Binding("escape,enter,question_mark,q", "dismiss", "close")]

    def __init__(self, keys: Iterable[tuple[str, str]]) -> None:
        super().__init__()
        self.keys = list(keys)

    def compose(self) -> ComposeResult:
        width = max((len(key) for key, _ in self.keys), default=0)
        rows = [Content.assemble((key.rjust(width), "bold $primary"), f"  {text}") for key, text in self.keys]
        with VerticalScroll(classes="dialog"):
            yield Static(Content("\n").join(rows))
            yield Static(
                Content(
                    "\nServers run without the panel: q quits the panel only, S stops the server.\n"
                    "Without colours: NO_COLOR=1.   esc  close"
                ),
                classes="muted",
            )


def list_keys(screen: Screen[Any]) -> list[tuple[str, str]]:
    """Return the keys of a screen and of the panel with their descriptions, for `Help`."""
    focused = screen.focused.BINDINGS if screen.focused and screen.focused.id == "log" else ()
    bindings = (*screen.BINDINGS, *focused, *screen.app.BINDINGS)
    listed = [binding for binding in bindings if isinstance(binding, Binding) and (binding.show or binding.tooltip)]
    keys = [(_format_key(binding), binding.tooltip or binding.description) for binding in listed]
    return [*keys, ("tab ↑ ↓", "Move and scroll"), ("ctrl+p", "Command palette: commands, recipes, runs, themes")]


def _format_key(binding: Binding) -> str:
    return binding.key_display or binding.key.partition(",")[0]
