"""Texts that would do something to a terminal, and a terminal that tells whether they did."""

import unicodedata
from functools import cache
from typing import Any

import pyte
import yaml

from tests import DATA

_FOLDER = DATA
SEEN = "·hostile·"


@cache
def _corpus() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = yaml.safe_load((_FOLDER / "escapes.yaml").read_text(encoding="utf-8"))
    return found


def texts() -> dict[str, str]:
    """Return the texts by name; what comes as bytes is decoded as a log or an answer is."""
    return _corpus()["texts"] | {name: data.decode(errors="replace") for name, data in raw().items()}


def raw() -> dict[str, bytes]:
    """Return by name bytes that are no UTF-8."""
    return {name: bytes.fromhex(data) for name, data in _corpus()["bytes"].items()}


def all_of_them() -> str:
    """Return one text with all in it; what opens something stands before what would close it."""
    return f"{SEEN} {' '.join(texts().values())} {'x' * 500} {SEEN}"


def acting(text: str) -> set[str]:
    """Return the characters in `text` that a terminal would act on or hide, by Unicode; line ends are meant."""
    return {hex(ord(c)) for c in text if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and c not in "\n\t"}


class Terminal(pyte.Screen):
    """A terminal that remembers whatever it was asked to do besides showing text."""

    def __init__(self, columns: int = 120, lines: int = 60) -> None:
        self.asked: list[str] = []
        super().__init__(columns, lines)
        self.asked.clear()  # it has begun by resetting itself


_ASKED = (
    "set_title", "set_icon_name", "bell", "report_device_attributes", "report_device_status", "set_mode", "reset_mode",
    "define_charset", "shift_in", "shift_out", "save_cursor", "restore_cursor", "cursor_position", "cursor_up", "reset",
    "erase_in_display", "erase_in_line", "set_margins", "reverse_index", "select_graphic_rendition", "backspace",
    "write_process_input", "debug",
)  # fmt: skip


def _told(name: str) -> Any:
    def asked(self: Terminal, *words: Any, **more: Any) -> Any:
        self.asked.append(name)
        return getattr(super(Terminal, self), name)(*words, **more)

    return asked


for _name in _ASKED:
    setattr(Terminal, _name, _told(_name))


def shown(text: str, columns: int = 120, lines: int = 60) -> tuple[list[str], list[str]]:
    """Return the rows of a terminal after `text`, and what else it was asked to do."""
    terminal = Terminal(columns, lines)
    stream = pyte.Stream(terminal)
    stream.feed(text.replace("\n", "\r\n"))
    return [row.rstrip() for row in terminal.display], terminal.asked
