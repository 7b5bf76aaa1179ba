"""A conversation with a server: what is said, the answer as it streams, thinking and tool calls apart, all bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec

from dflash_tui.benchmark import client
from dflash_tui.benchmark.sse import CallPiece, CompletionStream, Delta
from dflash_tui.events import RequestDone
from dflash_tui.runs.run import Run

KIND = "Chat"
# What is sent again with every turn: so many characters, the newest.
MOST_CHARACTERS = 1 << 18
# An answer takes a quarter of the context at most: one without an end would leave no room for the next line.
_ANSWER_SHARE = 4
# Characters of an answer that are kept and shown; what comes after is counted only.
LONGEST_ANSWER = 1 << 18
_MOST_TOOL_CALLS = 16


class Part(StrEnum):
    """What a piece of an answer belongs to."""

    THINKING = "thinking"
    ANSWER = "answer"


class ToolCall(msgspec.Struct, frozen=True):
    """A function that the model asks for; its arguments are JSON if the model wrote such."""

    name: str
    arguments: str


class Turn(msgspec.Struct, frozen=True):
    """What a server has answered: text, thoughts and tool calls, and how long it took."""

    text: str
    thinking: str
    tool_calls: tuple[ToolCall, ...]
    request: RequestDone
    """Its measures, and why it failed."""


PieceSink = Callable[[Part, str], None]


class AnswerStream(CompletionStream):
    """Measures an answer, and gives its pieces to `show` as they come."""

    def __init__(self, show: PieceSink | None = None) -> None:
        super().__init__(KIND)
        self._show = show
        self._shown_pieces = {part: list[str]() for part in Part}
        self._room = LONGEST_ANSWER
        self._calls: dict[int, list[str]] = {}

    def read_delta(self, delta: Delta) -> None:
        """Take one piece: text of the answer, of its thoughts, or of a tool call."""
        self._take(Part.THINKING, delta.reasoning_content or delta.reasoning)
        self._take(Part.ANSWER, delta.content)
        for call in delta.tool_calls or ():
            self._take_call(call)

    def build_turn(self, done: RequestDone) -> Turn:
        """Return the whole answer, once all of it was taken."""
        text, thinking = ("".join(self._shown_pieces[part]) for part in (Part.ANSWER, Part.THINKING))
        calls = tuple(ToolCall(name, arguments) for name, arguments in self._calls.values())
        return Turn(text, thinking, calls, done)

    def _take(self, part: Part, text: str | None) -> None:
        if not text or self._room <= 0:
            return
        piece = text[: self._room]
        self._room -= len(text)
        self._shown_pieces[part].append(piece)
        if self._show:
            self._show(part, piece)

    def _take_call(self, call: CallPiece) -> None:
        """Take a piece of a tool call: its name comes first, its arguments bit by bit."""
        place = len(self._calls) if call.index is None else call.index
        if call.function is None or (place not in self._calls and len(self._calls) >= _MOST_TOOL_CALLS):
            return
        words = self._calls.setdefault(place, ["", ""])
        for number, piece in enumerate((call.function.name, call.function.arguments)):
            words[number] += (piece or "")[: max(0, self._room)]
            self._room -= len(piece or "")


class Conversation:
    """The turns so far with one server, of which the oldest are forgotten, and how it is to answer."""

    def __init__(self, run: Run, *, system: str = "", temperature: float | None = None) -> None:
        self.run, self.system, self.temperature = run, system, temperature
        self.messages: list[dict[str, str]] = []

    def clear(self) -> None:
        """Forget all turns but not the system prompt."""
        self.messages = []

    async def ask(self, text: str, show: PieceSink | None = None) -> Turn:
        """Send `text` and return the answer, of which `show` gets the pieces as they come.

        Of one that fails or is cancelled the answer stays as far as it came; without any the turn is forgotten.
        """
        run, stream = self.run, AnswerStream(show)
        self.messages.append({"role": "user", "content": _make_sendable(text)})
        self._forget_oldest()
        try:
            done = await client.send_conversation(run.url, self._build_body(), stream, key=run.api_key)
        except asyncio.CancelledError:
            self._end_turn(stream.build_turn(stream.result()))
            raise
        turn = stream.build_turn(done)
        self._end_turn(turn)
        return turn

    def _end_turn(self, turn: Turn) -> None:
        if turn.text:
            self.messages.append({"role": "assistant", "content": turn.text})
        else:
            self.messages.pop()

    def _build_body(self) -> dict[str, Any]:
        system = [{"role": "system", "content": _make_sendable(self.system)}] if self.system else []
        body: dict[str, Any] = {"model": self.run.plan.served_name, "messages": [*system, *self.messages]}
        if context := self.run.plan.context:
            body["max_tokens"] = max(1, context // _ANSWER_SHARE)
        return body if self.temperature is None else body | {"temperature": self.temperature}

    def _forget_oldest(self) -> None:
        while len(self.messages) > 1 and sum(len(message["content"]) for message in self.messages) > MOST_CHARACTERS:
            del self.messages[: 2 if len(self.messages) > 2 else 1]


def _make_sendable(text: str) -> str:
    """Return `text` with ? for bytes that were no characters where it was typed or piped, which JSON cannot hold."""
    return text.encode(errors="replace").decode()
