"""Small widgets that draw values: lines of text, acceptance per position, measured requests."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual import on
from textual.app import RenderResult
from textual.binding import Binding
from textual.content import Content
from textual.css.query import NoMatches
from textual.events import Resize
from textual.reactive import reactive
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Footer, Input, OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import Worker

from dflash_tui.common.formatting import (
    UNKNOWN,
    draw_bar,
    format_number,
    name_commands,
    truncate,
    truncate_middle,
)
from dflash_tui.events import RequestDone
from dflash_tui.run_state.speculation import DraftAdvice

Result = TypeVar("Result")
NEEDS = (60, 18)
MUTED = "$foreground 60%"
# The same for rows of a list: it contrasts with the cursor's background, too.
MUTED_ROW = "auto 70%"
# More than fit on any screen; all of them would cost more with every request.
REQUESTS_SHOWN = 60
# The cells from which a table of requests has the column of tokens, and the one of how each ended.
_TOKENS_FROM, _END_FROM = 31, 37
# The cells of a position's number and share, and those of a border beside its title.
_LEAST_POSITION, _TITLE_EDGES = 8, 2


class Display(Static):
    """A `Static` whose lines are cut where they are too long, unless the style sheet wraps them."""

    DEFAULT_CSS = "Display { text-wrap: nowrap; text-overflow: ellipsis; }"

    def show(self, content: Content) -> None:
        """Replace the content; the screen is laid out again only if the number of lines may change."""
        if content != self.content:
            taller = content.plain.count("\n") != str(self.content).count("\n")
            self.update(content, layout=taller or self.styles.text_wrap == "wrap")


class Keys(Footer):
    """Textual's row of keys, without blanks around them; help lists all keys, also where there is no room."""

    def __init__(self) -> None:
        super().__init__(show_command_palette=False, compact=True)
        self.keys: list[tuple[str, str, bool]] = []

    def bindings_changed(self, screen: Screen[Any]) -> None:
        """Recreate the row where its keys changed: each is a widget."""
        active = screen.active_bindings.values()
        keys = [(each.binding.key, each.binding.description, each.enabled) for each in active if each.binding.show]
        if keys != self.keys:
            self.keys = keys
            super().bindings_changed(screen)

    async def recompose(self) -> None:
        await super().recompose()
        self.call_after_refresh(self.hide_cut)

    def on_resize(self) -> None:
        self.call_after_refresh(self.hide_cut)

    def hide_cut(self) -> None:
        """Hide the key that the right edge would cut."""
        for key in self.children:
            key.visible = key.virtual_region.right <= self.size.width


def join_fitting(parts: Iterable[Content], width: int) -> Content:
    """Return the parts that fit into `width` cells beside each other, the most important first.

    The first that does not fit is left out whole, and so is what follows it; the very first is always there.
    """
    line: Content | None = None
    for part in parts:
        if line is not None and line.cell_length + part.cell_length > width:
            break
        line = part if line is None else line + part
    return line or Content("")


class MarkedList(OptionList):
    """A list with marks in colours; under the cursor, whose background these were not chosen for, in its own colour."""

    def render_line(self, y: int) -> Strip:
        """Return a line, in the colour of the cursor where it is highlighted."""
        strip = super().render_line(y)
        if self.highlighted is None or not any(self._is_highlighted(segment) for segment in strip):
            return strip
        color = Style(color=self.get_component_rich_style("option-list--option-highlighted").color)
        return Strip([Segment(text, style + color if style else color) for text, style, _ in strip], strip.cell_length)

    def _is_highlighted(self, segment: Segment) -> bool:
        return segment.style is not None and segment.style.meta.get("option") == self.highlighted


class TextField(Input):
    """An `Input` that is shown while something is typed; what was in it is selected, so that letters replace it."""

    def open(self) -> None:
        """Show it and give it the focus at once: what is typed right behind is for it."""
        self.display = True
        self.screen.set_focus(self)


class SizedScreen(Screen[Result]):
    """A screen that heeds the last size of the terminal alone.

    Of two sizes that wait for it each would have it lay itself out and tell itself its size, for ever.
    """

    @on(Resize)
    def _leave_out_earlier_size(self, event: Resize) -> None:
        if event.size != self.app.size:
            event.prevent_default()


class TooSmall(Widget):
    """A notice that the terminal is too small; the style sheet shows it instead of everything else."""

    def render(self) -> RenderResult:
        width, height = self.app.size
        return Content(f"terminal too small: {width}x{height}, needs {NEEDS[0]}x{NEEDS[1]}")


def render_error(what: str, evidence: str, do: str) -> Content:
    """Return an error of ours: what happened, the line that shows it and what to do about it."""
    rows = [Content.assemble(("✗ ", "bold $error"), (what, "bold"))]
    rows += [Content.assemble("  ", (evidence, "$foreground"))] if evidence else []
    rows += [Content.assemble(("→ ", "bold $primary"), name_commands(do))] if do else []
    return Content("\n").join(rows)


def list_broken_options(broken: Mapping[str, str], width: int) -> list[Option]:
    """Return a row of `width` cells for each thing that cannot be used, with the reason; none can be chosen."""
    rows = (f"{name}  {reason}" for name, reason in broken.items())
    return [Option(Content.assemble(("✗ ", "$error"), truncate(row, width - 2)), disabled=True) for row in rows]


class Positions(Widget):
    """The share of steps in which each draft position was accepted, in as many columns as the height requires.

    The first position that does not pay off is marked, and those after it are muted.
    """

    shares: reactive[tuple[float | None, ...]] = reactive(())
    advice: reactive[DraftAdvice | None] = reactive(None)

    def __init__(self) -> None:
        super().__init__(id="positions")

    def show(self, shares: Sequence[float | None], advice: DraftAdvice | None) -> None:
        """Replace the shares, rounded to whole per cent, and the advice on how many tokens to draft."""
        self.shares, self.advice = tuple(None if share is None else round(share, 2) for share in shares), advice

    def watch_advice(self) -> None:
        """Name the advice in the title."""
        self._write_title()

    def on_resize(self) -> None:
        self._write_title()

    def _write_title(self) -> None:
        title = f"accepted per position{_format_advice(self.advice)}"
        if len(title) + _TITLE_EDGES > self.outer_size.width:
            title = title.replace(" per position", "")
        self.border_title = Content(title)

    def render(self) -> RenderResult:
        width, height = self.size
        if not self.shares or height < 1:
            return Content("no steps in this window" if height > 0 else "")
        columns = min(-(-len(self.shares) // height), max(1, (width + 1) // _LEAST_POSITION))
        row_count = min(height, -(-len(self.shares) // columns))
        column_width = (width + 1) // columns
        useless = self.advice.first_useless if self.advice else None
        rows = [Content("") for _ in range(row_count)]
        hidden = len(self.shares) > columns * row_count
        for index, share in enumerate(self.shares[: columns * row_count - hidden]):
            room = max(0, column_width - 9)
            gap = " " if index >= row_count and column_width > _LEAST_POSITION else ""
            drawn = draw_bar(share or 0.0, room)
            mark = "✗" if index + 1 == useless else " "
            color = "$series-b" if useless is None or index + 1 < useless else "$foreground 40%"
            rows[index % row_count] += Content.assemble(
                (f"{gap}{mark}", "$error"),
                (f"{index + 1:>2} ", MUTED),
                (drawn, color),
                f"{format_number(None if share is None else share * 100, 0):>{room - len(drawn) + 4}}",
            )
        if hidden:
            rows[-1] += Content.assemble(("  …", MUTED))
        return Content("\n").join(rows)


def _format_advice(advice: DraftAdvice | None) -> str:
    if advice is None:
        return " %"
    return ": all useful" if advice.first_useless is None else f": try n={advice.suggested}"


class Requests(Widget):
    """The last measured requests, one per row, and the one that is being sent; `none` is said while there is none."""

    requests: reactive[Sequence[RequestDone]] = reactive(())
    sending: reactive[str] = reactive("")

    def __init__(self, none: Content | None = None) -> None:
        super().__init__(id="requests")
        self.border_title = "requests"
        key = "bold $primary"
        hint = Content.assemble(("none yet; ", MUTED), ("b", key), (" sends five prompts, ", MUTED), ("4", key))
        hint += Content.assemble((" chats, ", MUTED), ("y", key), (" copies a curl", MUTED))
        self.none = none or hint

    def show(self, requests: Sequence[RequestDone], sending: str) -> None:
        """Replace the requests; `sending` names the prompt that is being sent, or is empty."""
        self.requests, self.sending = requests, sending

    def render(self) -> RenderResult:
        width, height = self.size
        tokens, end = f" {'tokens':>6}" * (width >= _TOKENS_FROM), "  end" * (width >= _END_FROM)
        header = Content.assemble((f"{'':9} {'TTFT':>7} {'tok/s':>6}{tokens}{end}", MUTED))
        rows = [_render_request(done, width) for done in self.requests]
        if self.sending:
            rows.append(Content.assemble((f"{self.sending:<9}", "bold"), ("  sending …", MUTED)))
        if not rows:
            rows = [self.none]
        return Content("\n").join([header, *rows[-max(1, height - 1) :]])


def _render_request(done: RequestDone, width: int) -> Content:
    kind = f"{truncate_middle(done.kind, 9):<9}"
    if done.error:
        return Content.assemble((kind, "bold"), (truncate(f" ✗ {done.error}", width - 9), "$error"))
    ttft = UNKNOWN if done.ttft is None else format_number(done.ttft, 2, "s")
    tokens = f" {done.tokens:>6}" * (width >= _TOKENS_FROM)
    figures = f" {ttft:>7} {format_number(done.decode_tok_s):>6}{tokens}  "
    return Content.assemble((kind, "bold"), figures, (truncate(done.finish, max(0, width - _END_FROM + 4)), MUTED))


Composed = TypeVar("Composed", bound=Widget)
Opened = TypeVar("Opened", bound=Widget)
Given = ParamSpec("Given")


def once_composed(mount: Callable[[Composed], None]) -> Callable[[Composed], None]:
    """Return an `on_mount` that does without children, as Textual calls it while the panel closes, too."""

    @functools.wraps(mount)
    def mount_if_composed(widget: Composed) -> None:
        if not widget.children:
            return
        try:
            mount(widget)
        except NoMatches:  # of its children some are there
            if widget.app.is_running:
                raise

    return mount_if_composed


def while_open(draw: Callable[Concatenate[Opened, Given], None]) -> Callable[Concatenate[Opened, Given], None]:
    """Return a `draw` that may come when parts of its screen are missing: a worker draws while the panel closes."""

    @functools.wraps(draw)
    def draw_if_open(widget: Opened, /, *args: Given.args, **kwargs: Given.kwargs) -> None:
        try:
            draw(widget, *args, **kwargs)
        except NoMatches:
            if widget.app.is_running and widget.is_mounted and widget.screen.is_active:
                raise

    return draw_if_open


def each_in_turn(begin: Callable[[], Worker[Any]]) -> Callable[[], None]:
    """Return what a timer calls to begin work again: not before the last it began is over.

    Work that takes longer than the interval, as from a slow disk, would be cancelled by its successor each time.
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
