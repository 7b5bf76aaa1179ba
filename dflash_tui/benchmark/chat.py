"""Chat with a server, stream its answers, and check the functions of a served pair."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from enum import StrEnum
from typing import Any

import msgspec

from dflash_tui.benchmark import client, suites
from dflash_tui.benchmark.prompts import Sampling
from dflash_tui.benchmark.server import Server
from dflash_tui.benchmark.sse import CompletionStream, Delta
from dflash_tui.benchmark.summary import LevelSummary
from dflash_tui.common.formatting import format_number, pluralize
from dflash_tui.events import RequestDone
from dflash_tui.planning.plan import Plan
from dflash_tui.runs.verification import CheckResult, FunctionalCheck

KIND = "Chat"
# Most characters of the conversation that each turn sends; older messages are dropped.
MOST_CHARACTERS = 1 << 18
# An answer may take a quarter of the context: an endless one would leave no room for the next turn.
_ANSWER_SHARE = 4
# Characters of an answer that are kept and shown; later ones are only counted.
LONGEST_ANSWER = 1 << 18
_COUNT = "Count from one to thirty in words, with commas."
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_NEEDLE = "heliotrope-4711"
_LINE = "Note {}: shelf {} holds {} jars of blue paint.\n"
# The long prompt: its share of the context, its most tokens, its tokens if the context is unknown, and the characters
# that a token has at least in most texts.
_SHARE, _LONGEST, _UNKNOWN, _PER_TOKEN = 0.7, 24_000, 4_000, 3
_TRIES = 6
# HTTP status codes of servers that reject a field of a request.
_REFUSED = {400, 404, 422, 501}
# Least share of the lowest published acceptance length: that one was measured with other prompts.
_ENOUGH = 0.85
_NO_STEPS = "the server reports no verification steps"


class Part(StrEnum):
    """The part of an answer that a piece belongs to."""

    THINKING = "thinking"
    ANSWER = "answer"


class ToolCall(msgspec.Struct, frozen=True):
    """A function call of the model; its arguments are the model's text, usually JSON."""

    name: str
    arguments: str


class Turn(msgspec.Struct, frozen=True):
    """One answer of a server: text, reasoning, tool calls and measures."""

    text: str
    thinking: str
    tool_calls: tuple[ToolCall, ...]
    request: RequestDone
    """Its measures and its error."""


PieceSink = Callable[[Part, str], None]


class AnswerStream(CompletionStream):
    """Measures an answer, and passes its pieces to `show` as they arrive."""

    def __init__(self, show: PieceSink | None = None) -> None:
        super().__init__(KIND)
        self._show = show
        self._shown_pieces = {part: list[str]() for part in Part}
        self._room = LONGEST_ANSWER

    def read_delta(self, delta: Delta) -> None:
        """Take one piece of the answer's text or reasoning."""
        self._take(Part.THINKING, delta.reasoning_content or delta.reasoning)
        self._take(Part.ANSWER, delta.content)

    def build_turn(self, done: RequestDone) -> Turn:
        """Return the answer as received so far."""
        text, thinking = ("".join(self._shown_pieces[part]) for part in (Part.ANSWER, Part.THINKING))
        calls = tuple(ToolCall(name, arguments) for name, arguments in self.calls.values())
        return Turn(text, thinking, calls, done)

    def _take(self, part: Part, text: str | None) -> None:
        if not text or self._room <= 0:
            return
        piece = text[: self._room]
        self._room -= len(text)
        self._shown_pieces[part].append(piece)
        if self._show:
            self._show(part, piece)


class Conversation:
    """The recent turns with one server, the system prompt and the temperature."""

    def __init__(self, server: Server, *, system: str = "", temperature: float | None = None) -> None:
        self.server, self.system, self.temperature = server, system, temperature
        self.messages: list[dict[str, str]] = []

    def clear(self) -> None:
        """Drop all turns; keep the system prompt."""
        self.messages = []

    async def ask(self, text: str, show: PieceSink | None = None) -> Turn:
        """Send `text` and return the answer; `show` receives its pieces as they arrive.

        A partial answer is kept in the conversation; without any text the turn is dropped.
        """
        stream = AnswerStream(show)
        self.messages.append({"role": "user", "content": _make_sendable(text)})
        self._forget_oldest()
        try:
            done = await client.send_conversation(self.server, self._build_body(), stream)
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
        body: dict[str, Any] = {"messages": [*system, *self.messages]}
        if context := self.server.facts.context:
            body["max_tokens"] = max(1, context // _ANSWER_SHARE)
        return body if self.temperature is None else body | {"temperature": self.temperature}

    def _forget_oldest(self) -> None:
        while len(self.messages) > 1 and sum(len(message["content"]) for message in self.messages) > MOST_CHARACTERS:
            del self.messages[: 2 if len(self.messages) > 2 else 1]


def _make_sendable(text: str) -> str:
    """Return `text` with ? for undecodable input bytes (surrogates), which JSON cannot hold."""
    return text.encode(errors="replace").decode()


def _passed(name: str, detail: str) -> FunctionalCheck:
    return FunctionalCheck(name, CheckResult.PASSED, detail)


def _failed(name: str, detail: str) -> FunctionalCheck:
    return FunctionalCheck(name, CheckResult.FAILED, detail)


def skip_check(name: str, why: str) -> FunctionalCheck:
    """Return a skipped check."""
    return FunctionalCheck(name, CheckResult.SKIPPED, why)


async def check_server(server: Server) -> AsyncIterator[FunctionalCheck]:
    """Yield each check of a server as it ends; stop after the first if the server does not answer."""
    turn = await _ask(server, _COUNT, max_tokens=96)
    if turn.request.error:
        yield _failed("answers", turn.request.error)
        return
    yield _passed("answers", f"{pluralize(turn.request.tokens, 'token')} in {turn.request.total:.1f} s")
    if turn.request.chunk_p50 is None:  # retry: a busy client or server may deliver a short answer in one piece
        turn = await _ask(server, _COUNT, max_tokens=96)
    yield _judge_stream(turn.request)
    checks: tuple[Callable[[Server], Awaitable[FunctionalCheck]], ...]
    checks = (_check_tool, _check_reasoning, _check_long_context, _check_acceptance)
    for check in checks:
        yield await check(server)


async def _ask(server: Server, text: str, **more: Any) -> Turn:
    """Send a greedy request outside of any conversation."""
    stream = AnswerStream()
    body: Mapping[str, Any] = {
        "messages": [{"role": "user", "content": text}],
        "temperature": 0.0,
        **more,
    }
    return stream.build_turn(await client.send_conversation(server, body, stream))


def _judge_stream(done: RequestDone) -> FunctionalCheck:
    if done.error:
        return _failed("streams", done.error)
    if done.chunk_p50 is None:
        return _failed("streams", "the whole answer came in one chunk")
    return _passed("streams", f"a chunk every {1000 * done.chunk_p50:.0f} ms, median")


async def _check_tool(server: Server) -> FunctionalCheck:
    name = "tool call"
    if why := _why_not(server, "tool-call-parser", "tool parser"):
        return skip_check(name, why)
    ask = "What is the weather in Paris? Call the function."
    turn = await _ask(server, ask, tools=[_TOOL], tool_choice="auto", max_tokens=1024)
    if server.run is None and turn.request.status in _REFUSED:
        return skip_check(name, f"the server rejects tools: {turn.request.error}")
    if turn.request.error:
        return _failed(name, turn.request.error)
    if len(turn.tool_calls) != 1:
        return _failed(name, f"{pluralize(len(turn.tool_calls), 'call')} instead of one: {turn.text[:80]}")
    call = turn.tool_calls[0]
    try:
        words = msgspec.json.decode(call.arguments)
    except (msgspec.MsgspecError, RecursionError):
        words = None
    good = call.name == "get_weather" and isinstance(words, dict) and isinstance(words.get("city"), str)
    called = f"{call.name}({call.arguments[:80]})"
    return _passed(name, called) if good else _failed(name, f"expected get_weather with a city, not {called}")


async def _check_reasoning(server: Server) -> FunctionalCheck:
    name = "reasoning"
    if why := _why_not(server, "reasoning-parser", "reasoning parser"):
        return skip_check(name, why)
    thinking = {"chat_template_kwargs": {"enable_thinking": True}} if server.facts.takes_extras else {}
    turn = await _ask(server, "What is 17 times 23?", max_tokens=2048, **thinking)
    if turn.request.error:
        return _failed(name, turn.request.error)
    if "<think>" in turn.text or "</think>" in turn.text:
        return _failed(name, "the answer contains thinking tags")
    if not turn.thinking:
        unmarked = "no part of the answer is marked as thinking"
        return _failed(name, unmarked) if server.run else skip_check(name, unmarked)
    if turn.text:
        return _passed(name, f"{len(turn.thinking)} characters of thinking beside {len(turn.text)} of the answer")
    return _failed(name, f"only thinking, no answer; finish reason {turn.request.finish}")


def _why_not(server: Server, flag: str, what: str) -> str:
    """Return why a check that needs a parser is skipped; empty if it runs."""
    if server.run is None:
        return ""
    plan = server.run.plan
    if plan.find_flag(flag) is None:
        return f"the launch has no {what}"
    return f"{plan.synthetic}: such a model follows no instructions" if plan.synthetic else ""


async def _check_long_context(server: Server) -> FunctionalCheck:
    """Ask for a word hidden in a long prompt; halve the prompt while the server rejects it (HTTP 400)."""
    name, context = "long context", server.facts.context
    tokens = min(_SHARE * context, _LONGEST) if context else _UNKNOWN
    characters = round(tokens * _PER_TOKEN)
    for _ in range(_TRIES):
        turn = await _ask(server, _hide_needle(characters), max_tokens=max(8, round(tokens / 16)))
        if turn.request.status != 400:
            break
        characters //= 2
    if turn.request.error:
        return _failed(name, turn.request.error)
    size, unit = (counted, "token") if (counted := turn.request.prompt_tokens) else (characters, "character")
    place = f"a prompt of {pluralize(size, unit)}"
    if server.synthetic:
        return _passed(name, f"{place} was answered; its content is not judged: {server.synthetic}")
    if _NEEDLE in f"{turn.thinking}{turn.text}".lower():
        return _passed(name, f"found in {place}")
    return _failed(name, f"not found in {place}: {turn.text[:80] or 'no answer'}")


def _hide_needle(characters: int) -> str:
    lines = [_LINE.format(n, n % 7, n * 13 % 97) for n in range(1, max(2, characters // len(_LINE)))]
    lines.insert(2 * len(lines) // 5, f"The code word is {_NEEDLE}.\n")
    return f"{''.join(lines)}\nWhat is the code word in the notes? Answer with the code word alone."


async def _check_acceptance(server: Server) -> FunctionalCheck:
    """Send the five prompt kinds and compare the acceptance length with the published one."""
    name, plan = "acceptance", server.run.plan if server.run else None
    if plan and not plan.num_speculative_tokens:
        return skip_check(name, "speculation is off")
    suite, done = suites.load_suite("quick"), list[RequestDone]()
    before = await client.read_counters(server)
    longest, scale = max(prompt.max_tokens for prompt in suite.prompts), plan.bench_scale if plan else 1.0
    scale = min(scale, server.facts.context / 2 / longest) if server.facts.context else scale
    sampling = Sampling(scale, temperature=None, fixed=False, seeded=False)
    async with aclosing(client.send_suite(server, suite, sampling)) as requests:
        async for request in requests:
            done.append(request)
    measured = LevelSummary.from_requests(server, done, before, await client.read_counters(server), suite)
    if measured.failed:
        return _failed(name, next(request.error for request in done if request.error))
    if plan is None:
        known = measured.acceptance_length
        return _passed(name, f"AL {known:.2f}") if known else skip_check(name, _NO_STEPS)
    return _judge_acceptance(plan, measured.acceptance_length)


def _judge_acceptance(plan: Plan, length: float | None) -> FunctionalCheck:
    name, measured = "acceptance", f"AL {format_number(length, 2)}"
    band = next((band for band in plan.expected if band.acceptance_length), None)
    if length is None:
        return _failed(name, _NO_STEPS)
    if band is None or band.acceptance_length is None or plan.synthetic:
        drafted = length > 1
        detail = f"{measured}, none published{f' ({plan.synthetic})' if plan.synthetic else ''}"
        return _passed(name, detail) if drafted else _failed(name, f"{detail}: no draft is accepted")
    low, high = band.acceptance_length[0], band.acceptance_length[-1]
    published = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    detail = f"{measured}, published {published}{f' for {band.set_up}' if band.set_up else ''}"
    if length >= _ENOUGH * low:
        return _passed(name, detail)
    return skip_check(name, f"{detail}: other set-up") if band.set_up else _failed(name, f"{detail}: too low")
