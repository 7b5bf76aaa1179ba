"""The chat screen: streamed answers with reasoning and tool calls apart, and measures below each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import ClassVar, NamedTuple

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Input, Static
from textual.worker import Worker

from dflash_tui.benchmark.chat import Conversation, Part, Turn
from dflash_tui.benchmark.server import Server
from dflash_tui.common.formatting import truncate_middle
from dflash_tui.presentation.client_text import (
    Endpoint,
    format_tool_call,
    format_turn,
    list_cautions,
    list_endpoint_facts,
    obey_command,
)
from dflash_tui.runs import server_process
from dflash_tui.runs.run import Run
from dflash_tui.tui.widgets.basic import (
    MUTED,
    Display,
    Keys,
    SizedScreen,
    TextField,
    TooSmall,
    join_fitting,
    once_composed,
    while_open,
)

# Seconds between two redraws of a growing answer.
_INTERVAL = 0.1


class _Drawn(NamedTuple):
    """How much of the end of a text is drawn: layout time grows with characters and lines."""

    characters: int
    lines: int


# A growing text is laid out again at each redraw, so less of it is drawn than of a complete one.
_GROWING, _WHOLE = _Drawn(4000, 200), _Drawn(20_000, 1000)
# Parts of the conversation that are kept on the screen; older ones are removed.
_MOST_PARTS = 120
_LEAST_NAME = 12


class _GrowingText:
    """The end of a text that arrives in pieces, as much as is drawn of a complete one."""

    def __init__(self) -> None:
        self._end, self._pieces, self._is_cut = "", list[str](), False

    @property
    def has_more(self) -> bool:
        """Whether pieces arrived since the last `read_end`."""
        return bool(self._pieces)

    def add(self, piece: str) -> None:
        self._pieces.append(piece)

    def read_end(self, most: _Drawn) -> str:
        """Return the end of the text, with … before it if it is cut."""
        text = self._end + "".join(self._pieces)
        self._pieces.clear()
        self._end = text[-_WHOLE.characters :]
        self._is_cut |= len(self._end) < len(text)
        end = "\n".join(self._end[-most.characters :].split("\n")[-most.lines :])
        return f"…{end}" if self._is_cut or len(end) < len(self._end) else end


class ChatScreen(SizedScreen[None]):
    """Shows the conversation with one run; another run begins a new one."""

    CSS_PATH = "screens.tcss"
    BINDINGS: ClassVar = [
        Binding("escape", "stop_or_leave", "Stop, back", tooltip="Stop the answer, or go back if there is none"),
        Binding("ctrl+c", "stop", "Stop", show=False, priority=True, tooltip="Stop the answer"),
        Binding("ctrl+l", "clear", "Clear", tooltip="Clear the conversation"),
        Binding("pageup", "page(-1)", "Scroll", key_display="pgup pgdn", tooltip="Scroll"),
        Binding("pagedown", "page(1)", "Scroll", show=False),
        Binding("ctrl+q", "app.leave", "Quit", tooltip="Quit the panel; the server keeps running"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.conversation: Conversation | None = None
        self._run: Run | None = None
        self._answering: Worker[None] | None = None
        self._texts = {part: _GrowingText() for part in Part}
        self._drawn: dict[Part, Static] = {}

    def compose(self) -> ComposeResult:
        yield Display(id="status")
        yield VerticalScroll(id="talk", can_focus=False)
        yield TextField(id="say", placeholder="say something; /help lists commands")
        yield TooSmall()
        yield Keys()

    @once_composed
    def on_mount(self) -> None:
        self.set_interval(_INTERVAL, self.draw)
        self._talk.anchor()  # follows the end until the user scrolls up
        self.query_one(TextField).open()
        self._show_status()
        self._add_cautions()

    def on_resize(self) -> None:
        self._show_status()

    def begin(self, run: Run) -> None:
        """Continue the conversation with `run`, or begin one if it is another run."""
        if self._run and self._run.id == run.id:
            return
        self.action_stop()
        self._run, self.conversation = run, Conversation(Server.from_run(run))
        if self.is_mounted:
            self._talk.remove_children()
            self._talk.anchor()
            self._show_status()
            self._add_cautions()

    @property
    def _talk(self) -> VerticalScroll:
        return self.query_one("#talk", VerticalScroll)

    def _show_status(self) -> None:
        talk, run = self.conversation, self._run
        if talk is None or run is None:
            return
        settings = [f"temperature {talk.temperature:g}"] if talk.temperature is not None else []
        settings += ["system text"] if talk.system else []
        endpoint, width = Endpoint.from_run(run), self.size.width - 2
        label = (" SYNTHETIC" if run.plan.synthetic else "", "bold $accent")
        head, place = Content.assemble(("● ", "$primary"), ("CHAT", "bold"), label), Content(f"  {endpoint.url}")
        set_here = [Content.assemble((f"  {' · '.join(settings)}", "$accent"))] if settings else []
        room = width - sum(part.cell_length for part in (head, place, *set_here)) - 2
        name = Content(f"  {truncate_middle(run.plan.recipe, max(_LEAST_NAME, room))}")
        facts = [Content(f" · {fact}") for fact in list_endpoint_facts(endpoint)]
        why = [Content.assemble((f" · {run.plan.synthetic}", "$accent"))] if run.plan.synthetic else []
        self.query_one("#status", Display).show(join_fitting([head, name, *set_here, place, *why, *facts], width))

    @property
    def answering(self) -> bool:
        """Whether an answer is being generated."""
        return self._answering is not None and self._answering.is_running

    @on(Input.Submitted, "#say")
    def _on_line(self, message: Input.Submitted) -> None:
        line, talk, run = message.value.rstrip(), self.conversation, self._run
        if talk is None or run is None or not line.strip():
            return
        if self.answering:
            self.notify("an answer is under way; esc stops it", severity="warning")
            return
        message.input.clear()
        self._talk.anchor()
        if line.startswith("/"):
            self._obey(talk, line)
        elif not server_process.is_alive(run):
            self._add(f"✗ {run.id} has ended", "$error")
        else:
            self._add(Content.assemble(("› ", "bold $primary"), (line.strip(), "bold")))
            self._answering = self.answer(talk, line.strip())

    def _obey(self, talk: Conversation, line: str) -> None:
        reply = obey_command(talk, line)
        if reply is None:
            self.call_later(self.action_stop_or_leave)
            return
        if not talk.messages:
            self._talk.remove_children()
            self._add_cautions()
        self._add(reply, MUTED)
        self._show_status()

    @work(exclusive=True, group="chat")
    async def answer(self, talk: Conversation, text: str) -> None:
        """Send a line, and show the answer as it arrives."""
        self._texts, self._drawn = {part: _GrowingText() for part in Part}, {}
        self._add("◐ answering; esc stops", MUTED, "waiting")
        try:
            turn = await talk.ask(text, self._take)
        except asyncio.CancelledError:
            if talk is self.conversation:
                self._end("· stopped", MUTED)
            raise
        self._show_calls(turn)
        error = turn.request.error
        self._end(f"✗ {error}" if error else f"· {format_turn(turn)}", "$error" if error else MUTED)

    def _take(self, part: Part, text: str) -> None:
        self._texts[part].add(text)

    @while_open
    def draw(self) -> None:
        """Draw the pieces of the answer that arrived since the last redraw."""
        if growing := [part for part, text in self._texts.items() if text.has_more]:
            self._draw(growing, _GROWING)

    def _draw(self, parts: Iterable[Part], most: _Drawn) -> None:
        for part in parts:
            if part not in self._drawn:
                self._drawn[part] = self._add("", MUTED if part is Part.THINKING else "")
            text, is_thinking = self._texts[part].read_end(most), part is Part.THINKING
            self._drawn[part].update(Content.assemble((f"thinking: {text}", MUTED)) if is_thinking else Content(text))

    @while_open
    def _show_calls(self, turn: Turn) -> None:
        self.draw()
        for call in turn.tool_calls:
            self._add(Content.assemble(("tool call: ", "bold $accent"), format_tool_call(call)))

    @while_open
    def _end(self, text: str, style: str) -> None:
        self._draw([part for part, text in self._texts.items() if text.has_more or part in self._drawn], _WHOLE)
        self._talk.query(".waiting").remove()
        self._add(text, style, "measures")

    def _add_cautions(self) -> None:
        """Add the run's notices to the conversation: the status line has no room for them."""
        for caution in list_cautions(self._run) if self._run else ():
            self._add(caution, "$accent")

    def _add(self, text: str | Content, style: str = "", classes: str = "") -> Static:
        talk = self._talk
        content = text if isinstance(text, Content) else Content.assemble((text, style))
        part, waiting = Static(content, markup=False, classes=classes), talk.query(".waiting")
        talk.mount(part, before=waiting.first() if waiting and classes != "measures" else None)
        for old in list(talk.children)[:-_MOST_PARTS]:
            old.remove()
        return part

    def action_page(self, step: int) -> None:
        if step < 0:
            self._talk.scroll_page_up()
        else:
            self._talk.scroll_page_down()

    def action_stop(self) -> None:
        if self._answering and self.answering:
            self._answering.cancel()

    async def action_stop_or_leave(self) -> None:
        if self.answering:
            self.action_stop()
        else:
            await self.run_action("app.leave_chat")

    def action_clear(self) -> None:
        if self.conversation and not self.answering:
            self._obey(self.conversation, "/clear")
