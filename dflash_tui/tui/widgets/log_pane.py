"""The log of a run: levels, follow, search, and a word on lines that look bad and are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

from rich.cells import cached_cell_len
from rich.style import Style
from rich.text import Text
from textual import on
from textual.binding import Binding
from textual.geometry import Size
from textual.strip import Strip
from textual.widgets import Footer, Input, Log

from dflash_tui.common.formatting import truncate
from dflash_tui.events import LogLine
from dflash_tui.run_state.state import RunState
from dflash_tui.tui.widgets.log_rows import LogRows, style_row

LEVELS = ("all", "warnings and worse", "errors")
_PIECE = 500
# Without its cache, which would keep the texts of 4096 lines.
_cells = cached_cell_len.__wrapped__


class LogPane(Log):
    """Shows the lines of a state, those of `level` and worse; it follows unless somebody scrolled or searched.

    `!` marks a warning, `✗` an error, `~` what looks like one of them and is not, with the reason below the first.
    """

    BINDINGS: ClassVar = [
        Binding("slash", "search", "Search", show=False, key_display="/", tooltip="Log: search"),
        Binding("n", "match(1)", "Next match", show=False, tooltip="Log: next match"),
        Binding("N", "match(-1)", "Match before", show=False, key_display="N", tooltip="Log: the match before"),
        Binding("v", "level", "Level", show=False, tooltip="Log: all lines, warnings and worse, errors"),
        Binding("F", "follow", "Follow", show=False, tooltip="Log: follow the end, or hold still"),
        Binding("g", "top", "Top", show=False, tooltip="Log: the first line kept"),
        Binding("G", "end", "End", show=False, key_display="G", tooltip="Log: the end, and follow it"),
        Binding("escape", "all", "All lines", show=False, tooltip="Log: forget search and level"),
    ]

    def __init__(self) -> None:
        super().__init__(id="log")
        self.rows = LogRows()
        self._lines = cast("list[str]", self.rows)  # Textual reads what it draws, and clears it
        self.words, self.at = "", -1
        self._found: list[int] = []
        self._taken = 0

    def on_mount(self) -> None:
        self._say()

    def enlarge(self, whole: bool) -> None:
        """Name the keys while the log has the whole screen; elsewhere the help does."""
        self.border_subtitle = "/ search  n N matches  v level  F follow  g G ends  l back" if whole else None
        self.focus()

    def reset(self) -> None:
        """Forget everything; another run comes."""
        self.words, self.at, self.rows.level, self._taken = "", -1, 0, 0
        self._empty()
        self.auto_scroll = True

    def _empty(self) -> None:
        self._found = []
        self.clear()

    def show(self, state: RunState, utc_offset: float) -> None:
        """Show lines of `state` that came since the last time, so many at once as cost no key press.

        What the state no longer keeps goes.
        """
        behind = state.line_count - self._taken
        gone = self.rows.keep(max(0, len(state.lines) - behind))
        new = min(behind, len(state.lines))
        some = min(new, _PIECE)
        self._taken = state.line_count - new + some
        self._state, self.rows.utc_offset = state, utc_offset
        if gone or some > 0:
            self._write(gone, [state.lines[index] for index in range(-new, some - new)])

    def _write(self, gone: int, lines: Sequence[LogLine]) -> None:
        """Show `lines` at the end; `gone` rows went at the start, and what somebody looks at stays where it is."""
        held, y = not self.auto_scroll, self.scroll_offset.y
        follows = not held and self.is_vertical_scroll_end and not self.is_vertical_scrollbar_grabbed
        before = len(self.rows)
        self.rows.take(lines)
        texts = self.rows[before:]
        self._width = max(self._width, max((_cells(text) for text in texts), default=0))
        self.virtual_size = Size(self._width, len(self.rows))
        self._found = [index - gone for index in self._found if index >= gone]
        self._found += self._matching(texts, before)
        if gone:
            self.at = max(-1, self.at - gone)
        if follows:
            self.scroll_end(animate=False, immediate=True, x_axis=False)
        elif held and gone:
            self.scroll_to(y=max(0, y - gone), animate=False, immediate=True)
            self.auto_scroll = False
        self.refresh()
        self._say()

    def render_line(self, y: int) -> Strip:
        """Draw what is seen of a row, and keep nothing: whatever Rich and Textual draw, they remember for long."""
        left, top = self.scroll_offset
        at, width, style = top + y, self.size.width, self.rich_style
        if at >= len(self.rows):
            return Strip.blank(width, style)
        row = self.rows[at]
        text = style_row(row, style, self.words)
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(at)) is not None:
            end = len(row) if span[1] == -1 else span[1]
            background = self.screen.get_component_rich_style("screen--selection").bgcolor
            text.stylize(Style(bgcolor=background), span[0], end)
        if row.isascii():  # a letter is a cell
            text = text[: left + width]
        strip = Strip(text.render(self.app.console)).crop_extend(left, left + width, style)
        # What the mouse selects is found by them; they make a style of each row, of which 1024 are remembered.
        return strip.apply_offsets(left, at) if self.mouse_hover else strip

    def watch_mouse_hover(self) -> None:
        self.refresh()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        at_end = self.is_vertical_scroll_end
        if at_end != self.auto_scroll and (new_value < old_value or (at_end and new_value > old_value)):
            self.auto_scroll = at_end
            self._say()

    def show_end(self) -> None:
        """Show the end after a change of size, if it is followed."""
        if self.auto_scroll:
            self.scroll_end(animate=False)

    def find(self, words: str) -> None:
        """Look for `words` in any case, from the end backwards, and go to the last line that has them."""
        self.words, self.at = words.lower(), -1
        self._found = self._matching(self.rows)
        self.refresh()
        if words:
            self.action_match(-1)
        self._say()

    def action_match(self, step: int) -> None:
        found = self._found
        if not found:
            self._say()
            return
        if step > 0:
            self.at = next((index for index in found if index > self.at), found[0])
        else:
            self.at = next((index for index in reversed(found) if self.at < 0 or index < self.at), found[-1])
        self.scroll_to(y=max(0, self.at - self.size.height // 2), animate=False, immediate=True)
        self.auto_scroll = False  # even at the end: the match must not be pushed away
        self.refresh()
        self._say()

    def _matching(self, texts: Sequence[str], first: int = 0) -> list[int]:
        """Return the places of the rows that have the words; the first of `texts` has place `first`."""
        return [index for index, text in enumerate(texts, first) if self.words in text.lower()] if self.words else []

    def action_search(self) -> None:
        if not self.screen.query(SearchBar):
            self.screen.mount(SearchBar(self), before=self.screen.query_one(Footer))

    def action_level(self) -> None:
        self._refill((self.rows.level + 1) % len(LEVELS))

    def action_all(self) -> None:
        self.words, self.at = "", -1
        self._refill(0)

    def _refill(self, level: int) -> None:
        self.rows.level, self.at, self.auto_scroll = level, -1, True
        self._empty()
        if self._taken:
            self._taken = self._state.line_count - len(self._state.lines)
            self.show(self._state, self.rows.utc_offset)
        self._say()

    def action_follow(self) -> None:
        self.auto_scroll = not self.auto_scroll
        self.show_end()
        self._say()

    def action_top(self) -> None:
        self.auto_scroll = False
        self.scroll_home(animate=False)
        self._say()

    def action_end(self) -> None:
        self.auto_scroll = True
        self.scroll_end(animate=False)
        self._say()

    def _say(self) -> None:
        """Say in the title what is seen: following or held, which level, which match."""
        parts = ["server.log", "following" if self.auto_scroll else "held, G follows"]
        if level := self.rows.level:
            parts.append(f"{LEVELS[level]}: {self.rows.shown} of {self.rows.lines}")
        if self.words:
            found = self._found
            place = f"{found.index(self.at) + 1} of {len(found)}" if self.at in found else f"{len(found)} matches"
            parts.append(f"“{truncate(self.words, 20)}” {place}")
        self.border_title = Text(" · ".join(parts))


class SearchBar(Input):
    """Asks for what to search in the log; enter keeps it, escape forgets it."""

    BINDINGS: ClassVar = [Binding("escape", "forget", "forget")]

    def __init__(self, pane: LogPane) -> None:
        super().__init__(value=pane.words, placeholder="search the log; enter, then n and N", id="search")
        self._pane = pane

    def on_mount(self) -> None:
        self.focus()

    @on(Input.Changed)
    def _changed(self) -> None:
        self._pane.find(self.value)

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self._close()

    def action_forget(self) -> None:
        self._pane.action_all()
        self._close()

    def _close(self) -> None:
        self._pane.focus()
        self.remove()
