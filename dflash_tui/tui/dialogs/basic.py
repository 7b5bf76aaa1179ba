"""What is laid over a screen: a question, an error, the keys."""

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
    """Asks one question; only `y` says yes."""

    BINDINGS: ClassVar = [
        Binding("y", "dismiss(True)", "yes"),
        Binding("n,escape,q", "dismiss(False)", "no"),
    ]

    def __init__(self, question: str, detail: str, yes: str, no: str = "leave it as it is") -> None:
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
                    "\nThe server does not need the panel: q leaves it running, S ends it.\n"
                    "Without colours: NO_COLOR=1. esc closes this."
                ),
                classes="muted",
            )


def list_keys(screen: Screen[Any]) -> list[tuple[str, str]]:
    """Return the keys of a screen and of the panel and what they do, as their bindings say it, for `Help`."""
    focused = screen.focused.BINDINGS if screen.focused and screen.focused.id == "log" else ()
    known = (*screen.BINDINGS, *focused, *screen.app.BINDINGS)
    bound = [b for b in known if isinstance(b, Binding) and (b.show or b.tooltip)]
    keys = [(_key(binding), binding.tooltip or binding.description) for binding in bound]
    return [*keys, ("tab ↑ ↓", "Move and scroll"), ("ctrl+p", "Every command, recipes, runs, other themes")]


def _key(binding: Binding) -> str:
    return binding.key_display or binding.key.partition(",")[0]
