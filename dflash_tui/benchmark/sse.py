"""Measure one chat completion from its server-sent events, and keep its answer for comparison."""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any

import msgspec

from dflash_tui.common.sanitizer import join_clean_lines
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.events import MOST, MOST_POSITIONS, RequestDone, Whole

MOST_CHARACTERS = 1 << 14
MOST_TOKENS = 1 << 14
# Most recorded arrivals of an answer, the last one not counted.
MOST_MARKS = 1 << 12
ArrivalMark = tuple[Whole, Whole]
"""Milliseconds since the request was sent, and the number of tokens that had arrived by then."""
_QUOTE_LIMIT = 300
_MOST_TOOL_CALLS = 16
_DONE = "[DONE]"
# Fields of server-sent events that errors never quote.
_FIELDS = ("", "data", "event", "id", "retry")
# Seconds between two chunks. No server reaches 2,000 steps/s: chunks that are closer were buffered while the client had
# no CPU time, and their times say nothing about the server.
_LEAST_GAP = 5e-4
_Count = Annotated[int, msgspec.Meta(ge=0, le=int(MOST))]
_Tokens = list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]]


class Function(msgspec.Struct):
    """A piece of a called function."""

    name: str | None = None
    arguments: str | None = None


class CallPiece(msgspec.Struct):
    """A piece of a tool call."""

    index: int | None = None
    function: Function | None = None


class Delta(msgspec.Struct):
    """One piece of an answer."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallPiece] | None = None

    @property
    def texts(self) -> tuple[str | None, ...]:
        """Its texts: the content, the reasoning, then the names and arguments of tool calls."""
        functions = [call.function for call in self.tool_calls or () if call.function]
        words = [word for function in functions for word in (function.name, function.arguments)]
        return self.content, self.reasoning_content, self.reasoning, *words


class _Choice(msgspec.Struct):
    delta: Delta | None = None
    finish_reason: str | None = None
    token_ids: _Tokens | None = None


class _Usage(msgspec.Struct):
    completion_tokens: _Count | None = None
    prompt_tokens: _Count | None = None


class _Speculation(msgspec.Struct):
    """The fields that `--per-request-spec-decode-metrics` (vLLM 0.29 and later) adds to an event."""

    num_spec_steps: _Count
    num_accepted_draft_tokens: _Count


class _Timings(msgspec.Struct):
    """The counts in llama.cpp's last event: answer tokens, drafted tokens and accepted ones."""

    predicted_n: _Count
    draft_n: _Count = 0
    draft_n_accepted: _Count = 0


class _Metrics(msgspec.Struct):
    speculative_decoding: _Speculation | None = None


class _Chunk(msgspec.Struct):
    """The fields that are read from one server-sent event."""

    error: Any = None
    usage: _Usage | None = None
    choices: tuple[_Choice, ...] | None = None
    metrics: Any = None
    timings: Any = None
    model: Any = None
    prompt_token_ids: _Tokens | None = None


register_type(_Metrics)
register_type(_Timings)
register_type(_Chunk)
_NOTHING = _Chunk()


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The text of one answer, reasoning included, and its tokens."""

    text: str = ""
    """Its first `MOST_CHARACTERS`."""
    tokens: tuple[int, ...] = ()
    """Its token ids; empty unless the server returned all of them."""
    cut: bool = False
    """Whether `text` is cut off."""
    prompt: tuple[int, ...] = ()
    """The prompt's token ids; empty if `tokens` is, or if the server did not return them."""


class Arrivals:
    """Arrival times of an answer's tokens, and the token count at each.

    A token may have no text, so the server is asked for a count in every chunk (`continuous_usage_stats`). Without
    counts, every chunk that seems to carry tokens is an arrival.
    """

    def __init__(self) -> None:
        self.times: list[float] = []
        self.counts: list[int] = []
        """The token count at each time; empty if the server does not count in every chunk."""
        self._counting: bool | None = None

    def take(self, count: int | None, *, carries: bool) -> None:
        """Take a chunk: the server's count so far, and whether the chunk seems to carry tokens."""
        if self._counting is None:
            self._counting = count is not None
        if not self._counting:
            self.times += [time.perf_counter()] if carries else []
        elif (count or 0) > (self.counts[-1] if self.counts else 0):
            self.times.append(time.perf_counter())
            self.counts.append(count or 0)

    @property
    def gaps(self) -> list[float]:
        """The seconds between consecutive arrivals."""
        return [later - earlier for earlier, later in pairwise(self.times)]

    def count(self, since: float, until: float, tokens: int) -> int:
        """Return how many tokens arrived between two times; without counts, `tokens` are spread evenly."""
        counts = self.counts
        if not counts:
            all_ = max(tokens, len(self.times))
            counts = [round(all_ * place / len(self.times)) for place in range(1, len(self.times) + 1)]
        by_end, before = bisect_right(self.times, until), bisect_left(self.times, since)
        return (counts[by_end - 1] if by_end else 0) - (counts[before - 1] if before else 0)

    def list_marks(self, began: float) -> tuple[ArrivalMark, ...]:
        """Return the arrivals since `began`, at most `MOST_MARKS` and the last; none without counts."""
        marks = tuple(
            (max(0, round(1000 * (at - began))), count) for at, count in zip(self.times, self.counts, strict=False)
        )
        step = -(-len(marks) // MOST_MARKS) or 1
        return marks if step == 1 else (*marks[:-1:step], marks[-1])

    def measure_speed(self, tokens: int) -> float | None:
        """Return tok/s after the first arrival; None if it was the only one, or all were read at once."""
        if not self.times:
            return None
        first, last = (self.counts[0], self.counts[-1]) if self.counts else (1, tokens)
        span = self.times[-1] - self.times[0]
        return (last - first) / span if last > first and span > _LEAST_GAP * (len(self.times) - 1) else None


class CompletionStream:
    """Collects the server-sent events of one completion: request `number` of the prompt `kind`."""

    def __init__(self, kind: str, number: int = 0, streams: int = 1, rate: float = 0.0) -> None:
        self.kind, self._number, self.streams, self._rate = kind, number, streams, rate
        self._began = time.perf_counter()
        self.arrivals = Arrivals()
        self.tokens = 0
        """The answer's token count so far, as the server reports it."""
        self._prompt_tokens = 0
        self._speculation: _Speculation | None = None
        self._finish = ""
        self._whole = hashlib.sha256()
        self._ended = 0.0
        self._text, self._length = "", 0
        self._token_ids: list[int] = []
        self._prompt_ids: list[int] = []
        self._other = ""
        self.content: list[str] | None = None
        """The pieces of the answer without reasoning; None if they are not collected."""
        self.error = ""
        self.status: int | None = None
        self.model = ""
        """The model that the answer names first; empty if it names none."""
        self.counts_chunks = False
        """Whether chunks with text are counted, because the server does not count tokens."""
        self.pieces: list[str] | None = None
        """The pieces of the answer, reasoning included; None if they are not collected."""
        self.is_counted = False
        """Whether the server has counted the tokens."""
        self._text_chunks = 0
        self.calls: dict[int, list[str]] = {}
        """The name and the arguments of each tool call so far."""
        self.tools: Sequence[Mapping[str, Any]] = ()
        """The tools that were offered, which its calls are checked against."""

    def begin(self) -> None:
        """Start the clock: the request is sent now."""
        self._began = time.perf_counter()

    @property
    def is_complete(self) -> bool:
        """Whether [DONE] or the end of the response was reached."""
        return self._ended > 0

    def take(self, line: str) -> None:
        """Take one line of the response."""
        field, _, data = line.removeprefix("\ufeff").partition(":")  # a byte order mark may begin a stream
        data = data.strip()
        if field != "data":
            if field not in _FIELDS:
                self._remember(line)
        elif data == _DONE:
            self._ended = time.perf_counter()
        elif data.startswith("{"):
            self._take_chunk(data)
        else:
            self._remember(line)

    def _take_chunk(self, data: str) -> None:
        try:
            chunk = msgspec.json.decode(data, type=_Chunk)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            self.error = self.error or f"not JSON: {quote_server_text(data)}"
            return
        if chunk == _NOTHING:
            self._remember(data)
        if isinstance(chunk.model, str) and not self.model:
            self.model = quote_server_text(chunk.model)
        if error := chunk.error:
            self.error = quote_server_text(str(error.get("message", error) if isinstance(error, dict) else error))
        count = chunk.usage.completion_tokens if chunk.usage else None
        if chunk.usage:
            self.tokens, self._prompt_tokens = count or 0, chunk.usage.prompt_tokens or 0
            self.is_counted = count is not None
        self._speculation = _read_speculation(chunk.metrics) or self._speculation
        if chunk.timings is not None:
            self._take_timings(chunk.timings)
        if chunk.prompt_token_ids:
            self._prompt_ids = chunk.prompt_token_ids[: MOST_TOKENS + 1]
        if chunk.choices:
            choice = chunk.choices[0]  # only one is requested
            self._add(choice)
            self._finish = choice.finish_reason or self._finish
            self.arrivals.take(count, carries=_carries_token(choice))

    def _take_timings(self, timings: object) -> None:
        """Take llama.cpp's counts: each step after the first token adds one token and the accepted drafts."""
        try:
            told = msgspec.convert(timings, _Timings)
        except msgspec.ValidationError:
            return
        self.tokens, self.is_counted = self.tokens or told.predicted_n, True
        steps = told.predicted_n - 1 - told.draft_n_accepted
        if told.draft_n and steps > 0:
            self._speculation = _Speculation(steps, told.draft_n_accepted)

    def _remember(self, line: str) -> None:
        """Keep the start of text outside an answer: it may say why there is no answer."""
        if len(self._other) < _QUOTE_LIMIT:
            self._other = f"{self._other} {quote_server_text(line)}".strip()

    def _add(self, choice: _Choice) -> None:
        delta = choice.delta or Delta()
        self.read_delta(delta)
        for call in delta.tool_calls or ():
            self._take_call(call)
        text = "".join(filter(None, delta.texts))
        if self.content is not None and delta.content:
            self.content.append(delta.content)
        if self.pieces is not None:
            self.pieces.append(text)
        self._text_chunks += bool(text or delta.tool_calls)
        self._text += text[: MOST_CHARACTERS - len(self._text)]
        self._length += len(text)
        if choice.token_ids:
            self._token_ids += choice.token_ids[: MOST_TOKENS + 1 - len(self._token_ids)]
        self._whole.update(text.encode(errors="replace"))

    def read_delta(self, delta: Delta) -> None:
        """Take one piece of the answer, for subclasses that read it."""

    def _take_call(self, call: CallPiece) -> None:
        """Take a piece of a tool call: the name comes first, the arguments in pieces."""
        place = len(self.calls) if call.index is None else call.index
        if call.function is None or (place not in self.calls and len(self.calls) >= _MOST_TOOL_CALLS):
            return
        words = self.calls.setdefault(place, ["", ""])
        for number, piece in enumerate((call.function.name, call.function.arguments)):
            words[number] += (piece or "")[: MOST_CHARACTERS - len(words[number])]

    def end(self) -> None:
        """Take the end of the response; set `error` if an answer began but was not marked as complete."""
        began = self.tokens or self.arrivals.times
        if began and not (self.error or self.is_complete or self._finish):
            self.error = "the answer ended without [DONE] or a finish reason"
        self._ended = self._ended or time.perf_counter()
        if self.counts_chunks:
            self.tokens = self.tokens or self._text_chunks

    def result(self) -> RequestDone:
        """Return the measures; tokens come from `usage`, because one chunk may carry several."""
        tokens, now = self.tokens, time.perf_counter()
        ended = self._ended or now
        arrivals, speculation, gaps = self.arrivals, self._speculation, self.arrivals.gaps
        whole_calls = () if self._finish == "length" else self.calls.values()  # the last one may be cut
        if not self.error and not tokens:
            quote = quote_server_text(self._other)
            self.error = f"the answer holds no token: {quote}" if quote else "the answer holds no token"
        if not self.error and arrivals.counts and arrivals.counts[-1] > tokens:
            self.error = f"the server counts {arrivals.counts[-1]} tokens while streaming, but {tokens} in the end"
        return RequestDone(
            at=time.time() - (now - ended),
            kind=self.kind,
            tokens=tokens,
            prompt_tokens=self._prompt_tokens,
            ttft=arrivals.times[0] - self._began if arrivals.times else None,
            total=ended - self._began,
            decode_tok_s=arrivals.measure_speed(tokens),
            finish=quote_server_text(self._finish),
            error=self.error,
            steps=speculation.num_spec_steps if speculation else None,
            accepted=speculation.num_accepted_draft_tokens if speculation else None,
            chunk_p50=statistics.median(gaps) if gaps else None,
            chunk_p95=_p95(gaps) if gaps else None,
            streams=self.streams,
            rate=self._rate,
            round=self._number,
            digests=(self._whole.hexdigest(),) if self._length else (),
            status=self.status,
            calls=len(self.calls),
            broken_calls=sum(not _parses(name, words, self.tools) for name, words in whole_calls),
        )

    def count_tokens(self, since: float = 0.0, until: float = math.inf) -> int:
        """Return how many tokens arrived between two times of `time.perf_counter`."""
        return self.arrivals.count(since, until, self.tokens)

    def build_answer(self) -> Answer:
        """Return the answer, with token ids if the server returned as many as it counted."""
        cut = self._length > MOST_CHARACTERS
        names_all = not cut and len(self._token_ids) == self.tokens <= MOST_TOKENS
        prompt = self._prompt_ids if names_all and len(self._prompt_ids) <= MOST_TOKENS else ()
        return Answer(self._text, tuple(self._token_ids) if names_all else (), cut, tuple(prompt))

    def list_marks(self) -> tuple[ArrivalMark, ...]:
        """Return the answer's arrivals since the request was sent."""
        return self.arrivals.list_marks(self._began)


def _parses(name: str, arguments: str, tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a tool call names a function of `tools`, if any, with all required arguments as JSON."""
    try:
        given = msgspec.json.decode(arguments)
    except (msgspec.MsgspecError, RecursionError):
        return False
    offered = [function for tool in tools if (function := tool.get("function", {})).get("name") == name]
    required = offered[0].get("parameters", {}).get("required", ()) if offered else ()
    return isinstance(given, dict) and bool(offered or not tools) and all(argument in given for argument in required)


def _carries_token(choice: _Choice) -> bool:
    """Whether a chunk seems to carry tokens: text, a tool call, token ids, or an empty text without a role."""
    delta = choice.delta or Delta()
    return (
        any(delta.texts)
        or bool(delta.tool_calls)
        or bool(choice.token_ids)
        or (delta.role is None and any(text == "" for text in delta.texts))
    )


def quote_server_text(text: str) -> str:
    """Return the start of a server's text in one line."""
    return join_clean_lines(text)[:_QUOTE_LIMIT]


def _read_speculation(metrics: object) -> _Speculation | None:
    """Return the request's steps; the format is experimental in vLLM, so an unknown one is ignored."""
    try:
        speculation = msgspec.convert(metrics, _Metrics).speculative_decoding
    except msgspec.ValidationError:
        return None
    if speculation and speculation.num_accepted_draft_tokens > speculation.num_spec_steps * MOST_POSITIONS:
        return None  # no step drafts that many
    return speculation


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]
