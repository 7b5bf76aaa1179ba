"""The log of a run: levels, follow, search, and notes on warnings that are harmless."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

from rich.style import Style
from rich.text import Text
from textual import on
from textual.binding import Binding
from textual.events import Click
from textual.geometry import Size
from textual.strip import Strip
from textual.widgets import Input, Log

from dflash_tui.common.formatting import truncate
from dflash_tui.events import LogLine
from dflash_tui.monitoring.far_log import FarLog
from dflash_tui.run_state.state import RunState
from dflash_tui.runs.run import Run
from dflash_tui.tui.widgets.key_line import KeyLine, ShownKey
from dflash_tui.tui.widgets.log_rows import LogRows, count_cells, style_row

LEVELS = ("all", "warnings and worse", "errors")
_PIECE = 500
_KEYS = [
    ShownKey("l", "l", "Back"),
    ShownKey("slash", "/", "Search"),
    ShownKey("n", "n N", "Matches"),
    ShownKey("v", "v", "Level"),
    ShownKey("w", "w", "Wrap"),
    ShownKey("z", "z", "Fold"),
    ShownKey("L", "L", "Other host"),
    ShownKey("F", "F", "Follow"),
    ShownKey("g", "g G", "First, last"),
    ShownKey("question_mark", "?", "Help"),
    ShownKey("q", "q", "Quit"),
]


class LogPane(Log):
    """Shows the log lines of a run's state, those of `level` and worse; it follows unless the user scrolls or searches.

    `!` marks a warning, `✗` an error, `~` a harmless line that looks like one, with the reason below the first.
    """

    BINDINGS: ClassVar = [
        Binding("slash", "search", "Search", show=False, key_display="/", tooltip="Log: search"),
        Binding("n", "match(1)", "Next match", show=False, tooltip="Log: next match"),
        Binding("N", "match(-1)", "Previous match", show=False, key_display="N", tooltip="Log: previous match"),
        Binding("v", "level", "Level", show=False, tooltip="Log: all lines, warnings and worse, errors"),
        Binding("w", "wrap", "Wrap", show=False, tooltip="Log: wrap long lines; those of errors always are"),
        Binding("z", "fold", "Fold", show=False, tooltip="Log: routes and answered requests in one line, or each"),
        Binding("L", "rank", "Rank", show=False, key_display="L", tooltip="Log: that of the next host of the server"),
        Binding("F", "follow", "Follow", show=False, tooltip="Log: follow the end, or stop following"),
        Binding("g", "top", "Top", show=False, tooltip="Log: first line"),
        Binding("G", "end", "End", show=False, key_display="G", tooltip="Log: last line, and follow"),
        Binding("escape", "all", "All lines", show=False, tooltip="Log: clear search and level"),
        Binding("left", "scroll_half(-1)", "Left", show=False),
        Binding("right", "scroll_half(1)", "Right", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(id="log")
        self.rows = LogRows()
        self.folding = True  # unless something is searched for
        self._lines = cast("list[str]", self.rows)  # Textual reads rows from it and clears it
        self.words, self.at = "", -1
        self._matches: list[int] = []
        self._taken = 0
        self._place: int | None = None  # the line to be shown at the top once it is read again
        self._far_logs: list[FarLog] = []
        self._rank = 0

    def action_scroll_half(self, direction: int) -> None:
        """Scroll sideways by half of what is shown."""
        self.scroll_relative(x=direction * max(1, self.size.width // 2), animate=False)

    def on_mount(self) -> None:
        self._update_title()

    def enlarge(self, whole: bool) -> None:
        """Show the keys in the last row while the log fills the screen; elsewhere the help does."""
        line = self.screen.query_one(KeyLine)
        line.only = [key for key in _KEYS if key.name != "L" or self._far_logs] if whole else []
        line.refresh()
        self.focus()

    def reset(self) -> None:
        """Clear everything for another run."""
        self.rows.level, self._far_logs = 0, []
        self._show_rank(0)

    def offer_ranks(self, run: Run) -> None:
        """Offer the logs of the run's ranks on other hosts beside its own."""
        # A recording in one file has no copies of the other logs.
        self._far_logs = [FarLog(run, far) for far in run.far_ranks] if run.folder.is_dir() else []
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        return bool(self._far_logs) if action == "rank" else True

    def action_rank(self) -> None:
        self._show_rank((self._rank + 1) % (1 + len(self._far_logs)))

    def _show_rank(self, rank: int) -> None:
        self._rank = rank
        self.words, self.at, self._taken, self._place = "", -1, 0, None
        self._empty()
        self.auto_scroll = True
        self._update_title()

    def _empty(self) -> None:
        self._matches = []
        self.clear()

    def show(self, state: RunState, utc_offset: float) -> None:
        """Show the lines of `state` that are new, at most so many at once that no key press is delayed.

        Lines that the state has dropped are dropped here, too.
        """
        if self._rank:
            far = self._far_logs[self._rank - 1]
            far.read()
            state = far.state
        behind = state.line_count - self._taken
        dropped = self.rows.keep(max(0, len(state.lines) - behind))
        new = min(behind, len(state.lines))
        some = min(new, _PIECE)
        self._taken = state.line_count - new + some
        self._state, self.rows.utc_offset = state, utc_offset
        if dropped or some > 0:
            self._write(dropped, [state.lines[index] for index in range(-new, some - new)])

    def _write(self, dropped: int, lines: Sequence[LogLine]) -> None:
        """Append `lines`; `dropped` rows were removed at the start, and the rows in view stay where they are."""
        is_paused, y = not self.auto_scroll, self.scroll_offset.y
        follows = not is_paused and self.is_vertical_scroll_end and not self.is_vertical_scrollbar_grabbed
        before = len(self.rows)
        self.rows.take(lines)
        texts = self.rows[before:]
        self._width = max(self._width, max((count_cells(text) for text in texts), default=0))
        self.virtual_size = Size(self._width, len(self.rows))
        self._matches = [index - dropped for index in self._matches if index >= dropped]
        self._matches += self.rows.find(self.words, before)
        if dropped:
            self.at = max(-1, self.at - dropped)
        if follows:
            self.scroll_end(animate=False, immediate=True, x_axis=False)
        elif is_paused and dropped:
            self.scroll_to(y=max(0, y - dropped), animate=False, immediate=True)
            self.auto_scroll = False
        self._return_to_place(dropped)
        self.refresh()
        self._update_title()

    def _return_to_place(self, dropped: int) -> None:
        """Show the line at the top that stood there before all were read again, once it has its row."""
        if self._place is None or self.rows.lines <= self._place:
            return
        self.scroll_to(y=max(0, self.rows.find_row(self._place) - dropped), animate=False, immediate=True)
        self.auto_scroll, self._place = False, None

    def on_resize(self) -> None:
        """Wrap anew what was wrapped for another width."""
        region = self.scrollable_content_region
        width = region.width - (not self.show_vertical_scrollbar)  # which comes with the first rows
        if region.width and width != self.rows.width:
            self.rows.width = width
            if self.rows.wraps:
                self._refill_in_place()

    def render_line(self, y: int) -> Strip:
        """Draw the visible part of a row and cache nothing: the caches of Rich and Textual would keep all texts."""
        left, top = self.scroll_offset
        at, width, style = top + y, self.size.width, self.rich_style
        if at >= len(self.rows):
            return Strip.blank(width, style)
        row = self.rows[at]
        text = style_row(row, style, self.words, self.rows.read_mark(at))
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
        # Fewer rows may bring the end up to who reads; only who goes down to it follows.
        if at_end != self.auto_scroll and at_end == (new_value > old_value):
            self.auto_scroll = at_end
            self._update_title()

    def show_end(self) -> None:
        """Show the end after a change of size, if it is followed."""
        if self.auto_scroll:
            self.scroll_end(animate=False)

    def find(self, words: str) -> None:
        """Search for `words` in any case, and go to the last line that contains them."""
        self.words, self.at = words.lower(), -1
        if (fold := self.folding and not words) != self.rows.fold:
            self.rows.fold = fold  # what is searched for may be in what is folded
            self._refill_in_place()
        self._matches = self.rows.find(self.words)
        self.refresh()
        if words:
            self.action_match(-1)
        self._update_title()

    def action_match(self, step: int) -> None:
        matches = self._matches
        if not matches:
            self._update_title()
            return
        if step > 0:
            self.at = next((index for index in matches if index > self.at), matches[0])
        else:
            self.at = next((index for index in reversed(matches) if self.at < 0 or index < self.at), matches[-1])
        column = self.lines[self.at].lower().find(self.words) + len(self.words) + 1
        beyond = column - self.scrollable_content_region.width  # where a line is cut, its match is to be seen
        self.scroll_to(
            x=max(0, beyond) if self.allow_horizontal_scroll else 0,
            y=max(0, self.at - self.size.height // 2),
            animate=False,
            immediate=True,
        )
        self.auto_scroll = False  # even at the end: the match must not be pushed away
        self.refresh()
        self._update_title()

    def action_search(self) -> None:
        if not self.screen.query(SearchBar):
            self.screen.mount(SearchBar(self), before=self.screen.query_one(KeyLine))

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
        """Open what is folded in a row that is clicked."""
        if self.rows.is_fold(self.scroll_offset.y + event.y - 1):
            self.action_fold()

    def _refill_in_place(self) -> None:
        """Read the lines again, and show those that are shown."""
        follows, line = self.auto_scroll, self.rows.find_line(self.scroll_offset.y)
        self._refill(self.rows.level)
        if not follows:
            self.auto_scroll, self._place = False, line
            self._return_to_place(0)

    def _refill(self, level: int) -> None:
        self.rows.level, self.at, self.auto_scroll, self._place = level, -1, True, None
        self._empty()
        if self._taken:
            self._taken = self._state.line_count - len(self._state.lines)
            self._catch_up()
        self._update_title()

    def _catch_up(self) -> None:
        """Show the lines that are left, a part after the other, with keys between them."""
        self.show(self._state, self.rows.utc_offset)
        if self._taken < self._state.line_count and self.is_attached:
            self.call_later(self._catch_up)
        else:
            self.call_after_refresh(self.show_end)

    def action_follow(self) -> None:
        self.auto_scroll = not self.auto_scroll
        self.show_end()
        self._update_title()

    def action_top(self) -> None:
        self.auto_scroll = False
        self.scroll_home(animate=False)
        self._update_title()

    def action_end(self) -> None:
        self.auto_scroll = True
        self.scroll_end(animate=False)
        self._update_title()

    def _update_title(self) -> None:
        """Show in the title whether the log is followed, the level, and the match."""
        name = f"rank {self._rank} on {self._far_logs[self._rank - 1].far.host}" if self._rank else "server.log"
        parts = [name, "following" if self.auto_scroll else "paused, G follows"]
        if level := self.rows.level:
            parts.append(f"{LEVELS[level]}: {self.rows.matching} of {self.rows.lines}")
        if self.words:
            matches = self._matches
            place = (
                f"{matches.index(self.at) + 1} of {len(matches)}" if self.at in matches else f"{len(matches)} matches"
            )
            parts.append(f"“{truncate(self.words, 20)}” {place}")
        self.border_title = Text(" · ".join(parts))


class SearchBar(Input):
    """The search bar of the log; enter keeps the search, escape clears it."""

    BINDINGS: ClassVar = [Binding("escape", "clear_search", "clear")]

    def __init__(self, pane: LogPane) -> None:
        super().__init__(
            value=pane.words, placeholder="search the log; after enter, n and N go to other matches", id="search"
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
