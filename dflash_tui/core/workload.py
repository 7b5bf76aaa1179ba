"""The five prompt kinds of the field as streaming chat completions, measured per request."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx
import msgspec

from dflash_tui.core import vllm_metrics
from dflash_tui.core.events import PROBE, WARM_UP, Counters, RequestDone

_TIMEOUT = httpx.Timeout(30.0, read=600.0)
_BODY_LIMIT = 300


class Prompt(NamedTuple):
    """A prompt kind: its name, the text and how many tokens the answer may have."""

    kind: str
    text: str
    max_tokens: int


PROMPTS = (
    Prompt("Q&A", "Explain in a few sentences how speculative decoding makes a language model faster "
                  "without changing what it says.", 256),
    Prompt("Code", "Write a Python function that merges two sorted lists into one sorted list without using "
                   "sort, with type hints, a docstring and three tests.", 512),
    Prompt("JSON", "Give twenty fictional books as a JSON array. Each object has the keys title, author, year, "
                   "pages, genre and a one-sentence summary. Answer with JSON only.", 1024),
    Prompt("Math", "A train leaves at 9:40 and arrives at 13:05 after 287 km. What was its mean speed in km/h? "
                   "Answer with the number.", 64),
    Prompt("LongCode", "Write a complete Python module that implements an in-memory key-value store with "
                       "transactions, expiry and snapshots, and a test file for it.", 2048),
)  # fmt: skip
_WARM_UP = Prompt(WARM_UP, "Say hello.", 8)
_PROBE = Prompt(PROBE, "Say hello.", 1)


async def run(
    url: str,
    model: str,
    prompts: tuple[Prompt, ...] = PROMPTS,
    *,
    scale: float = 1.0,
    temperature: float | None = None,
) -> AsyncIterator[RequestDone]:
    """Send the prompts one after the other and yield what each took; `scale` shortens the answers."""
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT, trust_env=False) as client:
        for prompt in prompts:
            tokens = max(8, round(prompt.max_tokens * scale))
            before = await _counters(client)
            done = await send(client, model, prompt._replace(max_tokens=tokens), temperature)
            yield _with_steps(done, before, await _counters(client))


async def _counters(client: httpx.AsyncClient) -> Counters | None:
    with contextlib.suppress(httpx.HTTPError):
        return vllm_metrics.parse((await client.get("/metrics", timeout=5.0)).text)
    return None


def _with_steps(done: RequestDone, before: Counters | None, after: Counters | None) -> RequestDone:
    """Return the request with what the server's counters say of it."""
    if before is None or after is None or before.steps is None or after.steps is None or after.steps < before.steps:
        return done
    accepted = (after.accepted or 0.0) - (before.accepted or 0.0)
    return msgspec.structs.replace(done, steps=after.steps - before.steps, accepted=accepted)


async def first(url: str, model: str) -> RequestDone:
    """Send the short request that shows whether a server that says it is ready can generate."""
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT, trust_env=False) as client:
        return await send(client, model, _WARM_UP)


async def probe(url: str, model: str, patience: float) -> RequestDone:
    """Ask for one token, to see whether a server that has rested can still generate; give up after `patience` s."""
    async with httpx.AsyncClient(base_url=url, timeout=patience, trust_env=False) as client:
        return await send(client, model, _PROBE)


async def send(client: httpx.AsyncClient, model: str, prompt: Prompt, temperature: float | None = None) -> RequestDone:
    """Send one prompt as a streaming chat completion and return its measures; a failure is in `error`.

    `temperature` None leaves the choice to the server (the model's generation_config).
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt.text}],
        "max_tokens": prompt.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if temperature is not None:
        body["temperature"] = temperature
    began = time.perf_counter()
    stream = _Stream(began)
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode(errors="replace")
                stream.error = f"HTTP {response.status_code}: {_printable(text)}"
            else:
                async for line in response.aiter_lines():
                    stream.take(line)
    except httpx.HTTPError as error:
        stream.error = f"{type(error).__name__}: {_printable(str(error))}"
    return stream.result(prompt.kind)


class _Choice(msgspec.Struct):
    delta: dict[str, Any] | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    """What is read of one server-sent event."""

    error: Any = None
    usage: dict[str, Any] | None = None
    choices: tuple[_Choice, ...] | None = None


class _Stream:
    """Adds up the server-sent events of one completion."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._first: float | None = None
        self._last: float | None = None
        self._usage: dict[str, Any] = {}
        self._finish = ""
        self.error = ""

    def take(self, line: str) -> None:
        """Take one line of the response."""
        if not line.startswith("data: {"):
            return
        try:
            chunk = msgspec.json.decode(line.removeprefix("data: "), type=_Chunk)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            self.error = self.error or f"not JSON: {_printable(line)}"
            return
        if error := chunk.error:
            self.error = _printable(str(error.get("message", error) if isinstance(error, dict) else error))
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices or ():
            delta = choice.delta or {}
            if delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning"):
                self._last = time.perf_counter()
                self._first = self._first or self._last
            self._finish = choice.finish_reason or self._finish

    def result(self, kind: str) -> RequestDone:
        """Return the measures; tokens come from `usage`, since one chunk may carry several."""
        tokens = _count(self._usage.get("completion_tokens"))
        decode = None
        if self._first is not None and self._last is not None and self._last > self._first and tokens > 1:
            decode = (tokens - 1) / (self._last - self._first)
        if not self.error and not tokens:
            self.error = "the answer holds no token"
        return RequestDone(
            at=time.time(),
            kind=kind,
            tokens=tokens,
            prompt_tokens=_count(self._usage.get("prompt_tokens")),
            ttft=None if self._first is None else self._first - self._began,
            total=time.perf_counter() - self._began,
            decode_tok_s=decode,
            finish=_printable(str(self._finish)),
            error=self.error,
        )


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _printable(text: str) -> str:
    """Return the start of a text from outside without anything a terminal would act on."""
    cut = "".join(c if c.isprintable() else " " for c in text[:_BODY_LIMIT])
    return " ".join(cut.split())
