"""The log of a run: levels, follow mode, search, and notes on harmless warnings."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from typing import ClassVar, NamedTuple

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual import on
from textual.binding import Binding
from textual.content import Content
from textual.events import Click
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.widgets import Input

from dflash_tui.common.formatting import pluralize, truncate
from dflash_tui.events import LogLine
from dflash_tui.monitoring.observer import FarLog
from dflash_tui.run_state.state import RunState
from dflash_tui.runs.run import Run
from dflash_tui.tui.render.run import render_log_line
from dflash_tui.tui.widgets.basic import Keys
from dflash_tui.vllm_output.known_failures import explain_benign_warning

LEVELS = ("all", "warnings and worse", "errors")
_PIECE = 500


class LogPane(ScrollView, can_focus=True):
    """Shows the log lines of `level` and worse; follows the end until the user scrolls or searches.

    `!` marks a warning, `✗` an error, `~` a harmless line that looks like one, with a note below its first occurrence.
    """

    BINDINGS: ClassVar = [
        Binding("slash", "search", "Search", show=False, key_display="/", tooltip="Log: search"),
        Binding("n", "match(1)", "Matches", show=False, key_display="n N", tooltip="Log: next match"),
        Binding("N", "match(-1)", "Previous match", show=False, key_display="N", tooltip="Log: previous match"),
        Binding("v", "level", "Level", show=False, tooltip="Log: all lines, warnings and worse, errors"),
        Binding("w", "wrap", "Wrap", show=False, tooltip="Log: wrap long lines; errors always wrap"),
        Binding("z", "fold", "Fold", show=False, tooltip="Log: fold or unfold routes and answered requests"),
        Binding("L", "next_host", "Next host", show=False, key_display="L", tooltip="Log: next host of the server"),
        Binding("F", "follow", "Follow", show=False, tooltip="Log: follow the end, or stop following"),
        Binding("g", "top", "Top", show=False, tooltip="Log: first line"),
        Binding("G", "end", "First, last", show=False, key_display="g G", tooltip="Log: last line, and follow"),
        Binding("escape", "all", "All lines", show=False, tooltip="Log: clear search and level"),
        Binding("left", "scroll_half(-1)", "Left", show=False),
        Binding("right", "scroll_half(1)", "Right", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(id="log")
        self.rows = LogRows()
        self.folding = True  # a search unfolds all rows
        self.following = True
        self.words, self.at = "", -1
        self._taken = 0
        self._state = RunState()
        self._place: int | None = None  # the line to scroll to after re-reading
        self._far_logs: list[FarLog] = []
        self._rank = 0

    def on_mount(self) -> None:
        self._update_title()

    def reset(self) -> None:
        """Clear everything for another run."""
        self.rows.level, self._far_logs = 0, []
        self._show_rank(0)

    def offer_ranks(self, run: Run) -> None:
        """Offer the logs of other hosts."""
        # A recording in one file has no copies of the other logs.
        self._far_logs = [FarLog(run, far) for far in run.far_ranks] if run.folder.is_dir() else []
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        return bool(self._far_logs) if action == "next_host" else True

    def action_next_host(self) -> None:
        self._show_rank((self._rank + 1) % (1 + len(self._far_logs)))

    def _show_rank(self, number: int) -> None:
        self._rank = number
        self.words, self.at, self._taken, self._place = "", -1, 0, None
        self._empty(0)
        self.following = True
        self._update_title()

    def _empty(self, first: int) -> None:
        self.rows.clear(first)
        self.virtual_size = Size(0, 0)
        self.refresh()

    def show(self, state: RunState, utc_offset: float) -> None:
        """Show the new lines of `state`, limited per call so that keys stay responsive.

        Lines that the state has dropped are dropped from the pane.
        """
        if self._rank:
            far = self._far_logs[self._rank - 1]
            far.read()
            state = far.state
        new = min(state.line_count - self._taken, len(state.lines))
        some = min(new, _PIECE)
        self._state, self.rows.utc_offset = state, utc_offset
        if some < 1:
            return
        first = state.line_count - len(state.lines)
        dropped, y = self.rows.drop(first), self.scroll_offset.y
        self.rows.next = state.line_count - new
        self._taken = state.line_count - new + some
        self.rows.take([state.lines[index] for index in range(-new, some - new)])
        self.at = max(-1, self.at - dropped)
        self.virtual_size = Size(self.rows.widest, len(self.rows))
        if self.following:
            self.scroll_end(animate=False, immediate=True, x_axis=False)
        elif self._place is not None and self.rows.next > self._place:
            self._go_to(self.rows.find_row(self._place))
            self._place = None
        elif dropped:
            self._go_to(max(0, y - dropped))
        self.refresh()
        self._update_title()

    def _go_to(self, row: int) -> None:
        self.scroll_to(y=row, animate=False, immediate=True)
        self.following = False

    def on_resize(self) -> None:
        """Re-wrap lines for the new width."""
        region = self.scrollable_content_region
        width = region.width - (not self.show_vertical_scrollbar)  # the scrollbar appears with the first rows
        if region.width and width != self.rows.width:
            self.rows.width = width
            if self.rows.wraps:
                self._refill_in_place()

    def render_line(self, y: int) -> Strip:
        left, top = self.scroll_offset
        at, width, style = top + y, self.size.width, self.rich_style
        if at >= len(self.rows):
            return Strip.blank(width, style)
        row = self.rows.rows[at]
        text = Text(row.text, no_wrap=True, end="")
        text.stylize(style)  # a `style` of the whole Text is not drawn unless a part has another style
        text.stylize(row.style)
        if self.words and (found := row.text.lower().find(self.words)) >= 0:
            text.stylize("reverse", found, found + len(self.words))
        if self.text_selection is not None and (span := self.text_selection.get_span(at)) is not None:
            background = self.screen.get_component_rich_style("screen--selection").bgcolor
            text.stylize(Style(bgcolor=background), span[0], len(row.text) if span[1] == -1 else span[1])
        return Strip(text.render(self.app.console)).crop_extend(left, left + width, style).apply_offsets(left, at)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Return the selected text and its line end."""
        return selection.extract("\n".join(row.text for row in self.rows.rows)), "\n"

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        at_end = self.is_vertical_scroll_end
        # With fewer rows the viewport may reach the end; following resumes only if the user scrolls there.
        if at_end != self.following and at_end == (new_value > old_value):
            self.following = at_end
            self._update_title()

    def show_end(self) -> None:
        """Scroll to the end after a resize, if following."""
        if self.following:
            self.scroll_end(animate=False, x_axis=False)

    def find(self, words: str) -> None:
        """Search for `words`, ignoring case, and go to the last matching line."""
        self.words, self.at = words.lower(), -1
        if (fold := self.folding and not words) != self.rows.fold:
            self.rows.fold = fold  # the match may be in a folded row
            self._refill_in_place()
        self.refresh()
        if words:
            self.action_match(-1)
        self._update_title()

    def action_match(self, step: int) -> None:
        if matches := self.rows.find(self.words):
            if step > 0:
                self.at = next((row for row in matches if row > self.at), matches[0])
            else:
                self.at = next((row for row in reversed(matches) if self.at < 0 or row < self.at), matches[-1])
            column = self.rows.rows[self.at].text.lower().find(self.words) + len(self.words) + 1
            beyond = column - self.scrollable_content_region.width  # keep a match in a cut line visible
            self.scroll_to(x=max(0, beyond) if self.allow_horizontal_scroll else 0, animate=False, immediate=True)
            self._go_to(max(0, self.at - self.size.height // 2))  # even at the end: keep it in view
            self.refresh()
        self._update_title()

    def action_search(self) -> None:
        if not self.screen.query(SearchBar):
            self.screen.mount(SearchBar(self), before=self.screen.query_one(Keys))

    def action_level(self) -> None:
        self._refill((self.rows.level + 1) % len(LEVELS))

    def action_all(self) -> None:
        self.words, self.at, self.rows.fold = "", -1, self.folding
        self.scroll_to(x=0, animate=False)
        self._refill(0)

    def action_wrap(self) -> None:
        self.rows.wrap = not self.rows.wrap
        self._refill_in_place()

    def action_fold(self) -> None:
        self.folding = self.rows.fold = not self.rows.fold
        self._refill_in_place()

    def on_click(self, event: Click) -> None:
        """Unfold the clicked row."""
        row = self.scroll_offset.y + event.y - 1
        if 0 <= row < len(self.rows) and self.rows.rows[row].kind and self.rows.rows[row].lines > 1:
            self.action_fold()

    def _refill_in_place(self) -> None:
        rows, top = self.rows.rows, self.scroll_offset.y
        place = None if self.following or top >= len(rows) else rows[top].line - max(rows[top].lines, 1) + 1
        self._refill(self.rows.level, place)

    def _refill(self, level: int, place: int | None = None) -> None:
        self.rows.level, self.at, self.following, self._place = level, -1, place is None, place
        self._taken = self._state.line_count - len(self._state.lines)
        self._empty(self._taken)
        self._catch_up()
        self._update_title()

    def _catch_up(self) -> None:
        """Show the remaining lines in pieces, handling keys in between."""
        self.show(self._state, self.rows.utc_offset)
        if self._taken < self._state.line_count and self.is_attached:
            self.call_later(self._catch_up)
        else:
            self.call_after_refresh(self.show_end)

    def action_follow(self) -> None:
        self.following = not self.following
        self.show_end()
        self._update_title()

    def action_top(self) -> None:
        self.following = False
        self.scroll_home(animate=False)
        self._update_title()

    def action_end(self) -> None:
        self.following = True
        self.scroll_end(animate=False)
        self._update_title()

    def action_scroll_half(self, direction: int) -> None:
        """Scroll sideways by half a page."""
        self.scroll_relative(x=direction * max(1, self.size.width // 2), animate=False)

    def _update_title(self) -> None:
        name = f"rank {self._rank} on {self._far_logs[self._rank - 1].far.host}" if self._rank else "server.log"
        parts = [name, "following" if self.following else "paused, G follows"]
        if level := self.rows.level:
            parts.append(f"{LEVELS[level]}: {self.rows.matching} of {self.rows.next - self.rows.first}")
        if self.words:
            matches = self.rows.find(self.words)
            place = (
                f"{matches.index(self.at) + 1} of {len(matches)}" if self.at in matches else f"{len(matches)} matches"
            )
            parts.append(f"“{truncate(self.words, 20)}” {place}")
        self.border_title = Content(" · ".join(parts))


class SearchBar(Input):
    """The log's search bar; enter keeps the search, escape clears it."""

    BINDINGS: ClassVar = [Binding("escape", "clear_search", "clear")]

    def __init__(self, pane: LogPane) -> None:
        super().__init__(
            value=pane.words, placeholder="search the log; after enter, n and N go between matches", id="search"
        )
        self._pane = pane

    def on_mount(self) -> None:
        self.focus()

    @on(Input.Changed)
    def _changed(self) -> None:
        self._pane.find(self.value)

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self._close()

    def action_clear_search(self) -> None:
        self._pane.action_all()
        self._close()

    def _close(self) -> None:
        self._pane.focus()
        self.remove()


_NOTE = f"{'':11}↳ harmless: "
_RANKS = {"WARNING": 1, "ERROR": 2, "CRITICAL": 2}
_FOLDED = {
    "route": re.compile(r"Route: /|Available routes are:$"),
    "answered request": re.compile(r'\S+ - "[A-Z]+ \S+ HTTP/[\d.]+" 2\d\d\b'),
}
_TIME = 9  # cells before the mark of a row
_LEAST_WIDTH, _INDENT = 24, 11
_STYLES = {"✗ ": "bold", "~ ": "dim", "▸ ": "dim"}  # not colours: works in every theme and with NO_COLOR


class Row(NamedTuple):
    """A row of the pane."""

    text: str
    line: int
    """The number of its line; if several lines share the row, that of the last."""
    style: str = ""
    whole: str = ""
    """The whole text, if this is the first part of a wrapped row."""
    kind: str = ""
    """The kind of its lines, if several can share a row."""
    lines: int = 1
    """The number of its lines; 0 for continuations of a wrapped row and for notes."""


class LogRows:
    """The rows of the log lines of `level` (0 all, 1 warnings, 2 errors) and worse.

    With `wrap` long rows are wrapped at `width`; errors and tracebacks always are. With `fold` consecutive routes or
    answered requests share a row.
    """

    def __init__(self) -> None:
        self.level, self.utc_offset = 0, 0.0
        self.wrap, self.fold, self.width = False, True, 0
        self.clear()

    def clear(self, first: int = 0) -> None:
        """Drop all lines; the level is kept, and the next line gets the number `first`."""
        self.rows: list[Row] = []
        self.first = self.next = first
        self.widest = 0
        self._explained: set[str] = set()
        self._rank = 0
        self._has_errors = False

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, lines: Iterable[LogLine]) -> None:
        """Append lines."""
        before = len(self.rows)
        for line in lines:
            self._add(line)
            self.next += 1
        self.widest = max([self.widest, *(cell_len(row.text) for row in self.rows[before:])])

    def drop(self, first: int) -> int:
        """Drop the lines before number `first`, as the state did; return the number of dropped rows."""
        self.first = max(self.first, first)
        count = self.find_row(first)
        del self.rows[:count]
        return count

    @property
    def matching(self) -> int:
        """The number of lines of the level or worse."""
        return sum(row.lines for row in self.rows)

    @property
    def wraps(self) -> bool:
        """Whether the rows depend on the width."""
        return self.wrap or self._has_errors

    def find_row(self, line: int) -> int:
        """Return the index of a line's first row."""
        return bisect_left(self.rows, line, key=lambda row: row.line)

    def find(self, words: str) -> list[int]:
        """Return the rows that contain `words` in any case; of a wrapped row the first part."""
        if not words:
            return []
        wholes = ((row.whole or row.text) if row.lines or row.whole or _NOTE in row.text else "" for row in self.rows)
        return [at for at, text in enumerate(wholes) if words in text.lower()]

    def _add(self, line: LogLine) -> None:
        """Add the rows of a line, unless it is below the level, and a note on a harmless warning once per reason."""
        if line.level or line.source:
            self._rank = _RANKS.get(line.level, 0)
        elif line.text.startswith("Traceback (most recent call last)"):
            self._rank = 2  # the lines after it carry no level
        self._has_errors = self._has_errors or self._rank == 2
        why = explain_benign_warning(line.text) if self._rank or not line.level else ""
        if (min(self._rank, 1) if why else self._rank) < self.level:
            return
        text = render_log_line(line, self.utc_offset)
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
        style = "dim" if text.startswith(_NOTE) else _STYLES.get(text[_TIME : _TIME + 2], "")
        is_wrapped = (self.wrap or self._rank == 2) and self.width >= _LEAST_WIDTH
        if not is_wrapped or cell_len(text) <= self.width:
            self.rows.append(Row(text, self.next, style, kind=kind, lines=lines))
            return
        indent = _INDENT if self.width >= 4 * _INDENT else 2
        first, *others = (part.plain for part in Content(text).wrap(self.width - indent))
        self.rows.append(Row(first, self.next, style, whole=text, kind=kind, lines=lines))
        self.rows += [Row(f"{'':{indent}}{part}", self.next, style, lines=0) for part in others]
