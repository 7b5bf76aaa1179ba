"""The log of a run: levels, follow, search, and a word on lines that look bad and are not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.highlighter import Highlighter
from rich.text import Text
from textual import on
from textual.binding import Binding
from textual.cache import LRUCache
from textual.widgets import Footer, Input, Log

from dflash_tui.core.benign import why_benign
from dflash_tui.core.events import LogLine
from dflash_tui.core.state import KEPT_LINES, RunState
from dflash_tui.text import cut
from dflash_tui.tui import figures

LEVELS = ("all", "warnings and worse", "errors")
_RANKS = {"WARNING": 1, "ERROR": 2, "CRITICAL": 2}
_PIECE = 500
# Lines that are kept drawn: a few screens. Textual keeps 1024, which are 10 MB of what nobody looks at.
_DRAWN = 200
_NOTE = f"{'':11}↳ no harm: "


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
        super().__init__(highlight=True, max_lines=KEPT_LINES, id="log")
        self.highlighter = _Marks(self)
        self._render_line_cache = LRUCache(_DRAWN)
        self.words, self.at, self.level = "", -1, 0
        self._taken = self._shown = self._seen = 0
        self._explained: set[str] = set()
        self._rank = 0

    def on_mount(self) -> None:
        self._say()

    def enlarge(self, whole: bool) -> None:
        """Name the keys while the log has the whole screen; elsewhere the help does."""
        self.border_subtitle = "/ search  n N matches  v level  F follow  g G ends  l back" if whole else None
        self.focus()

    def reset(self) -> None:
        """Forget everything; another run comes."""
        self.words, self.at, self.level, self._taken = "", -1, 0, 0
        self._empty()
        self.auto_scroll = True

    def _empty(self) -> None:
        self._shown, self._seen, self._rank, self._explained = 0, 0, 0, set()
        self.clear()

    def show(self, state: RunState, utc_offset: float) -> None:
        """Write lines of `state` that came since the last time: so many at once as cost no key press."""
        new = min(state.line_count - self._taken, len(state.lines))
        some = min(new, _PIECE)
        self._taken = state.line_count - new + some
        self._state, self._offset = state, utc_offset
        if some > 0:
            self._write(state.lines[index] for index in range(-new, some - new))

    def _write(self, lines: Iterable[LogLine]) -> None:
        texts = [text for line in lines for text in self._texts(line)]
        before = len(self.lines)
        self.write_lines(texts)
        gone = before + len(texts) - len(self.lines)
        if gone > 0:  # what somebody looks at stays where it is
            self.at = self.at - gone if self.at >= gone else -1
            if not self.auto_scroll:
                self.scroll_to(y=max(0, self.scroll_offset.y - gone), animate=False, immediate=True)
        self._say()

    def _texts(self, line: LogLine) -> list[str]:
        """Return what is written of a line: nothing below the level, else the line and perhaps a note."""
        if line.level or line.source:
            self._rank = _RANKS.get(line.level, 0)
        elif line.text.startswith("Traceback (most recent call last)"):
            self._rank = 2  # what follows it has no level of its own
        why = why_benign(line.text) if self._rank or not line.level else ""
        self._seen += 1
        if (min(self._rank, 1) if why else self._rank) < self.level:
            return []
        self._shown += 1
        text = figures.log_line(line, self._offset)
        if not why:
            return [text]
        marked = f"{text[:9]}~ {text[11:]}"
        if why in self._explained:
            return [marked]
        self._explained.add(why)
        return [marked, f"{_NOTE}{why}"]

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
        self.refresh()
        if words:
            self.action_match(-1)
        self._say()

    def action_match(self, step: int) -> None:
        found = self._matches()
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

    def _matches(self) -> list[int]:
        return [index for index, text in enumerate(self.lines) if self.words and self.words in text.lower()]

    def action_search(self) -> None:
        if not self.screen.query(SearchBar):
            self.screen.mount(SearchBar(self), before=self.screen.query_one(Footer))

    def action_level(self) -> None:
        self._refill((self.level + 1) % len(LEVELS))

    def action_all(self) -> None:
        self.words, self.at = "", -1
        self._refill(0)

    def _refill(self, level: int) -> None:
        self.level, self.at, self.auto_scroll = level, -1, True
        self._empty()
        if self._taken:
            self._taken = self._state.line_count - len(self._state.lines)
            self.show(self._state, self._offset)
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
        if self.level:
            parts.append(f"{LEVELS[self.level]}: {self._shown} of {self._seen}")
        if self.words:
            found = self._matches()
            place = f"{found.index(self.at) + 1} of {len(found)}" if self.at in found else f"{len(found)} matches"
            parts.append(f"“{cut(self.words, 20)}” {place}")
        self.border_title = Text(" · ".join(parts))


class _Marks(Highlighter):
    """Makes marks and matches stand out by weight, so that every theme and NO_COLOR shows them."""

    def __init__(self, pane: LogPane) -> None:
        self._pane = pane

    def highlight(self, text: Text) -> None:
        line = text.plain
        if line[9:11] == "✗ ":
            text.stylize("bold")
        elif line[9:11] == "~ " or line.startswith(_NOTE):
            text.stylize("dim")
        if (words := self._pane.words) and (at := line.lower().find(words)) >= 0:
            text.stylize("reverse", at, at + len(words))


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
