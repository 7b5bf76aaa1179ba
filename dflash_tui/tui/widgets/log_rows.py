"""The rows of the log pane: which lines of a run's state it shows, and how."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from rich.cells import cell_len
from textual.content import Content

from dflash_tui.common.formatting import pluralize
from dflash_tui.events import LogLine
from dflash_tui.tui.render import status
from dflash_tui.vllm_output.known_failures import explain_benign_warning

_NOTE = f"{'':11}↳ harmless: "
_RANKS = {"WARNING": 1, "ERROR": 2, "CRITICAL": 2}
_FOLDED = {
    "route": re.compile(r"Route: /|Available routes are:$"),
    "answered request": re.compile(r'\S+ - "[A-Z]+ \S+ HTTP/[\d.]+" 2\d\d\b'),
}
_TIME = 9  # cells before the mark of a row
_LEAST_WIDTH, _INDENT = 24, 11
_STYLES = {"✗ ": "bold", "~ ": "dim", "▸ ": "dim"}  # by weight, so that every theme and NO_COLOR shows them


class Row(NamedTuple):
    """A row of the pane."""

    text: str
    line: int
    """The number of its line, of lines that share the row that of the last."""
    style: str = ""
    whole: str = ""
    """Where it is the first part of a row that is wrapped: all of that."""
    kind: str = ""
    """What its lines are of which several share a row."""
    lines: int = 1
    """How many lines it is of; 0 for the further parts of one, and for the note on one."""


class LogRows:
    """The rows of log lines of `level` (0 all, 1 warnings, 2 errors) and worse.

    Long rows are wrapped at `width` where `wrap` says so, those of errors and tracebacks always; with `fold` routes and
    answered requests that follow each other share a row.
    """

    def __init__(self) -> None:
        self.level, self.utc_offset = 0, 0.0
        self.wrap, self.fold, self.width = False, True, 0
        self.clear()

    def clear(self, first: int = 0) -> None:
        """Drop all lines; the level stays, and the next line has the number `first`."""
        self.rows: list[Row] = []
        self.first = self.next = first
        self.widest = 0
        self._explained: set[str] = set()
        self._rank = 0
        self._has_errors = False

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, lines: Iterable[LogLine]) -> None:
        """Add the newest lines."""
        before = len(self.rows)
        for line in lines:
            self._add(line)
            self.next += 1
        self.widest = max([self.widest, *(cell_len(row.text) for row in self.rows[before:])])

    def drop(self, first: int) -> int:
        """Drop the lines before the one of that number, as the state did; return how many rows were dropped."""
        self.first = max(self.first, first)
        count = self.find_row(first)
        del self.rows[:count]
        return count

    @property
    def matching(self) -> int:
        """How many lines are of the level or worse."""
        return sum(row.lines for row in self.rows)

    @property
    def wraps(self) -> bool:
        """Whether the rows depend on the width: all that are long, or those of errors."""
        return self.wrap or self._has_errors

    def find_row(self, line: int) -> int:
        """Return the first row of a line, or that which it shares with others."""
        return bisect_left(self.rows, line, key=lambda row: row.line)

    def find(self, words: str, first: int = 0) -> list[int]:
        """Return the rows from `first` on that contain the words in any case: of a wrapped one its first part."""
        if not words:
            return []
        rows = enumerate(self.rows[first:], first)
        return [at for at, row in rows if (row.lines or row.whole or _NOTE in row.text) and words in _search_text(row)]

    def _add(self, line: LogLine) -> None:
        """Add the rows of a line: none below the level, else it and perhaps a note, once for each reason."""
        if line.level or line.source:
            self._rank = _RANKS.get(line.level, 0)
        elif line.text.startswith("Traceback (most recent call last)"):
            self._rank = 2  # the lines after it have no level of their own
        self._has_errors = self._has_errors or self._rank == 2
        why = explain_benign_warning(line.text) if self._rank or not line.level else ""
        if (min(self._rank, 1) if why else self._rank) < self.level:
            return
        text = status.render_log_line(line, self.utc_offset)
        if not why:
            foldable = self.fold and not self._rank and not self.level
            kind = next((kind for kind, sign in _FOLDED.items() if foldable and sign.match(line.text)), "")
            last = self.rows[-1] if self.rows else None
            if kind and last and last.kind == kind:
                count = last.lines + 1
                folded = f"{text[:_TIME]}▸ {pluralize(count, kind)}; z opens"
                self.rows[-1] = Row(folded, self.next, "dim", kind=kind, lines=count)
            else:
                self._split(text, kind=kind)
            return
        self._split(f"{text[:_TIME]}~ {text[_TIME + 2 :]}")
        if why not in self._explained:
            self._explained.add(why)
            self._split(f"{_NOTE}{why}", lines=0)

    def _split(self, text: str, *, kind: str = "", lines: int = 1) -> None:
        """Add a row, in parts where it is wrapped."""
        style = "dim" if text.startswith(_NOTE) else _STYLES.get(text[_TIME : _TIME + 2], "")
        is_wrapped = (self.wrap or self._rank == 2) and self.width >= _LEAST_WIDTH
        if not is_wrapped or cell_len(text) <= self.width:
            self.rows.append(Row(text, self.next, style, kind=kind, lines=lines))
            return
        indent = _INDENT if self.width >= 4 * _INDENT else 2
        first, *others = (part.plain for part in Content(text).wrap(self.width - indent))
        self.rows.append(Row(first, self.next, style, whole=text, kind=kind, lines=lines))
        self.rows += [Row(f"{'':{indent}}{part}", self.next, style, lines=0) for part in others]


def _search_text(row: Row) -> str:
    return (row.whole or row.text).lower()
