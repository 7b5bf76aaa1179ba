"""The rows of the log pane: which lines of a run's state it shows; their texts are formatted when they are drawn."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import overload

import msgspec
from rich.cells import cached_cell_len
from rich.style import Style
from rich.text import Text

from dflash_tui.common.formatting import pluralize
from dflash_tui.events import LogLine
from dflash_tui.tui.render import status
from dflash_tui.vllm_output.benign_warnings import explain_benign_warning

_NOTE = f"{'':11}↳ harmless: "
_RANKS = {"WARNING": 1, "ERROR": 2, "CRITICAL": 2}
_FOLDED = {
    "route": re.compile(r"Route: /|Available routes are:$"),
    "answered request": re.compile(r'\S+ - "[A-Z]+ \S+ HTTP/[\d.]+" 2\d\d\b'),
}
_LEAST_WIDTH, _INDENT = 24, 11
_MOST_PARTS = 250  # of a line; the count of its rows is a byte
# Without its cache, which would keep the texts of 4096 lines.
count_cells: Callable[[str], int] = cached_cell_len.__wrapped__


class _HarmlessLine(msgspec.Struct, frozen=True):
    """A line that looks like a problem and is none, and `why`; with `note` the row below it that says so."""

    line: LogLine
    why: str
    note: bool = False


class _Fold(msgspec.Struct):
    """Lines of one kind that follow each other and say little: one row for all, which grows with each."""

    kind: str
    last: LogLine
    count: int = 1


class _Part(msgspec.Struct, frozen=True):
    """A part of a row that is too long for the pane: the characters from `start` to `end`."""

    row: LogLine | _HarmlessLine
    start: int
    end: int


_Row = LogLine | _HarmlessLine | _Fold | _Part


class LogRows(Sequence[str]):
    """The rows of log lines of `level` (0 all, 1 warnings, 2 errors) and worse. It copies no text.

    Long rows are wrapped at `width` where `wrap` says so, those of errors and tracebacks always; with `fold` routes and
    answered requests that follow each other share a row.
    """

    def __init__(self) -> None:
        self.level, self.utc_offset = 0, 0.0
        self.wrap, self.fold, self.width = False, True, 0
        self._rows: list[_Row] = []
        self._row_counts = bytearray()  # of each line; 0 where it is below the level, or in the fold of one before
        self._explained: set[str] = set()
        self._rank = 0
        self._has_errors = False

    def clear(self) -> None:
        """Drop all lines; the level stays."""
        self._rows.clear()
        self._row_counts.clear()
        self._explained.clear()
        self._rank, self._has_errors = 0, False

    def take(self, lines: Iterable[LogLine]) -> None:
        """Add the newest lines."""
        for line in lines:
            rows = self._build_rows(line)
            if rows and self._join_fold(line):
                rows = []
            self._rows += rows
            self._row_counts.append(len(rows))

    def keep(self, lines: int) -> int:
        """Drop all lines but the last `lines`, as the state did; return how many rows were dropped."""
        old = len(self._row_counts) - lines
        if old <= 0:
            return 0
        dropped, counts = sum(self._row_counts[:old]), self._row_counts
        fold = self._rows[dropped - 1] if dropped else None
        if isinstance(fold, _Fold) and not self.level and old < len(counts) and not counts[old]:
            # The fold goes on: its row is that of the first line that is kept.
            fold.count -= old - counts.rfind(1, 0, old)
            counts[old] = 1
            dropped -= 1
        del self._rows[:dropped], counts[:old]
        return dropped

    @property
    def lines(self) -> int:
        """How many lines are kept."""
        return len(self._row_counts)

    @property
    def matching(self) -> int:
        """How many of them are of the level or worse."""
        return len(self._row_counts) - self._row_counts.count(0)

    def is_fold(self, row: int) -> bool:
        """Return whether a row stands for several lines."""
        entry = self._rows[row] if 0 <= row < len(self._rows) else None
        return isinstance(entry, _Fold) and entry.count > 1

    @property
    def wraps(self) -> bool:
        """Whether the rows depend on the width: all that are long, or those of errors."""
        return self.wrap or self._has_errors

    def read_mark(self, row: int) -> str:
        """Return the mark of a row, that of its first part where it is a later one of a wrapped row."""
        entry = self._rows[row]
        if isinstance(entry, _Part) and entry.start:
            return "~ " if isinstance(entry.row, _HarmlessLine) else self._text(entry.row)[9:11]
        return ""

    def find_line(self, row: int) -> int:
        """Return the line that a row is of, counted from the first that is kept."""
        rows = 0
        for line, count in enumerate(self._row_counts):
            rows += count
            if rows > row:
                return line
        return len(self._row_counts)

    def find_row(self, line: int) -> int:
        """Return the first row of a line, or of the fold that it is in."""
        folded = line < len(self._row_counts) and not self._row_counts[line]
        return max(0, sum(self._row_counts[:line]) - folded)

    def find(self, words: str, first: int = 0) -> list[int]:
        """Return the rows from `first` on that contain the words in any case: of a wrapped one its first part."""
        if not words:
            return []
        matches = []
        for index, row in enumerate(self._rows[first:], first):
            if isinstance(row, _Part) and row.start:
                continue
            text = self._text(row.row if isinstance(row, _Part) else row)
            if words in text.lower():
                matches.append(index)
        return matches

    def _build_rows(self, line: LogLine) -> list[_Row]:
        """Return the rows of a line: none below the level, else it and perhaps a note, once for each reason."""
        if line.level or line.source:
            self._rank = _RANKS.get(line.level, 0)
        elif line.text.startswith("Traceback (most recent call last)"):
            self._rank = 2  # the lines after it have no level of their own
        self._has_errors = self._has_errors or self._rank == 2
        why = explain_benign_warning(line.text) if self._rank or not line.level else ""
        if (min(self._rank, 1) if why else self._rank) < self.level:
            return []
        if not why:
            kind = self._find_kind(line)
            return [_Fold(kind, line)] if kind else self._split(line)
        if why in self._explained:
            return self._split(_HarmlessLine(line, why))
        self._explained.add(why)
        return [*self._split(_HarmlessLine(line, why)), *self._split(_HarmlessLine(line, why, note=True))]

    def _find_kind(self, line: LogLine) -> str:
        """Return the kind of lines that a line is folded with, or nothing."""
        if not self.fold or self._rank or self.level:
            return ""
        return next((kind for kind, pattern in _FOLDED.items() if pattern.match(line.text)), "")

    def _join_fold(self, line: LogLine) -> bool:
        """Add a line to the fold of the row before, if it is one of its kind."""
        fold = self._rows[-1] if self._rows else None
        if not isinstance(fold, _Fold) or fold.kind != self._find_kind(line):
            return False
        fold.last, fold.count = line, fold.count + 1
        return True

    def _split(self, row: LogLine | _HarmlessLine) -> list[_Row]:
        """Return the parts of a row that is wrapped, else the row."""
        if not (self.wrap or self._rank == 2) or self.width < _LEAST_WIDTH:
            return [row]
        parts = split_text(self._text(row), self.width)
        return [row] if len(parts) == 1 else [_Part(row, *part) for part in parts]

    def _text(self, row: _Row) -> str:
        if isinstance(row, LogLine):
            return status.render_log_line(row, self.utc_offset)
        if isinstance(row, _Part):
            text = self._text(row.row)[row.start : row.end]
            return f"{'':{_indent(self.width)}}{text}" if row.start else text
        if isinstance(row, _Fold):
            text = status.render_log_line(row.last, self.utc_offset)
            return text if row.count == 1 else f"{text[:9]}▸ {pluralize(row.count, row.kind)}; z opens"
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


def _indent(width: int) -> int:
    return _INDENT if width >= 4 * _INDENT else 2


def split_text(text: str, width: int) -> list[tuple[int, int]]:
    """Return where the parts of a text begin and end that each fit into `width` cells, all but the first indented."""
    parts: list[tuple[int, int]] = []
    start = 0
    while len(parts) < _MOST_PARTS - 1:
        room = width - (_indent(width) if parts else 0)
        end = start + room
        if not text[start:end].isascii():
            end = start + max(
                1, next((n for n in range(room, 0, -1) if count_cells(text[start : start + n]) <= room), 1)
            )
        if end >= len(text):
            break
        blank = text.rfind(" ", start + room * 2 // 3, end + 1)
        slash = text.rfind("/", start + room * 2 // 3, end)
        cut = blank if blank > 0 else slash + 1 if slash > 0 else end
        parts.append((start, cut))
        start = cut + (blank > 0)
    return [*parts, (start, len(text))] if start < len(text) or not parts else parts


def style_row(row: str, style: Style, words: str, mark: str = "") -> Text:
    """Return a row whose marks and first match stand out by weight, so that every theme and NO_COLOR shows them.

    `mark` is the one that counts where the row itself has none.
    """
    text = Text(row, no_wrap=True)
    text.stylize(style)
    mark = mark or row[9:11]
    if mark == "✗ ":
        text.stylize("bold")
    elif mark in {"~ ", "▸ "} or row.startswith(_NOTE):
        text.stylize("dim")
    if words and (at := row.lower().find(words)) >= 0:
        text.stylize("reverse", at, at + len(words))
    return text
