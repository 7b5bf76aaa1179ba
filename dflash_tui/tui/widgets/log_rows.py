"""The rows of the log pane: which lines of a run's state it shows; their texts are formatted when they are drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import msgspec
from rich.style import Style
from rich.text import Text

from dflash_tui.events import LogLine
from dflash_tui.tui.render import status
from dflash_tui.vllm_output.benign_warnings import explain_benign_warning

_NOTE = f"{'':11}↳ harmless: "
_RANKS = {"WARNING": 1, "ERROR": 2, "CRITICAL": 2}


class _HarmlessLine(msgspec.Struct, frozen=True):
    """A line that looks like a problem and is none, and `why`; with `note` the row below it that says so."""

    line: LogLine
    why: str
    note: bool = False


class LogRows(Sequence[str]):
    """The rows of log lines of `level` (0 all, 1 warnings, 2 errors) and worse. It copies no text."""

    def __init__(self) -> None:
        self.level, self.utc_offset = 0, 0.0
        self._rows: list[LogLine | _HarmlessLine] = []
        self._row_counts = bytearray()  # of each line
        self._explained: set[str] = set()
        self._rank = 0

    def clear(self) -> None:
        """Drop all lines; the level stays."""
        self._rows.clear()
        self._row_counts.clear()
        self._explained.clear()
        self._rank = 0

    def take(self, lines: Iterable[LogLine]) -> None:
        """Add the newest lines."""
        for line in lines:
            rows = self._build_rows(line)
            self._rows += rows
            self._row_counts.append(len(rows))

    def keep(self, lines: int) -> int:
        """Drop all lines but the last `lines`, as the state did; return how many rows were dropped."""
        old = len(self._row_counts) - lines
        if old <= 0:
            return 0
        dropped = sum(self._row_counts[:old])
        del self._rows[:dropped], self._row_counts[:old]
        return dropped

    @property
    def lines(self) -> int:
        """How many lines are kept."""
        return len(self._row_counts)

    @property
    def matching(self) -> int:
        """How many of them are of the level or worse."""
        return len(self._row_counts) - self._row_counts.count(0)

    def _build_rows(self, line: LogLine) -> list[LogLine | _HarmlessLine]:
        """Return the rows of a line: none below the level, else it and perhaps a note, once for each reason."""
        if line.level or line.source:
            self._rank = _RANKS.get(line.level, 0)
        elif line.text.startswith("Traceback (most recent call last)"):
            self._rank = 2  # the lines after it have no level of their own
        why = explain_benign_warning(line.text) if self._rank or not line.level else ""
        if (min(self._rank, 1) if why else self._rank) < self.level:
            return []
        if not why:
            return [line]
        if why in self._explained:
            return [_HarmlessLine(line, why)]
        self._explained.add(why)
        return [_HarmlessLine(line, why), _HarmlessLine(line, why, note=True)]

    def _text(self, row: LogLine | _HarmlessLine) -> str:
        if isinstance(row, LogLine):
            return status.render_log_line(row, self.utc_offset)
        if row.note:
            return f"{_NOTE}{row.why}"
        text = status.render_log_line(row.line, self.utc_offset)
        return f"{text[:9]}~ {text[11:]}"

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._text(row) for row in self._rows[index]]
        return self._text(self._rows[index])

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        return map(self._text, self._rows)


def style_row(row: str, style: Style, words: str) -> Text:
    """Return a row whose marks and first match stand out by weight, so that every theme and NO_COLOR shows them."""
    text = Text(row, no_wrap=True)
    text.stylize(style)
    if row[9:11] == "✗ ":
        text.stylize("bold")
    elif row[9:11] == "~ " or row.startswith(_NOTE):
        text.stylize("dim")
    if words and (at := row.lower().find(words)) >= 0:
        text.stylize("reverse", at, at + len(words))
    return text
