"""Measures one chat completion from its server-sent events, whatever a server may send."""

from __future__ import annotations

import hashlib
import math
import re
import statistics
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import msgspec

from dflash_tui.common.sanitizer import clean_json_value, join_clean_lines
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.events import MOST, MOST_POSITIONS, RequestDone, Whole

_SAID_LIMIT = 300
_DONE = "[DONE]"
# Fields of an event beside its data, which nobody reads here.
_FIELDS = ("", "data", "event", "id", "retry")
# Of an answer, whose beginnings are compared.
_BEGINNINGS = (40, 200)
# Seconds between two chunks. No server takes 2000 steps/s: chunks that come closer had waited for a client that was
# kept from its processor, and their times say nothing of the server.
_LEAST_GAP = 5e-4
# Halves of a character that JSON's grammar allows and `json.dumps` writes, but that are no text; pairs are passed over,
# and so are backslashes that are quoted themselves.
_HALVES = re.compile(
    r"(?<!\\)((?:\\\\)*)\\u(?:(d[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2})|d[89a-f][0-9a-f]{2})", re.IGNORECASE
)
_TEXTS = ("content", "reasoning_content", "reasoning")


class _Choice(msgspec.Struct):
    delta: dict[str, Any] | None = None
    finish_reason: str | None = None
    token_ids: Any = None


class _Speculation(msgspec.Struct):
    """What `--per-request-spec-decode-metrics` (vLLM 0.29 and later) puts beside the usage."""

    num_spec_steps: int
    num_accepted_draft_tokens: int


class _Metrics(msgspec.Struct):
    speculative_decoding: _Speculation | None = None


register_type(_Metrics)


class _Chunk(msgspec.Struct):
    """What is read of one server-sent event."""

    error: Any = None
    usage: dict[str, Any] | None = None
    choices: tuple[_Choice, ...] | None = None
    metrics: Any = None
    prompt_token_ids: Any = None


register_type(_Chunk)
_NOTHING = _Chunk()


class Arrivals:
    """When the tokens of an answer arrived, and how many there were by then.

    A token may have no text: a special one, or the first bytes of a character. So a server is asked to count in every
    chunk (`continuous_usage_stats`), and tokens arrived when its count grew. Where it does not count, some arrived with
    each chunk that has a text or an empty one.
    """

    def __init__(self) -> None:
        self.times: list[float] = []
        self.counts: list[int] = []
        """How many there were at each time; empty where the server does not count in every chunk."""
        self._counting: bool | None = None

    def take(self, count: object, *, carries: bool) -> None:
        """Take a chunk: what the server says is its count until then, and whether the chunk looks as if it had some."""
        if self._counting is None:
            self._counting = type(count) is int
        if not self._counting:
            self.times += [time.perf_counter()] if carries else []
        elif (tokens := _count(count)) > (self.counts[-1] if self.counts else 0):
            self.times.append(time.perf_counter())
            self.counts.append(tokens)

    @property
    def gaps(self) -> list[float]:
        """The seconds between two arrivals."""
        return [later - earlier for earlier, later in pairwise(self.times)]

    def count(self, since: float, until: float, tokens: int) -> int:
        """Return how many tokens arrived in a time.

        Args:
            since: its beginning.
            until: its end.
            tokens: how many the answer has, which a server that does not count sends evenly; 0 where nobody knows yet.
        """
        counts = self.counts
        if not counts:
            all_ = max(tokens, len(self.times))
            counts = [round(all_ * place / len(self.times)) for place in range(1, len(self.times) + 1)]
        by_end, before = bisect_right(self.times, until), bisect_left(self.times, since)
        return (counts[by_end - 1] if by_end else 0) - (counts[before - 1] if before else 0)

    def list_marks(self, began: float) -> tuple[ArrivalMark, ...]:
        """Return when how many tokens had arrived, `MOST_MARKS` places at most; none where nobody counted."""
        marks = tuple(
            (max(0, round(1000 * (at - began))), count) for at, count in zip(self.times, self.counts, strict=False)
        )
        step = -(-len(marks) // MOST_MARKS) or 1
        return marks if step == 1 else (*marks[:-1:step], marks[-1])

    def measure_speed(self, tokens: int) -> float | None:
        """Return the tokens per second after the first arrival; None where that was all, or all were read at once.

        Args:
            tokens: how many the answer has, for a server that does not count in every chunk.
        """
        if not self.times:
            return None
        first, last = (self.counts[0], self.counts[-1]) if self.counts else (1, tokens)
        span = self.times[-1] - self.times[0]
        return (last - first) / span if last > first and span > _LEAST_GAP * (len(self.times) - 1) else None


class CompletionStream:
    """Adds up the server-sent events of one completion, which is asked for now: the prompt `kind`, its `number`-th."""

    def __init__(self, kind: str, number: int = 0, streams: int = 1, rate: float = 0.0) -> None:
        self.kind, self._number, self.streams, self._rate = kind, number, streams, rate
        self._began = time.perf_counter()
        self.arrivals = Arrivals()
        self.tokens = 0
        """How many the answer has until now, by the server's count."""
        self._prompt_tokens = 0
        self._speculation: _Speculation | None = None
        self._finish = ""
        self._beginning, self._whole = "", hashlib.sha256()
        self._ended = 0.0
        self._buffer = AnswerBuffer()
        self._other = ""
        self.content: list[str] | None = None
        """The pieces of the answer without its thoughts; None unless somebody wants them."""
        self.error = ""
        self.status: int | None = None

    def begin(self) -> None:
        """Start the clock: the request is sent now."""
        self._began = time.perf_counter()

    @property
    def is_complete(self) -> bool:
        """Whether the server has said that nothing follows."""
        return self._ended > 0

    def take(self, line: str) -> None:
        """Take one line of the response."""
        field, _, data = line.removeprefix("\ufeff").partition(":")  # a mark of UTF-8 may begin a stream
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
            chunk = _decode(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            self.error = self.error or f"not JSON: {quote_server_text(data)}"
            return
        if chunk == _NOTHING:
            self._remember(data)
        if error := chunk.error:
            self.error = quote_server_text(str(error.get("message", error) if isinstance(error, dict) else error))
        if chunk.usage:
            self.tokens = _count(chunk.usage.get("completion_tokens"))
            self._prompt_tokens = _count(chunk.usage.get("prompt_tokens"))
        self._speculation = _speculation(chunk.metrics) or self._speculation
        if chunk.prompt_token_ids:
            self._buffer.set_prompt(chunk.prompt_token_ids)
        if chunk.choices:
            choice = chunk.choices[0]  # no more than one is asked for
            self._add(choice.delta or {}, choice.token_ids)
            self._finish = choice.finish_reason or self._finish
            self.arrivals.take((chunk.usage or {}).get("completion_tokens"), carries=_carries_token(choice))

    def _remember(self, line: str) -> None:
        """Keep the start of what is no part of an answer: it may say why there is none."""
        if len(self._other) < _SAID_LIMIT:
            self._other = f"{self._other} {quote_server_text(line)}".strip()

    def _add(self, delta: dict[str, Any], tokens: object) -> None:
        self.read_delta(delta)
        text = "".join(piece for piece in map(delta.get, _TEXTS) if isinstance(piece, str))
        if self.content is not None and isinstance(piece := delta.get("content"), str):
            self.content.append(piece)
        self._buffer.add(text, tokens if _is_all_text(delta) else None)
        self._whole.update(text.encode(errors="replace"))
        self._beginning += text[: max(_BEGINNINGS) - len(self._beginning)]

    def read_delta(self, delta: dict[str, Any]) -> None:
        """Take one piece of the answer as the server has it; what only measures does not read it."""

    def end(self) -> None:
        """Take the end of the response: an answer that began has to have said that it is whole."""
        began = self.tokens or self.arrivals.times
        if began and not (self.error or self.is_complete or self._finish):
            self.error = "the answer ended without [DONE] or a finish reason"

    def result(self) -> RequestDone:
        """Return the measures; tokens come from `usage`, since one chunk may carry several."""
        tokens, now = self.tokens, time.perf_counter()
        ended = self._ended or now
        arrivals, speculation, gaps = self.arrivals, self._speculation, self.arrivals.gaps
        if not self.error and not tokens:
            quote = quote_server_text(self._other)
            self.error = f"the answer holds no token: {quote}" if quote else "the answer holds no token"
        if not self.error and arrivals.counts and arrivals.counts[-1] > tokens:
            self.error = f"the server counts {arrivals.counts[-1]} tokens on the way and {tokens} in the end"
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
            steps=_count(speculation.num_spec_steps) if speculation else None,
            accepted=_count(speculation.num_accepted_draft_tokens) if speculation else None,
            chunk_p50=statistics.median(gaps) if gaps else None,
            chunk_p95=_p95(gaps) if gaps else None,
            streams=self.streams,
            rate=self._rate,
            round=self._number,
            digests=self._digests() if self._beginning else (),
            status=self.status,
        )

    def count_tokens(self, since: float = 0.0, until: float = math.inf) -> int:
        """Return how many tokens arrived in a time, on the clock of `time.perf_counter`."""
        return self.arrivals.count(since, until, self.tokens)

    def build_answer(self) -> Answer:
        """Return the answer itself, as it may be kept."""
        return self._buffer.to_answer(self.tokens)

    def list_marks(self) -> tuple[ArrivalMark, ...]:
        """Return when how many tokens of the answer had arrived, since it was asked for."""
        return self.arrivals.list_marks(self._began)

    def _digests(self) -> tuple[str, ...]:
        beginnings = (self._beginning[:length].encode(errors="replace") for length in _BEGINNINGS)
        return (*(hashlib.sha256(beginning).hexdigest() for beginning in beginnings), self._whole.hexdigest())


def _decode(data: str) -> _Chunk:
    """Return an event, with U+FFFD for halves of characters.

    Raises:
        msgspec.MsgspecError: it is not JSON, or of another form.
        RecursionError: it is nested too deeply.
        UnicodeError: it has what is no character, other than by an escape.
    """
    try:
        return msgspec.json.decode(data, type=_Chunk)
    except msgspec.DecodeError:
        whole = _HALVES.sub(_replace_half, data)
        if whole == data:
            raise
        return msgspec.json.decode(whole, type=_Chunk)


def _replace_half(escape: re.Match[str]) -> str:
    return escape[0] if escape[2] else f"{escape[1]}\\ufffd"


def _is_all_text(delta: dict[str, Any]) -> bool:
    """Return whether a piece is all text that is read: only then is it known that its tokens are of no secret."""
    return all(not part or name == "role" or (name in _TEXTS and isinstance(part, str)) for name, part in delta.items())


def _carries_token(choice: _Choice) -> bool:
    """Return whether a chunk looks as if tokens came with it: a text or a tool call, or an empty text and no role."""
    delta = choice.delta or {}
    pieces = [delta.get(name) for name in _TEXTS]
    return (
        any(pieces)
        or bool(delta.get("tool_calls"))
        or bool(choice.token_ids)
        or ("role" not in delta and any(piece == "" for piece in pieces))
    )


def quote_server_text(text: str) -> str:
    """Return the start of a text from outside in one line, without secrets and what a terminal would act on."""
    return join_clean_lines(text)[:_SAID_LIMIT]


def _speculation(metrics: object) -> _Speculation | None:
    """Return what the server says of the request's own steps; its form is experimental, so another is no error."""
    try:
        speculation = msgspec.convert(metrics, _Metrics).speculative_decoding
    except msgspec.ValidationError:
        return None
    if speculation and speculation.num_accepted_draft_tokens > speculation.num_spec_steps * MOST_POSITIONS:
        return None  # no step drafts as many
    return speculation


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]


def _count(value: object) -> int:
    return value if type(value) is int and 0 < value <= MOST else 0  # true is an int, and no count


MOST_CHARACTERS = 1 << 14
MOST_TOKENS = 1 << 14
# Of an answer's arrivals: as many as are kept of a longer one, less one.
MOST_MARKS = 1 << 12
# What is read of its text, as much as is cleaned: a secret may begin in what is kept, or be in its tokens alone.
_MOST_READ = 1 << 16
_MOST_TOKEN = 1 << 31
ArrivalMark = tuple[Whole, Whole]
"""Milliseconds since an answer was asked for, and how many of its tokens had arrived by then."""


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The text of one answer, thoughts included, and its tokens."""

    text: str = ""
    """Its beginning: of a longer one `MOST_CHARACTERS`."""
    tokens: tuple[int, ...] = ()
    """The numbers of its tokens; empty where the server did not name each, or the text held a secret."""
    cut: bool = False
    """Whether it went on."""
    prompt: tuple[int, ...] = ()
    """The numbers of the prompt's tokens; empty where `tokens` is, or the server did not name them."""


class AnswerBuffer:
    """Collects an answer that comes in pieces."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._tokens: list[int] = []
        self._prompt: list[int] = []
        self._room = _MOST_READ

    def add(self, text: str, tokens: object) -> None:
        """Add a piece of the answer, and what the server says are its tokens, whatever that is."""
        if text and self._room >= 0:
            self._pieces.append(text[: self._room + 1])
            self._room -= len(text)
        if isinstance(tokens, list) and len(self._tokens) <= MOST_TOKENS:
            self._tokens += _select_numbers(tokens[: MOST_TOKENS + 1 - len(self._tokens)])

    def set_prompt(self, tokens: object) -> None:
        """Keep what the server says are the tokens of the prompt, whatever that is."""
        self._prompt = _select_numbers(tokens) if isinstance(tokens, list) and len(tokens) <= MOST_TOKENS else []

    def to_answer(self, count: int) -> Answer:
        """Return the answer, of which the server counted so many tokens; where it named others, none is kept."""
        text = "".join(self._pieces)
        cut = self._room < 0
        clean = clean_json_value(text, one_line=False)
        names_all = len(self._tokens) == count <= MOST_TOKENS
        tokens = self._tokens if names_all and not cut else []
        prompt = self._prompt if tokens else []
        cut = cut or len(clean) > MOST_CHARACTERS
        return Answer(clean[:MOST_CHARACTERS], tuple(tokens), cut, tuple(prompt))


def _select_numbers(tokens: Iterable[object]) -> list[int]:
    return [token for token in tokens if type(token) is int and 0 <= token < _MOST_TOKEN]
