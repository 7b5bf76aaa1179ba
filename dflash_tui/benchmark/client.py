"""Sends prompts as streaming chat completions and measures each request."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import operator
import random
import ssl
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import msgspec

from dflash_tui.benchmark.load import Load, LoadRecord, keep_under_way
from dflash_tui.benchmark.prompts import Prompt, Sampling, Suite
from dflash_tui.benchmark.server import Server, TokenCount
from dflash_tui.benchmark.sse import Answer, ArrivalMark, CompletionStream, quote_server_text
from dflash_tui.common import bounded_http
from dflash_tui.common.untrusted_json import LineBuffer, register_type
from dflash_tui.events import GREEDY_WARM_UP, LONG_WARM_UP, PROBE, WARM_UP, Counters, RequestDone
from dflash_tui.vllm_output.metrics import MetricsReader, Scrape, subtract

if TYPE_CHECKING:
    import httpx

_TIMEOUT, _READING = 30.0, 600.0
_METRICS_TIMEOUT = 5.0
# Seconds for a whole request, however steadily its answer drips: so many, and so many for each token asked for. A GB10
# needs a sixth of that for 2,000 tokens at 3 tok/s behind a prompt of 32k.
_DEADLINE, _DEADLINE_PER_TOKEN = 1800.0, 2.0
# Of an answer whose length is left to the server, for the two.
_MOST_TOKENS = 1 << 15
# A token comes in one piece or with others; some servers split it, and send more pieces at the end.
_PIECES_PER_TOKEN, _MORE_PIECES = 4, 64
# Seconds for an answer that has said that it is complete to end, so that its connection can be used again.
_ENDING = 1.0
_WARM_UP = Prompt(WARM_UP, "Say hello.", 8)
# Some 250 bytes come with a token; of an error the first words are shown.
_LONGEST_ANSWER, _LONGEST_LINE, _BEGINNING = 64 << 20, 1 << 20, 1 << 12
_HINTS = {401: "; the server requires an API key: set VLLM_API_KEY to the one it was launched with"}
_PROBE = Prompt(PROBE, "Say hello.", 1)
# Each chunk says how many tokens there are by then, so that those without a text are timed, too.
_STREAMED = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
AnswerSink = Callable[[RequestDone, Answer, tuple[ArrivalMark, ...]], None]
# The likeliest tokens that are asked for at each position.
_CANDIDATES = 5
# The server's logits of all positions are in memory at once: of 1,024 with 262,144 tokens 1 GiB in float32.
MOST_POSITIONS = 1024
_SCORE_READING = 1800.0
_ID_PREFIX = "token_id:"
Scores = Mapping[int, float]
"""The log-probability (natural logarithm) of the likeliest tokens at a position, and of the token that stands there."""


def order_requests(suite: Suite, rounds: int = 1, seed: int = 0) -> list[tuple[Prompt, int]]:
    """Return what `send_suite` sends: each prompt, and the number that tells its repetitions apart."""
    return list(islice(_iterate_requests(suite, seed), rounds * suite.requests))


def _iterate_requests(suite: Suite, seed: int) -> Iterator[tuple[Prompt, int]]:
    shuffler = random.Random(seed)  # noqa: S311 - nothing secret
    for round_ in count():
        part = [(prompt, round_ * prompt.repeat + n) for prompt in suite.prompts for n in range(prompt.repeat)]
        if not suite.in_order:
            shuffler.shuffle(part)
        yield from part


async def send_suite(
    server: Server,
    suite: Suite,
    sampling: Sampling,
    *,
    rounds: int = 1,
    streams: int = 1,
    keep: AnswerSink | None = None,
    record: LoadRecord | None = None,
) -> AsyncGenerator[RequestDone, None]:
    """Send the prompts of a suite and yield each request as it ends; a failure is in the request's `error`.

    `keep` takes each complete answer. With a `record` its load counts, not `streams`, and the fillers that keep it up
    are yielded, too, as of the kind `FILLER`.
    """
    record = record or LoadRecord(Load(streams, refill=False))
    requests = _iterate_requests(suite, sampling.seed)
    counted = list(islice(requests, rounds * suite.requests))
    first_turns = {prompt.follows for prompt in suite.prompts}
    turns: dict[tuple[str, int], list[dict[str, str]]] = {}
    async with _client(server) as client:

        async def send(prompt: Prompt, number: int, stream: CompletionStream, *, counts: bool) -> RequestDone:
            body = _build_measured_body(server, prompt, number, sampling)
            if prompt.follows:
                if (before := turns.get((prompt.follows, number))) is None:
                    stream.error = f"{prompt.follows} was not answered before: send one request at a time"
                    return stream.result()
                body["messages"] = [*before, *body["messages"]]
            stream.content = [] if prompt.kind in first_turns else None
            done = await _send_measured(client, server, body, stream, keep if counts else None)
            if stream.content is not None and not done.error:
                answer = {"role": "assistant", "content": "".join(stream.content)}
                turns[prompt.kind, number] = [*body["messages"], answer]
            return msgspec.structs.replace(done, sampling=sampling.words)

        async with aclosing(keep_under_way(record, counted, requests, send, sampling.seed)) as done:
            async for request in done:
                yield request


async def send_prompt(server: Server, prompt: Prompt, sampling: Sampling, *, number: int = 0) -> RequestDone:
    """Send one prompt alone; `number` tells its repetitions apart, so that no cache answers."""
    body = _build_measured_body(server, prompt, number, sampling)
    async with _client(server) as client:
        return await _send_measured(client, server, body, CompletionStream(prompt.kind, number))


async def send_trial(server: Server, text: str) -> tuple[RequestDone, CompletionStream]:
    """Send a short prompt in the form of those that are measured, to see which form a server takes."""
    body = _build_measured_body(server, Prompt(WARM_UP, text, 8), 0, Sampling(temperature=None, fixed=False))
    stream = CompletionStream(WARM_UP)
    async with _client(server) as client:
        return await _send(client, server, body, stream), stream


async def find_token_count(server: Server, text: str) -> TokenCount:
    """Return how the tokens of a server that streams no usage are counted."""
    async with _client(server) as client:
        try:
            await count_text_tokens(client, server.model, text)
        except bounded_http.list_failures(bounded_http.BadResponse):
            return TokenCount.CHUNKS
    return TokenCount.TOKENIZE


async def send_first_request(server: Server) -> RequestDone:
    """Send the short request, sampled as the server likes, that shows whether it can generate."""
    body = _build_body(server, _WARM_UP.text, _WARM_UP.max_tokens)
    async with _client(server) as client:
        return await _send(client, server, body, CompletionStream(WARM_UP))


async def send_greedy_warm_up(server: Server) -> tuple[RequestDone, Answer]:
    """Send the same request at temperature 0, where drafts are verified by another kernel; return its answer, too."""
    body = _build_body(server, _WARM_UP.text, _WARM_UP.max_tokens) | {"temperature": 0.0, "return_token_ids": True}
    stream = CompletionStream(GREEDY_WARM_UP)
    async with _client(server) as client:
        return await _send(client, server, body, stream), stream.build_answer()


async def send_long_warm_up(server: Server, words: int) -> RequestDone:
    """Send a greedy request with a prompt of some `words` tokens, which is like no other, so that no cache has it."""
    text = f"{words} words:{' tree' * words}"
    body = _build_body(server, text, _WARM_UP.max_tokens) | {"temperature": 0.0}
    async with _client(server) as client:
        return await _send(client, server, body, CompletionStream(LONG_WARM_UP))


async def send_conversation(server: Server, body: Mapping[str, Any], stream: CompletionStream) -> RequestDone:
    """Send the body of a conversation; `stream` takes the answer as it comes."""
    whole = {"model": server.model, **body, **_list_stream_fields(server)}
    async with _client(server) as client:
        return await _send_measured(client, server, whole, stream)


async def send_probe(server: Server, patience: float) -> RequestDone:
    """Ask for one token within `patience` seconds, to see whether a server that was idle can still generate."""
    async with _client(server, patience) as client:
        body = _build_body(server, _PROBE.text, _PROBE.max_tokens)
        return await _send(client, server, body, CompletionStream(PROBE), patience)


def _client(server: Server, timeout: float = _TIMEOUT) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {server.key}"} if server.key else None
    reading = _READING if timeout == _TIMEOUT else None
    return bounded_http.open_client(server.url, timeout=timeout, reading=reading, headers=headers)


def _build_body(server: Server, text: str, max_tokens: int) -> dict[str, Any]:
    body = {"model": server.model, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}
    return body | _list_stream_fields(server)


def _list_stream_fields(server: Server) -> dict[str, Any]:
    """Return how the answer is to be streamed and counted, as far as the server takes it."""
    if not server.facts.takes_usage:
        return {"stream": True}
    return _STREAMED if server.facts.takes_extras else _STREAMED | {"stream_options": {"include_usage": True}}


def make_prompt_unique(prompt: Prompt, number: int, seed: int) -> str:
    """Return the text of a prompt in the round `number`: no two that are salted begin alike, in every boot the same."""
    if not prompt.salted or prompt.follows:
        return prompt.text
    tag = hashlib.sha256(f"{seed} {prompt.kind} {number}".encode()).hexdigest()[:8]
    return f"[{tag}] {prompt.text}"


def _build_measured_body(server: Server, prompt: Prompt, number: int, sampling: Sampling) -> dict[str, Any]:
    """Return a request that no prefix cache can answer, unless the prompt is to be repeated as it is.

    What a chat template puts before its text is the same for all, so each has a salt of its own, which is part of the
    keys of vLLM's prefix cache and of nothing that is sampled.
    """
    text = make_prompt_unique(prompt, number, sampling.seed)
    body = _build_body(server, text, answer_length(prompt, sampling.scale))
    if server.facts.takes_extras:
        body |= {"ignore_eos": sampling.fixed} | ({"cache_salt": uuid.uuid4().hex} if prompt.salted else {})
        body |= {"return_token_ids": True, "repetition_penalty": 1.0} if sampling.tokens else {}
        body |= sampling.options
    elif sampling.top_p is not None:
        body["top_p"] = sampling.top_p
    body |= {"seed": sampling.seed} if sampling.seeded else {}
    return body if sampling.temperature is None else body | {"temperature": sampling.temperature}


def answer_length(prompt: Prompt, scale: float) -> int:
    """Return how many tokens the answer may have."""
    return max(8, round(prompt.max_tokens * scale))


async def _send_measured(
    client: httpx.AsyncClient,
    server: Server,
    body: dict[str, Any],
    stream: CompletionStream,
    keep: AnswerSink | None = None,
) -> RequestDone:
    """Send a request; its steps are the server's own word in the answer, or its counters when nobody else sends."""
    before = await _read_counters(client) if stream.streams == 1 and server.facts.has_counters else None
    done = await _send(client, server, body, stream)
    if keep and not done.error:
        keep(done, stream.build_answer(), stream.list_marks())
    if done.steps is not None or before is None or before.steps is None:
        return done
    after = await _read_counters(client)
    if after is None or after.steps is None or after.steps < before.steps:
        return done
    accepted = subtract(after.accepted, before.accepted)
    return msgspec.structs.replace(done, steps=after.steps - before.steps, accepted=accepted)


async def read_counters(server: Server) -> Counters | None:
    """Return the server's counters now, or None when it has none or does not answer."""
    async with _client(server, _METRICS_TIMEOUT) as client:
        return await _read_counters(client) if server.facts.has_counters else None


async def _read_counters(client: httpx.AsyncClient) -> Counters | None:
    with contextlib.suppress(*bounded_http.list_failures(bounded_http.BadResponse)):
        return (await fetch_metrics(client)).counters
    return None


def compute_deadline(max_tokens: int) -> float:
    """Return after how many seconds a request for so many tokens is given up."""
    return _DEADLINE + _DEADLINE_PER_TOKEN * max_tokens


async def _send(
    client: httpx.AsyncClient,
    server: Server,
    body: dict[str, Any],
    stream: CompletionStream,
    patience: float | None = None,
) -> RequestDone:
    """Send a streaming chat completion and return its measures, within `patience` seconds; a failure is in `error`."""
    longest = body.get("max_tokens", _MOST_TOKENS)
    patience = compute_deadline(longest) if patience is None else patience
    try:
        async with asyncio.timeout(patience):
            stream.begin()  # the counters may have been read since it was made
            stream.counts_chunks = server.facts.tokens is TokenCount.CHUNKS
            stream.pieces = [] if server.facts.tokens is TokenCount.TOKENIZE else None
            await _stream(client, body, stream, longest)
            if stream.pieces and not stream.error:
                stream.tokens = stream.tokens or await count_text_tokens(client, server.model, "".join(stream.pieces))
    except TimeoutError:
        stream.error = f"no complete answer within {patience:g} s, the deadline for max_tokens={longest}"
    except bounded_http.BadResponse as error:
        stream.error = str(error)
    except bounded_http.list_failures() as error:
        broken = isinstance(error, ssl.SSLError)
        silent = not str(error)
        words = bounded_http.describe_failure(error) if broken or silent else f"{type(error).__name__}: {error}"
        stream.error = quote_server_text(words)
    if stream.model != (known := server.facts.answers_as) and known and stream.model and not stream.error:
        stream.error = f"the server changed its model: it answers as {stream.model}, and before as {known}"
    is_counted = server.facts.tokens is TokenCount.USAGE
    if is_counted and stream.tokens > (longest if "max_tokens" in body else _compute_most_pieces(longest)):
        stream.error = stream.error or f"the server counts {stream.tokens} tokens, where {longest} were asked for"
    return stream.result()


class _Tokenized(msgspec.Struct):
    """What /tokenize answers: vLLM and SGLang count, llama.cpp lists the tokens."""

    count: int | None = None
    tokens: list[Any] | None = None


register_type(_Tokenized)


async def count_text_tokens(client: httpx.AsyncClient, model: str, text: str) -> int:
    """Return how many tokens a text has by the server's /tokenize; raise `BadResponse` where it has none."""
    fields = {"model": model, "prompt": text, "content": text, "add_special_tokens": False}
    response = await client.post("/tokenize", json=fields)
    try:
        told = msgspec.json.decode(response.content, type=_Tokenized)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        told = _Tokenized()
    count = len(told.tokens) if told.count is None and told.tokens is not None else told.count
    if response.status_code != 200 or not count or not 0 < count <= len(text.encode(errors="replace")):
        raise bounded_http.BadResponse(f"/tokenize: HTTP {response.status_code}, no count", response.status_code)
    return count


def _compute_most_pieces(longest: int) -> int:
    """Return in how many pieces the longest answer may come, of which no token needs more than a few."""
    return _PIECES_PER_TOKEN * longest + _MORE_PIECES


async def _stream(client: httpx.AsyncClient, body: dict[str, Any], stream: CompletionStream, longest: int) -> None:
    """Send a streaming chat completion and give `stream` the lines of the answer, or why it is none."""
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code == 200:
            async with contextlib.aclosing(_read_lines(response)) as lines:
                async for line in lines:
                    stream.take(line)
                    if stream.is_complete:
                        # What more it says is no part of it, but the connection can be used again once it ends.
                        with contextlib.suppress(*bounded_http.list_failures(bounded_http.BadResponse)):
                            async with asyncio.timeout(_ENDING):
                                while await anext(lines, "end") == "":
                                    pass
                        break
                    if len(stream.arrivals.times) > _compute_most_pieces(longest):
                        what = f"the answer has more pieces than the {longest} tokens that were asked for"
                        raise bounded_http.BadResponse(what)
            stream.end()
        else:
            stream.status, beginning = response.status_code, b""
            async for data in response.aiter_raw():
                beginning += data
                if len(beginning) >= _BEGINNING:
                    break
            said = quote_server_text(beginning.decode(errors="replace"))
            stream.error = f"HTTP {response.status_code}: {said}{_HINTS.get(response.status_code, '')}"


async def _read_lines(response: httpx.Response) -> AsyncGenerator[str, None]:
    buffer, size = LineBuffer(_LONGEST_LINE), 0
    async for data in response.aiter_raw():
        size += len(data)
        for line in buffer.feed(data):
            yield line.rstrip(b"\r").decode(errors="replace")
        if buffer.dropped:
            raise bounded_http.BadResponse(f"the answer has a line of more than {_LONGEST_LINE >> 20} MiB")
        if size > _LONGEST_ANSWER:
            raise bounded_http.BadResponse(f"the answer has more than {_LONGEST_ANSWER >> 20} MiB")
        await asyncio.sleep(0)  # thousands of pieces may be here already, which would be read without a pause
    yield buffer.unfinished_line.decode(errors="replace")


async def fetch_metrics(client: httpx.AsyncClient, url: str = "/metrics") -> Scrape:
    """Return the values of a server's /metrics; raise `BadResponse` where the answer is not that of a vLLM server."""
    reader = MetricsReader()
    await bounded_http.feed_bounded(client, url, reader.feed, "/metrics")
    if (scrape := reader.result()) is None:
        raise bounded_http.BadResponse("/metrics has no counter of a vLLM server")
    return scrape


class _Score(msgspec.Struct):
    logprob: float


class _DecodedScores(msgspec.Struct):
    top_logprobs: list[dict[str, float]]


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    logprobs: _DecodedScores | None = None
    prompt_logprobs: list[dict[str, _Score] | None] | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]


register_type(_Completion)


class TokenScorer:
    """Asks one server about the tokens of answers, greedily and for log-probabilities before any sampling."""

    def __init__(self, url: str, model: str, key: str = "") -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else None
        self._client = bounded_http.open_client(url, timeout=_TIMEOUT, reading=_SCORE_READING, headers=headers)
        self._model = model

    async def __aenter__(self) -> TokenScorer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def decode(self, prompt: Sequence[int], count: int) -> tuple[list[int], list[Scores]]:
        """Return `count` tokens that follow on the prompt, decoded one at a time, and the scores at each."""
        named = {"return_token_ids": True, "return_tokens_as_token_ids": True}
        choice = await self._ask(prompt, count, {"logprobs": _CANDIDATES, "ignore_eos": True, **named})
        tokens, scored = choice.token_ids or [], choice.logprobs.top_logprobs if choice.logprobs else []
        if not len(tokens) == len(scored) == count:
            raise bounded_http.BadResponse("the server did not score the tokens that it decoded")
        return tokens, [
            {int(name.removeprefix(_ID_PREFIX)): score for name, score in scores.items()} for scores in scored
        ]

    async def read(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[Scores]:
        """Return the scores at each of `tokens`, which follow on the prompt, all computed in one step."""
        choice = await self._ask([*prompt, *tokens], 1, {"prompt_logprobs": _CANDIDATES})
        scored = (choice.prompt_logprobs or [])[len(prompt) :]
        if len(scored) != len(tokens):
            raise bounded_http.BadResponse("the server did not score the tokens of the prompt")
        return [{int(token): score.logprob for token, score in (scores or {}).items()} for scores in scored]

    async def _ask(self, prompt: Sequence[int], count: int, more: dict[str, Any]) -> _Choice:
        body = {"model": self._model, "prompt": prompt, "max_tokens": count, "temperature": 0.0}
        response = await self._client.post("/v1/completions", json=body | {"repetition_penalty": 1.0} | more)
        if response.status_code != 200:
            what = f"HTTP {response.status_code}: {quote_server_text(response.text)}"
            raise bounded_http.BadResponse(what, response.status_code)
        try:
            return msgspec.json.decode(response.content, type=_Completion).choices[0]
        except (msgspec.MsgspecError, IndexError) as error:
            raise bounded_http.BadResponse(f"not a completion: {error}") from None


def measure_gaps(tokens: Sequence[int], scores: Sequence[Scores]) -> list[float]:
    """Return by how much the log-probability of each token is below that of the likeliest at its position."""
    return [max(scored.values()) - scored[token] for token, scored in zip(tokens, scores, strict=True)]


def measure_shifts(tokens: Sequence[int], decoded: Sequence[Scores], read: Sequence[Scores]) -> list[float]:
    """Return by how much the lead of each token over its runner-up differs between two computations of the scores."""
    shifts = []
    for token, decoded_scores, read_scores in zip(tokens, decoded, read, strict=True):
        runner_up = max(
            (other for other in decoded_scores if other != token), key=decoded_scores.__getitem__, default=None
        )
        if runner_up is not None and {token, runner_up} <= decoded_scores.keys() & read_scores.keys():
            leads = (scored[token] - scored[runner_up] for scored in (decoded_scores, read_scores))
            shifts.append(abs(operator.sub(*leads)))
    return shifts
