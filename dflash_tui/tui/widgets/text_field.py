"""A field for text that loses nothing of what is typed or pasted right behind the key that opens it."""

from __future__ import annotations

from textual.widgets import Input


class TextField(Input):
    """An `Input` whose text is selected when it is opened, so that what is typed replaces it.

    Textual would select it when the field learns of its focus; by then letters may be in it, which the next would
    replace.
    """

    def __init__(self, value: str = "", *, id: str, placeholder: str = "", password: bool = False) -> None:  # noqa: A002 - Textual's
        super().__init__(value, placeholder, id=id, password=password, select_on_focus=False)

    def open(self) -> None:
        """Show it and give it the focus at once: what is typed right behind is for it."""
        self.display = True
        self.select_all()
        self.screen.set_focus(self)
