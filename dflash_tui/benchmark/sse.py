"""Measures one chat completion from its server-sent events, whatever a server may send."""

from __future__ import annotations

import hashlib
import statistics
import time
from itertools import pairwise
from typing import Any

import msgspec

from dflash_tui.common.redaction import redact_secrets
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.events import MOST, RequestDone

_SAID_LIMIT = 300
# Of an answer, whose beginnings are compared.
_BEGINNINGS = (40, 200)
# Seconds between two chunks. No server takes 2000 steps/s: chunks that come closer had waited for a client that was
# kept from its processor, and their times say nothing of the server.
_LEAST_GAP = 5e-4


class _Choice(msgspec.Struct):
    delta: dict[str, Any] | None = None
    finish_reason: str | None = None


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


register_type(_Chunk)


class CompletionStream:
    """Adds up the server-sent events of one completion, which is asked for now: the prompt `kind`, its `number`-th."""

    def __init__(self, kind: str, number: int = 0, streams: int = 1) -> None:
        self._kind, self._number, self._streams = kind, number, streams
        self._began = time.perf_counter()
        self._chunks: list[float] = []
        self._usage: dict[str, Any] = {}
        self._speculation: _Speculation | None = None
        self._finish = ""
        self._beginning, self._whole = "", hashlib.sha256()
        self.error = ""
        self.status: int | None = None

    def take(self, line: str) -> None:
        """Take one line of the response."""
        if not line.startswith("data: {"):
            return
        try:
            chunk = msgspec.json.decode(line.removeprefix("data: "), type=_Chunk)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            self.error = self.error or f"not JSON: {quote_server_text(line)}"
            return
        if error := chunk.error:
            self.error = quote_server_text(str(error.get("message", error) if isinstance(error, dict) else error))
        self._usage = chunk.usage or self._usage
        self._speculation = _speculation(chunk.metrics) or self._speculation
        for choice in chunk.choices or ():
            self._add(choice.delta or {})
            self._finish = choice.finish_reason or self._finish

    def _add(self, delta: dict[str, Any]) -> None:
        pieces = [delta.get(name) for name in ("content", "reasoning_content", "reasoning")]
        if not any(pieces):
            return
        self._chunks.append(time.perf_counter())
        text = "".join(piece for piece in pieces if isinstance(piece, str))
        self._whole.update(text.encode(errors="replace"))
        self._beginning += text[: max(_BEGINNINGS) - len(self._beginning)]

    def result(self) -> RequestDone:
        """Return the measures; tokens come from `usage`, since one chunk may carry several."""
        tokens = _count(self._usage.get("completion_tokens"))
        chunks, speculation = self._chunks, self._speculation
        span = chunks[-1] - chunks[0] if chunks else 0.0
        gaps = [later - earlier for earlier, later in pairwise(chunks)]
        if not self.error and not tokens:
            self.error = "the answer holds no token"
        return RequestDone(
            at=time.time(),
            kind=self._kind,
            tokens=tokens,
            prompt_tokens=_count(self._usage.get("prompt_tokens")),
            ttft=chunks[0] - self._began if chunks else None,
            total=time.perf_counter() - self._began,
            decode_tok_s=(tokens - 1) / span if tokens > 1 and span > _LEAST_GAP * len(gaps) else None,
            finish=quote_server_text(self._finish),
            error=self.error,
            steps=_count(speculation.num_spec_steps) if speculation else None,
            accepted=_count(speculation.num_accepted_draft_tokens) if speculation else None,
            chunk_p50=statistics.median(gaps) if gaps else None,
            chunk_p95=_p95(gaps) if gaps else None,
            streams=self._streams,
            round=self._number,
            digests=self._digests() if chunks else (),
            status=self.status,
        )

    def _digests(self) -> tuple[str, ...]:
        beginnings = (self._beginning[:length].encode(errors="replace") for length in _BEGINNINGS)
        return (*(hashlib.sha256(beginning).hexdigest() for beginning in beginnings), self._whole.hexdigest())


def quote_server_text(text: str) -> str:
    """Return the start of a text from outside in one line, without secrets and what a terminal would act on."""
    return redact_secrets(clean_line(" ".join(text.split())))[:_SAID_LIMIT]


def _speculation(metrics: object) -> _Speculation | None:
    """Return what the server says of the request's own steps; its form is experimental, so another is no error."""
    try:
        return msgspec.convert(metrics, _Metrics).speculative_decoding
    except msgspec.ValidationError:
        return None


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]


def _count(value: object) -> int:
    return value if type(value) is int and 0 < value <= MOST else 0  # true is an int, and no count
