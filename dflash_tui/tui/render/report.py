"""Reports as Textual content: the styles of a report in the colours of the theme. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from textual.content import Content

from dflash_tui.presentation.report import Part, lay_out
from dflash_tui.tui.widgets.basic import MUTED

_SERIES = ("$series-a", "$series-b", "$series-c")
_STYLES = {
    "": "",
    "bold": "bold",
    "dim": MUTED,
    "head": MUTED,
    "✗": "bold $error",
    "!": "bold $warning",
    "→": "bold $primary",
    "★": "bold $accent",
    "▲": "bold $success",
    "▼": "bold $accent",
    "=": "bold $primary",
}


def arm_color(arm: int) -> str:
    """Return the theme variable of an arm; letter and mark go with it."""
    return _SERIES[arm % len(_SERIES)]


def style_of(name: str) -> str:
    """Return the style of a span of a report."""
    return arm_color(int(name.removeprefix("arm "))) if name.startswith("arm ") else _STYLES.get(name, "")


def to_content(parts: Iterable[Part], width: int) -> Content:
    """Return parts below each other, each in lines of at most `width` cells."""
    return Content("\n").join(
        Content.assemble(*((span.text, style_of(span.style)) for span in line))
        for part in parts
        for line in lay_out(part, width)
    )
