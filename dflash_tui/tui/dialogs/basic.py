"""Dialogs used by several screens: a question, an error, the keys."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.dom import DOMNode
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Static

from dflash_tui.common.errors import DflashError
from dflash_tui.tui.composition import once_composed
from dflash_tui.tui.keys import COMMON_KEYS
from dflash_tui.tui.widgets.basic import Keys, Result, SizedScreen, render_error

EVERYWHERE = "everywhere"
_LONGEST_KEY = 8  # longer ones are words, in a column of their own


class Dialog(ModalScreen[Result], SizedScreen[Result]):
    """A dialog with a title on its border and its keys in its last row; `?` explains them."""

    BOX: ClassVar = ".dialog"
    HEADING: ClassVar = ""
    BINDINGS: ClassVar = [Binding("question_mark", "app.keys", "help", key_display="?")]

    @once_composed
    def on_mount(self) -> None:
        """Add the title and the keys, which every dialog has."""
        box = self.query_one(self.BOX)
        box.border_title = box.border_title or self.HEADING
        box.mount(Keys())


def measure_text(pane: Widget) -> int:
    """Return the cells of a row of text in a scrolled pane, whose scrollbar may come with the text, and a blank."""
    return max(40, pane.scrollable_content_region.width - (not pane.show_vertical_scrollbar) - 1)


class Confirm(ModalScreen[bool], SizedScreen[bool]):
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
        with Vertical(classes="dialog") as box:
            box.border_title = "confirm"
            yield Static(Content.assemble((self.question, "bold"), f"\n{self.detail}\n\n", *keys))


class ErrorDialog(Dialog[None]):
    """Shows an error that has no place of its own on the screen."""

    HEADING: ClassVar = "error"
    BINDINGS: ClassVar = [Binding("escape,enter,space,q", "dismiss", "close", key_display="esc")]

    def __init__(self, error: DflashError) -> None:
        super().__init__()
        self.error = error

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -error"):
            yield Static(render_error(self.error.what, self.error.evidence, self.error.hint))


class KeyGroup(NamedTuple):
    """Keys that belong together in the help."""

    title: str
    """What they are keys of."""
    keys: list[tuple[str, str]]
    """Each key, and what it does."""


class Help(ModalScreen[None], SizedScreen[None]):
    """Lists the keys of the screen below it, grouped by what they are for."""

    BINDINGS: ClassVar = [Binding("escape,enter,question_mark,q", "dismiss", "close", key_display="esc")]

    def __init__(self, groups: Iterable[KeyGroup]) -> None:
        super().__init__()
        self.groups = list(groups)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide", id="help"):
            with VerticalScroll(id="checks"):
                yield Static(id="keys", markup=False)
            yield Keys()

    @once_composed
    def on_mount(self) -> None:
        self.query_one(".dialog").border_title = "keys"
        self.query_one("#checks").focus()
        self.call_after_refresh(self.draw)

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """List the keys; what does not fit beside a key goes on below its first line."""
        width = measure_text(self.query_one("#checks"))
        self.query_one("#keys", Static).update(render_keys(self.groups, width))


def render_keys(groups: Sequence[KeyGroup], width: int) -> Content:
    """Return the keys by group in rows of `width` cells."""
    common = max((len(key) for group in groups for key, _ in group.keys if len(key) <= _LONGEST_KEY), default=0)
    rows: list[Content] = []
    for group in groups:
        column = max([common, *(len(key) for key, _ in group.keys)])
        rows += [Content.assemble((group.title, "bold"))]
        for key, text in group.keys:
            lines = textwrap.wrap(text, width - column - 4) or [""]
            hung = f"\n{'':{column + 4}}".join(lines)
            rows.append(Content.assemble((key.rjust(column + 2), "bold $primary"), f"  {hung}"))
        rows.append(Content(""))
    rows.append(Content("Servers run without the panel: q quits the panel only, S stops a server."))
    rows.append(Content("Without colours: NO_COLOR=1."))
    return Content("\n").join(rows)


def list_keys(screen: Screen[Any]) -> list[KeyGroup]:
    """Return the keys that do something now: those of the screen, of the log where it has the focus, of the panel.

    A log that fills the screen comes before it.
    A screen's `GLOSSES`, which are words that it shows and what they mean, follow.
    """
    bindings = (binding for binding in screen.active_bindings.values() if binding.binding.action != "command_palette")
    active = [binding for binding in bindings if binding.binding.show or binding.binding.tooltip]
    groups: dict[str, dict[str, tuple[str, str]]] = {}
    for node, binding, enabled, _ in sorted(active, key=lambda binding: is_below_screen(binding.node)):
        if enabled:
            title = EVERYWHERE if binding in COMMON_KEYS else _name_node(node)
            text = binding.tooltip or binding.description
            groups.setdefault(title, {}).setdefault(binding.action, (_format_key(binding), text))
    moving = [("tab ↑ ↓", "Move and scroll"), ("ctrl+p", "Command palette: every action, recipes, runs, themes")]
    listed = [KeyGroup(title, list(keys.values())) for title, keys in groups.items()]
    glosses = [KeyGroup(title, list(rows)) for title, rows in getattr(screen, "GLOSSES", {}).items()]
    return [*(group for group in listed if group.title != EVERYWHERE), *_join_everywhere(listed, moving), *glosses]


def is_below_screen(node: DOMNode) -> bool:
    """Return whether keys of `node` are listed after the screen's own; those of a log that fills it are before."""
    return not isinstance(node, Screen) and not any(parent.has_class("-log") for parent in node.ancestors)


def _join_everywhere(listed: Sequence[KeyGroup], moving: list[tuple[str, str]]) -> list[KeyGroup]:
    own = next((group.keys for group in listed if group.title == EVERYWHERE), [])
    return [KeyGroup(EVERYWHERE, [*own, *moving])]


def _name_node(node: DOMNode) -> str:
    if isinstance(node, App):
        return EVERYWHERE
    if isinstance(node, Screen):
        return "this dialog" if node.is_modal else "this screen"
    return node.id or "the list"


def _format_key(binding: Binding) -> str:
    return binding.key_display or binding.key.partition(",")[0]
