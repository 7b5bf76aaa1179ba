"""Widgets that every screen uses: text lines, lists, fields, the footer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import on
from textual.app import ComposeResult, RenderResult
from textual.binding import Binding
from textual.content import Content
from textual.css.query import NoMatches
from textual.events import Resize
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Footer, Input, OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import Worker

from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import name_commands, truncate

Result = TypeVar("Result")
NEEDS = (60, 18)
MUTED = "$foreground 60%"
# For rows of a list: readable on the cursor's background as well.
MUTED_ROW = "auto 70%"


class Display(Static):
    """A `Static` that truncates long lines unless the style sheet wraps them."""

    DEFAULT_CSS = "Display { text-wrap: nowrap; text-overflow: ellipsis; }"

    def show(self, content: Content) -> None:
        """Replace the content; lay out again only if the number of lines may change."""
        if content != self.content:
            taller = content.plain.count("\n") != str(self.content).count("\n")
            self.update(content, layout=taller or self.styles.text_wrap == "wrap")


class Keys(Footer):
    """Textual's footer without padding, with the keys that fit; the help lists all."""

    def __init__(self) -> None:
        super().__init__(show_command_palette=False, compact=True)
        self.labels: dict[str, tuple[str, bool]] = {}
        self.fitted_width = 0

    def compose(self) -> ComposeResult:
        """Yield the keys, compact from the start: otherwise Textual applies the styles of each twice."""
        self.fitted_width = self.size.width
        right = -1
        for key, (label, _) in zip(super().compose(), self.labels.values(), strict=False):
            right += 1 + cell_len(label)
            if right > self.fitted_width:
                return
            yield key.add_class("-compact", update=False)

    def bindings_changed(self, screen: Screen[Any]) -> None:
        """Rebuild the footer only if its keys changed: each is a widget."""
        labels: dict[str, tuple[str, bool]] = {}
        for _, binding, enabled, _ in screen.active_bindings.values():
            if binding.show:
                label = f"{self.app.get_key_display(binding)} {binding.description}"
                labels.setdefault(binding.action, (label, enabled))
        if labels != self.labels:
            self.labels = labels
            super().bindings_changed(screen)

    def on_resize(self) -> None:
        if self.children and self.size.width != self.fitted_width:
            self.call_after_refresh(self.recompose)


def join_fitting(parts: Iterable[Content], width: int) -> Content:
    """Return the parts that fit into `width` cells side by side, the most important first.

    The first part is always kept; from the first one that does not fit, all are dropped.
    """
    line: Content | None = None
    for part in parts:
        if line is not None and line.cell_length + part.cell_length > width:
            break
        line = part if line is None else line + part
    return line or Content("")


class MarkedList(OptionList):
    """A list with coloured marks; the highlighted row uses the cursor's text colour, for contrast."""

    def render_line(self, y: int) -> Strip:
        """Return a line; the highlighted one in the cursor's colour."""
        strip = super().render_line(y)
        if self.highlighted is None or not any(self._is_highlighted(segment) for segment in strip):
            return strip
        color = Style(color=self.get_component_rich_style("option-list--option-highlighted").color)
        return Strip([Segment(text, style + color if style else color) for text, style, _ in strip], strip.cell_length)

    def _is_highlighted(self, segment: Segment) -> bool:
        return segment.style is not None and segment.style.meta.get("option") == self.highlighted


class TextField(Input):
    """An `Input` that is shown while the user types; opening it selects its text."""

    def open(self) -> None:
        """Show it and focus it at once, so that it receives the next key."""
        self.display = True
        self.screen.set_focus(self)


class SizedScreen(Screen[Result]):
    """A screen that handles only the last of several pending terminal sizes.

    Two pending sizes would otherwise trigger each other for ever.
    """

    @on(Resize)
    def _leave_out_earlier_size(self, event: Resize) -> None:
        if event.size != self.app.size:
            event.prevent_default()

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Show what depends on the size."""


class TooSmall(Widget):
    """A notice that the terminal is too small; the style sheet shows it instead of everything else."""

    def render(self) -> RenderResult:
        width, height = self.app.size
        return Content(f"terminal too small: {width}x{height}, needs {NEEDS[0]}x{NEEDS[1]}")


def render_error(error: DflashError | OSError, head: str = "") -> Content:
    """Return an error in rows: what happened after a `head`, the evidence, the hint."""
    known = error if isinstance(error, DflashError) else DflashError(error.strerror or str(error))
    rows = [Content.assemble(("✗ ", "bold $error"), (f"{head}{known.what}", "bold"))]
    rows += [Content.assemble("  ", (known.evidence, "$foreground"))] if known.evidence else []
    rows += [Content.assemble(("→ ", "bold $primary"), name_commands(known.hint))] if known.hint else []
    return Content("\n").join(rows)


def list_broken_options(broken: Mapping[str, str], width: int) -> list[Option]:
    """Return a disabled row for each unusable item, with the reason."""
    rows = (f"{name}  {reason}" for name, reason in broken.items())
    return [Option(Content.assemble(("✗ ", "$error"), truncate(row, width - 2)), disabled=True) for row in rows]


Composed = TypeVar("Composed", bound=Widget)
Opened = TypeVar("Opened", bound=Widget)
Given = ParamSpec("Given")


def once_composed(mount: Callable[[Composed], None]) -> Callable[[Composed], None]:
    """Skip an `on_mount` whose widget has no children: Textual also calls it while the panel closes."""

    @functools.wraps(mount)
    def mount_if_composed(widget: Composed) -> None:
        if not widget.children:
            return
        try:
            mount(widget)
        except NoMatches:  # only some of its children are mounted
            if widget.app.is_running:
                raise

    return mount_if_composed


def while_open(draw: Callable[Concatenate[Opened, Given], None]) -> Callable[Concatenate[Opened, Given], None]:
    """Skip a `draw` whose widgets are missing: workers may draw while the panel closes."""

    @functools.wraps(draw)
    def draw_if_open(widget: Opened, /, *args: Given.args, **kwargs: Given.kwargs) -> None:
        try:
            draw(widget, *args, **kwargs)
        except NoMatches:
            if widget.app.is_running and widget.is_mounted and widget.screen.is_active:
                raise

    return draw_if_open


def each_in_turn(begin: Callable[[], Worker[Any]]) -> Callable[[], None]:
    """Return a timer callback that skips `begin` while its last worker is running.

    Otherwise work that takes longer than the interval, as on a slow disk, would always be cancelled by its successor.
    """
    begun: list[Worker[Any]] = []

    def begin_when_over() -> None:
        if not begun or begun[-1].is_finished:
            begun[:] = [begin()]

    return begin_when_over


CHAT_KEY = Binding("4", "app.chat", "Chat", tooltip="Talk with the server that is shown, or the newest")
HELP_KEY = Binding("question_mark", "app.keys", "Help", key_display="?")
QUIT_KEY = Binding("q", "app.leave", "Quit", tooltip="Quit the panel; servers and experiments keep running")
COMMON_KEYS = (
    CHAT_KEY,
    Binding("r", "app.runs", "Runs", tooltip="Runs: watch, replay or export one"),
    HELP_KEY,
    QUIT_KEY,
    Binding("1", "app.show('launch')", "Launch", tooltip="The launch screen"),
    Binding("2", "app.show('live')", "Live", show=False, tooltip="The run being watched"),
    Binding("3", "app.show('ab')", "Last A/B", show=False, tooltip="The A/B viewed last, or the newest"),
)
