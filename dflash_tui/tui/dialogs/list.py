"""The dialog that most others are: a list, a line above it, details below it, and a field for what is not listed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static
from textual.widgets.option_list import Option

from dflash_tui.tui.dialogs.basic import Dialog
from dflash_tui.tui.widgets.basic import MarkedList, Result, TextField

_ROW_EDGES = 3  # a scrollbar, and a blank on both sides


class ListDialog(Dialog[Result]):
    """A list to choose from; `choose` is the action on the highlighted row, `take` that on what was typed."""

    SECRET: ClassVar = False
    """Whether what is typed is not shown."""

    def __init__(self) -> None:
        super().__init__()
        self.heading, self.rows = Static(id="heading", markup=False), MarkedList(id="rows", markup=False)
        self.field, self.about = TextField(id="field", password=self.SECRET), Static(id="about", markup=False)
        self.detail = VerticalScroll(self.about, id="detail")
        self.heading.display = self.rows.display = self.field.display = self.detail.display = False
        self.box = Vertical(self.heading, self.rows, self.field, self.detail, classes="dialog -wide -list")

    def compose(self) -> ComposeResult:
        yield self.box

    @property
    def is_typing(self) -> bool:
        """Whether the field is open."""
        return self.has_class("-typing")

    @property
    def place(self) -> int:
        """Which row is highlighted; the first where none is."""
        return self.rows.highlighted or 0

    @property
    def row_width(self) -> int:
        """The cells of a row, whether rows are there yet or not."""
        return self.box.content_size.width - _ROW_EDGES

    def show_heading(self, text: str | Content) -> None:
        """Replace the line above the list."""
        self.heading.display = True
        self.heading.update(text if isinstance(text, Content) else Content(text))

    def show_rows(self, rows: Iterable[Content | Option], place: int = 0) -> None:
        """Replace the rows, and highlight one."""
        self.rows.clear_options()
        self.rows.add_options([row if isinstance(row, Option) else Option(row) for row in rows])
        self.rows.display = self.rows.option_count > 0
        self.rows.highlighted = min(place, self.rows.option_count - 1) if self.rows.option_count else None
        if not self.is_typing:
            self.set_focus(self.rows)
        self.refresh_bindings()

    def show_detail(self, text: str | Content) -> None:
        """Replace the details below the list."""
        content = text if isinstance(text, Content) else Content(text)
        self.detail.display = bool(content)
        self.about.update(content)

    def open_field(self, value: str = "", placeholder: str = "", title: str = "") -> None:
        """Let something be typed."""
        self.field.value, self.field.placeholder, self.field.border_title = value, placeholder, Content(title)
        self.add_class("-typing")
        self.field.open()
        self.refresh_bindings()

    def close_field(self) -> None:
        """Go back to the list."""
        self.remove_class("-typing")
        self.field.display = False
        self.set_focus(self.rows)
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        listed = not self.is_typing and bool(self.rows.option_count)
        return {"choose": listed, "type": listed, "take": self.is_typing}.get(action, True)

    def action_leave(self) -> None:
        """Leave the field as it was, or close."""
        if self.is_typing and self.rows.option_count:
            self.close_field()
        else:
            self.dismiss(None)
