"""The rows of the log pane: which lines of a state it shows, and texts that are made when somebody asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import msgspec
from rich.style import Style
from rich.text import Text

from dflash_tui.events import LogLine
from dflash_tui.tui.render import status
from dflash_tui.vllm_output.benign_warnings import explain_benign_warning

_NOTE = f"{'':11}↳ no harm: "
_RANKS = {"WARNING": 1, "ERROR": 2, "CRITICAL": 2}


class _Marked(msgspec.Struct, frozen=True):
    """A line that looks bad and does no harm, and `why`; a `note` below it says so."""

    line: LogLine
    why: str
    note: bool = False


class LogRows(Sequence[str]):
    """The rows of the lines that were taken, of `level` (0 all, 1 warnings, 2 errors) and worse. It copies no text."""

    def __init__(self) -> None:
        self.level, self.utc_offset = 0, 0.0
        self._rows: list[LogLine | _Marked] = []
        self._made = bytearray()  # how many rows each line has
        self._explained: set[str] = set()
        self._rank = 0

    def clear(self) -> None:
        """Forget all lines; the level stays."""
        self._rows.clear()
        self._made.clear()
        self._explained.clear()
        self._rank = 0

    def take(self, lines: Iterable[LogLine]) -> None:
        """Add the newest lines."""
        for line in lines:
            rows = self._of(line)
            self._rows += rows
            self._made.append(len(rows))

    def keep(self, lines: int) -> int:
        """Forget all lines but so many of the last, as the state did; return how many rows went with them."""
        old = len(self._made) - lines
        if old <= 0:
            return 0
        gone = sum(self._made[:old])
        del self._rows[:gone], self._made[:old]
        return gone

    @property
    def lines(self) -> int:
        """How many lines were taken and are not forgotten."""
        return len(self._made)

    @property
    def shown(self) -> int:
        """How many of them are of the level."""
        return len(self._made) - self._made.count(0)

    def _of(self, line: LogLine) -> list[LogLine | _Marked]:
        """Return the rows of a line: none below the level, else it and perhaps a note, once for each reason."""
        if line.level or line.source:
            self._rank = _RANKS.get(line.level, 0)
        elif line.text.startswith("Traceback (most recent call last)"):
            self._rank = 2  # what follows it has no level of its own
        why = explain_benign_warning(line.text) if self._rank or not line.level else ""
        if (min(self._rank, 1) if why else self._rank) < self.level:
            return []
        if not why:
            return [line]
        if why in self._explained:
            return [_Marked(line, why)]
        self._explained.add(why)
        return [_Marked(line, why), _Marked(line, why, note=True)]

    def _text(self, row: LogLine | _Marked) -> str:
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
