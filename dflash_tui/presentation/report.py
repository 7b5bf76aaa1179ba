"""The report model: sections of notes, tables, intervals and lines, and their rendering as text.

Every renderer (terminal, Markdown, panel) draws the same sections. Control characters are removed on drawing.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dflash_tui.common.formatting import UNKNOWN, draw_bar, format_synthetic, shorten_names, truncate, truncate_middle
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.common.secrets import redact_secrets
from dflash_tui.experiments.analysis.stats import Ratio

_GAP = 2
_NARROWEST, _WIDTH = 20, 100  # cells: the narrowest note; the width of a drawing without a limit
_LABEL, _LEAST_BAR, _LEAST_AXIS, _LAST = 24, 4, 9, 24
# Minimum width of a cell folded beside its row, and indent of cells below it.
_LEAST_FOLDED, _BELOW = 20, 4
_LEAST_SCALE, _MOST_SCALE = math.log(1.05), math.log(1000)
_NOISY = 2.0


class Span(NamedTuple):
    """Text with its style: `good`, `bad`, `warn`, `dim`, `bold`, `head`, `arm 0` and so on, or ""."""

    text: str
    style: str = ""


class Note(NamedTuple):
    """A sentence with a mark: `✗` refuses a verdict, `!` qualifies it, `→` is the next step; others are neutral."""

    text: str
    mark: str = ""
    style: str = ""

    def __str__(self) -> str:
        return f"{self.mark} {self.text}" if self.mark else self.text


class Lines(NamedTuple):
    """Lines that are never folded, such as commands."""

    lines: tuple[str, ...]


class Meter(NamedTuple):
    """A cell with a bar; `share` is its length relative to the longest one, None if nothing was measured."""

    share: float | None
    style: str = ""


Cell = str | Span | Meter


class Table(NamedTuple):
    """Cells under a header, which may be empty; columns in `right` are right-aligned.

    Where it does not fit, the columns named in `drop` are left out first; others follow below beside the first `keys`,
    or without keys below their row.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    right: tuple[int, ...] = ()
    keys: int = 1
    drop: tuple[str, ...] = ()


class Interval(NamedTuple):
    """A ratio with its interval, and the style of its line."""

    label: str
    ratio: Ratio
    style: str = ""


class Intervals(NamedTuple):
    """Intervals around 1 on one logarithmic axis."""

    intervals: tuple[Interval, ...]


Part = Note | Lines | Table | Intervals
Line = tuple[Span, ...]


class Section(NamedTuple):
    """Parts under a title, which may be empty."""

    title: str
    parts: tuple[Part, ...]


def is_noisy(ratio: Ratio | None) -> bool:
    """Whether an interval spans more than a factor of 2, too wide for its estimate to be of use."""
    return ratio is not None and not (ratio.low > 0 and ratio.high <= _NOISY * ratio.low)


def format_factor(value: float) -> str:
    """Return a ratio with its significant digits, or `>1000` or `<0.001`."""
    if not 0.001 <= value < 1000:
        return ">1000" if value > 1 else "<0.001"
    if value < 0.01:
        return f"{value:.3f}"
    return f"{value:.3g}" if value >= 10 else f"{value:.2f}"


def format_ratio(ratio: Ratio | None) -> str:
    """Return a ratio with its interval in parentheses, `too noisy to tell`, or a dash.

    An interval up to a factor of 4 that excludes 1 is shown, since it says which arm is faster.
    """
    if ratio is None:
        return UNKNOWN
    if is_noisy(ratio) and not (ratio.excludes_one and ratio.high <= _NOISY**2 * ratio.low):
        return "too noisy to tell"
    return f"{format_factor(ratio.ratio)} ({format_factor(ratio.low)}–{format_factor(ratio.high)})"


def format_spread(low: float, high: float, middle: float) -> str:
    """Return half the range of values as a share of their middle: `±3%`."""
    share = (high - low) / 2 / middle * 100 if middle else 0.0
    return f"±{share:.{0 if share >= 1 or share < 0.05 else 1}f}%"


def lay_out(part: Part, width: int, *, fold: bool = False) -> list[Line]:
    """Return a part as lines of at most `width` cells (0: no limit); with `fold` no cell of a table is cut."""
    match part:
        case Note():
            return _lay_out_note(part, width)
        case Lines():
            return [(Span(clean_line(line)),) for line in part.lines]
        case Table():
            return _lay_out_table(part, width, fold=fold)
        case Intervals():
            return _lay_out_intervals(part.intervals, width or _WIDTH)


def _lay_out_note(note: Note, width: int) -> list[Line]:
    head = f"{note.mark} " if note.mark else ""
    text = clean_line(note.text)
    lines = textwrap.wrap(text, max(_NARROWEST, width - len(head)), break_on_hyphens=False) if width else [text]
    return [
        (Span(head if not place else " " * len(head), note.mark), Span(line, note.style))
        for place, line in enumerate(lines)
    ]


def _lay_out_table(table: Table, width: int, *, fold: bool) -> list[Line]:
    """Return the header and the rows; columns that do not fit follow below, beside the keys or below their row.

    Bars take the room that is left by the other columns. A last column of text is folded or cut to the room beside
    them.
    """
    head: list[tuple[Cell, ...]] = [tuple(Span(name, "head") for name in table.header)] if table.header else []
    rows = [[_clean(cell) for cell in row] for row in (*head, *table.rows)]
    if not rows:
        return []
    if width and table.keys:
        short = shorten_names((_text(row[0]) for row in rows), max(_NARROWEST, 2 * width // 5))
        rows = [[Span(short[_text(row[0])], row[0].style), *row[1:]] for row in rows]
    widths = [max(len(_text(cell)) for cell in column) + _GAP for column in zip(*rows, strict=True)]
    blocks = _split_columns(table, rows, widths, width, fold=fold)
    if table.keys:
        return [line for block in blocks for row in rows for line in _lay_out_row(table, row, block, widths, fold=fold)]
    return [
        (Span(" " * _BELOW * (block is not blocks[0])), *line)
        for row in rows
        for block in blocks
        if any(_text(row[column]) for column in block)
        for line in _lay_out_row(table, row, block, widths, fold=fold)
    ]


def _split_columns(
    table: Table, rows: Sequence[Sequence[Span | Meter]], widths: list[int], width: int, *, fold: bool
) -> list[list[int]]:
    """Return the columns that stand side by side; set the widths of bars and of a last column of text."""
    columns = [*range(len(widths))]
    for name in table.drop:
        if width and sum(widths[column] for column in columns) - _GAP > width:
            columns.remove(table.header.index(name))
    last, keys = columns[-1], columns[: table.keys]
    free = (width or _WIDTH) - sum(widths[column] for column in columns[:-1]) - min(widths[last] - _GAP, _LAST)
    longest_word = max(len(word) for row in rows for word in (*_text(row[last]).split(), ""))
    shortest = max(_LEAST_FOLDED, longest_word) if fold else _LEAST_BAR
    blocks, used = [list(keys)], sum(widths[: table.keys])
    for column in columns[table.keys :]:
        if any(isinstance(row[column], Meter) for row in rows):
            if free < _LEAST_BAR:
                continue
            widths[column] = free + _GAP
        is_elastic = width > 0 and column == last and column not in table.right
        least = min(widths[column] - _GAP, shortest) if is_elastic else widths[column] - _GAP
        if width and least > width - used and len(blocks[-1]) > len(keys):
            blocks.append(list(keys))
            used = sum(widths[: table.keys]) or _BELOW
        if is_elastic or (width and fold):
            widths[column] = min(widths[column], max(_LEAST_BAR, width - used) + _GAP)
        blocks[-1].append(column)
        used += widths[column]
    return blocks


def _lay_out_row(
    table: Table, row: Sequence[Span | Meter], block: Sequence[int], widths: Sequence[int], *, fold: bool
) -> list[Line]:
    *before, last = block
    cells = [_pad(row[column], widths[column] - _GAP, right=column in table.right, last=False) for column in before]
    room, cell = widths[last] - _GAP, row[last]
    if not fold or len(_text(cell)) <= room:
        return [(*cells, _pad(cell, room, right=last in table.right, last=True))]
    lines = textwrap.wrap(_text(cell), room, break_long_words=False, break_on_hyphens=False)
    hang = Span(" " * sum(len(each.text) for each in cells))
    return [(*(() if place else cells), *((hang,) if place else ()), Span(line, cell.style))
            for place, line in enumerate(lines)]  # fmt: skip


def _clean(cell: Cell) -> Span | Meter:
    style = "" if isinstance(cell, str) else cell.style
    return cell if isinstance(cell, Meter) else Span(clean_line(_text(cell)), style)


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else "" if isinstance(cell, Meter) else cell.text


def _pad(cell: Span | Meter, width: int, *, right: bool, last: bool) -> Span:
    if isinstance(cell, Meter):
        text = "" if cell.share is None else draw_bar(cell.share, width) or "▏"
    else:
        text = truncate(cell.text, width)
    text = text.rjust(width) if right else text.ljust(width)
    return Span(text.rstrip() if last else text + " " * _GAP, cell.style)


def _lay_out_intervals(intervals: Sequence[Interval], width: int) -> list[Line]:
    figures = [format_ratio(interval.ratio) for interval in intervals]
    name = min(_LABEL, max((len(interval.label) for interval in intervals), default=0))
    ratios = [interval.ratio for interval in intervals]
    ends = [
        abs(math.log(end)) for ratio in ratios for end in (ratio.low, ratio.ratio, ratio.high) if 0 < end < math.inf
    ]
    most = min(_MOST_SCALE, max([*ends, _LEAST_SCALE]) * 1.05)
    room = max(_LEAST_AXIS, min(width, _WIDTH) - name - 2 - max(map(len, figures), default=0))
    room -= 1 - room % 2  # an odd width puts 1 in the middle cell
    lines: list[Line] = []
    for interval, figure in zip(intervals, figures, strict=True):
        label = truncate_middle(clean_line(interval.label), name)
        drawn = _draw_interval(interval.ratio, most, room, interval.style)
        lines.append((Span(f"{label:<{name}} ", interval.style or "dim"), *drawn, Span(f" {figure}", interval.style)))
    left, right, centre = f"{math.exp(-most):.2g}", f"{math.exp(most):.2g}", room // 2
    axis = f"{left:<{centre}}1".ljust(room - len(right)) + right
    return [*lines, (Span(f"{'':{name}} {axis}", "dim"),)]


def _draw_interval(ratio: Ratio, most: float, width: int, style: str) -> Line:
    def place(value: float) -> int:
        at = math.log(value) if 0 < value < math.inf else most if value > 0 else -most
        return round((max(-most, min(at, most)) + most) / (2 * most) * (width - 1))

    low, middle, high, one = (place(end) for end in (ratio.low, ratio.ratio, ratio.high, 1.0))
    cells = [" "] * width
    cells[low : high + 1] = "━" * (high + 1 - low)
    cells[one] = "┿" if low <= one <= high else "│"
    cells[middle] = "◆"
    drawn, color = "".join(cells), style if ratio.excludes_one else "dim"
    return (
        Span(drawn[:one], color),
        Span(drawn[one], color if low <= one <= high else "dim"),
        Span(drawn[one + 1 :], color),
    )


def to_terminal(sections: Iterable[Section], width: int = 0) -> str:
    """Return sections as text, with table headers in capitals."""
    blocks: list[list[str]] = []
    for section in sections:
        if section.title:
            blocks.append([f"{clean_line(section.title)}:"])
        for place, part in enumerate(section.parts):
            lines = ["".join(s.text.upper() if s.style == "head" else s.text for s in line).rstrip()
                     for line in lay_out(part, width, fold=True)]  # fmt: skip
            if blocks and (isinstance(part, Note) or (section.title and not place)) and (place or section.title):
                blocks[-1] += lines
            else:
                blocks.append(lines)
    return "\n\n".join("\n".join(block) for block in blocks if block)


def to_markdown(sections: Iterable[Section]) -> str:
    """Return sections as Markdown, with text from other sources escaped, and without next steps."""
    blocks: list[str] = []
    for section in sections:
        blocks += [f"## {escape_text(section.title[0].upper() + section.title[1:])}"] if section.title else []
        notes: list[str] = []
        for part in section.parts:
            if isinstance(part, Note):
                if part.mark == "→":
                    continue
                notes.append(f"**{escape_text(part.text)}**" if part.style == "bold" else escape_text(str(part)))
                continue
            blocks += [_join_notes(notes)] if notes else []
            notes = []
            blocks.append(_render_part(part))
        blocks += [_join_notes(notes)] if notes else []
    return "\n\n".join(blocks)


def _join_notes(notes: Sequence[str]) -> str:
    return notes[0] if len(notes) == 1 else "\n".join(f"- {note}" for note in notes)


def _render_part(part: Lines | Table | Intervals) -> str:
    if not isinstance(part, Table):
        return _quote_block("".join(span.text for span in line).rstrip() for line in lay_out(part, 0))
    rows = [[escape_text(_text(cell)) for cell in row] for row in part.rows]
    rule = ["---:" if column in part.right else "---" for column in range(len(part.header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (map(escape_text, part.header), rule, *rows))


def render_page(title: str, synthetic: str, lines: Iterable[str], sections: Iterable[Section]) -> str:
    """Return a Markdown page: title, lines (already Markdown) and sections.

    `synthetic` is why the figures say nothing about a real model; empty if they are real.
    """
    label = [f"> **{escape_text(format_synthetic(synthetic))}.**"] if synthetic else []
    return "\n\n".join([f"# {title}", *label, *lines, to_markdown(sections)]) + "\n"


_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~]|&(?=#?\w+;))")
# What GitHub turns into links by itself. Mentions and issue numbers are matched in the rendered text, so that only a
# zero-width character breaks them; addresses are matched in the source, where an entity does.
_LINKS = (
    (re.compile(r"@|#(?=\d)"), r"\g<0>&#8203;"),
    (re.compile(r"://"), "&#58;&#47;&#47;"),
    (re.compile(r"(?<=www)\.", re.IGNORECASE), "&#46;"),
)


def escape_text(text: str) -> str:
    """Return foreign text for a paragraph or cell: one line, secrets removed, Markdown escaped."""
    body = _SPECIAL.sub(r"\\\1", redact_secrets(" ".join(clean_line(line) for line in text.split("\n"))))
    for meant, instead in _LINKS:
        body = meant.sub(instead, body)
    return body


def quote_code(text: str) -> str:
    """Return foreign text as inline code."""
    body = redact_secrets(clean_line(text)).replace("|", "\\|")
    fence, pad = _choose_fence(body, 1), " " if "`" in body else ""
    return f"{fence}{pad}{body}{pad}{fence}" if body else ""


def _choose_fence(body: str, least: int) -> str:
    """Return more backticks than are in a row anywhere in a text, and at least `least`."""
    return "`" * max(least, 1 + max((len(run) for run in re.findall("`+", body)), default=0))


def _quote_block(lines: Iterable[str]) -> str:
    """Return lines as a code block."""
    body = redact_secrets("\n".join(clean_line(part) for line in lines for part in line.split("\n")))
    fence = _choose_fence(body, 3)
    return f"{fence}text\n{body}\n{fence}"
