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
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dflash_tui.benchmark.load import Load, LoadRecord, keep_under_way
from dflash_tui.benchmark.prompts import Prompt, Sampling, Suite, TokenVariety
from dflash_tui.benchmark.server import Server, TokenCount
from dflash_tui.benchmark.sse import Answer, ArrivalMark, CompletionStream, quote_server_text
from dflash_tui.common import bounded_http
from dflash_tui.common.untrusted_json import LineBuffer, register_type
from dflash_tui.events import GREEDY_WARM_UP, LONG_WARM_UP, PROBE, WARM_UP, Counters, RequestDone
from dflash_tui.vllm_output.metrics import MetricsReader, Scrape, subtract

if TYPE_CHECKING:
    import httpx

_T = TypeVar("_T")

_TIMEOUT, _READING = 30.0, 600.0
_METRICS_TIMEOUT = 5.0
# Deadline of a whole request in seconds, and its part per token of max_tokens. A GB10 needs a sixth of it for 2,000
# tokens at 3 tok/s after a prompt of 32k tokens.
_DEADLINE, _DEADLINE_PER_TOKEN = 1800.0, 2.0
# The max_tokens that the deadline and the limit of pieces assume if a request sets none.
_MOST_TOKENS = 1 << 15
# Limit of an answer's pieces: some servers split a token into several pieces, and send more pieces at the end.
_PIECES_PER_TOKEN, _MORE_PIECES = 4, 64
# Seconds in which a complete answer may close its stream, so that the connection can be reused.
_ENDING = 1.0
_WARM_UP = Prompt(WARM_UP, "Say hello.", 8)
# Limits in bytes: an answer (a token takes about 250), one of its lines, and the quoted start of an HTTP error.
_LONGEST_ANSWER, _LONGEST_LINE, _BEGINNING = 64 << 20, 1 << 20, 1 << 12
_HINTS = {
    401: "; the server requires an API key: VLLM_API_KEY is for one launched here, --key-env names that of another"
}
_PROBE = Prompt(PROBE, "Say hello.", 1)
# Each chunk reports the token count so far, so that tokens without text are timed, too.
_STREAMED = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
# A tenth of the different tokens of a prompt of `contexts`, about 91; the shortest prompt of `field` has 18.
_FEWEST_DIFFERENT = 10
# Token ids that a made-up vocabulary has, too, and that are no special tokens.
_ORDINARY_TOKENS = range(1_000, 30_000)
AnswerSink = Callable[[RequestDone, Answer, tuple[ArrivalMark, ...]], None]
# How many of the likeliest tokens are requested at each position.
_CANDIDATES = 5
# The server holds the logits of all positions in memory: 1,024 positions of 262,144 tokens are 1 GiB in float32.
MOST_POSITIONS = 1024
_SCORE_READING = 1800.0
_ID_PREFIX = "token_id:"
Scores = Mapping[int, float]
"""Log-probabilities (natural logarithm) by token: the likeliest ones at a position, and the actual one."""


def order_requests(suite: Suite, rounds: int = 1, seed: int = 0) -> list[tuple[Prompt, int]]:
    """Return the requests of `send_suite` in order: each prompt with the number of its repetition."""
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
    """Send the prompts of a suite and yield each request as it ends; failures are in its `error`.

    `keep` receives each complete answer. A `record` sets the load instead of `streams`; its fillers are yielded, too,
    with the kind `FILLER`.
    """
    record = record or LoadRecord(Load(streams, refill=False))
    requests, salt = _iterate_requests(suite, sampling.seed), uuid.uuid4().hex
    counted = list(islice(requests, rounds * suite.requests))
    first_turns = {prompt.follows for prompt in suite.prompts}
    turns: dict[tuple[str, int], list[dict[str, str]]] = {}
    async with _open_client(server) as client:

        async def send(prompt: Prompt, number: int, stream: CompletionStream, *, counts: bool) -> RequestDone:
            body = _build_measured_body(server, prompt, number, sampling, salt)
            stream.tools = prompt.tools
            if prompt.follows:
                if (before := turns.get((prompt.follows, number))) is None:
                    stream.error = f"{prompt.follows} has no answer yet: send one request at a time"
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
    """Send one prompt; a `number` per repetition keeps the prefix cache from answering."""
    body = _build_measured_body(server, prompt, number, sampling)
    stream = CompletionStream(prompt.kind, number)
    stream.tools = prompt.tools
    async with _open_client(server) as client:
        return await _send_measured(client, server, body, stream)


async def send_trial(server: Server, text: str) -> tuple[RequestDone, CompletionStream]:
    """Send a short prompt in the form of a measured request, to see which fields a server accepts."""
    body = _build_measured_body(server, Prompt(WARM_UP, text, 8), 0, Sampling(temperature=None, fixed=False))
    stream = CompletionStream(WARM_UP)
    async with _open_client(server) as client:
        return await _send(client, server, body, stream), stream


async def find_token_count(server: Server, text: str) -> TokenCount:
    """Return how to count the tokens of a server that streams no usage."""
    async with _open_client(server) as client:
        try:
            await count_text_tokens(client, server.model, text)
        except bounded_http.list_failures(bounded_http.BadResponse):
            return TokenCount.CHUNKS
    return TokenCount.TOKENIZE


async def send_first_request(server: Server) -> RequestDone:
    """Send a short request with the server's default sampling, to see whether it can generate."""
    body = _build_body(server, _WARM_UP.text, _WARM_UP.max_tokens)
    async with _open_client(server) as client:
        return await _send(client, server, body, CompletionStream(WARM_UP))


async def send_greedy_warm_up(server: Server) -> tuple[RequestDone, Answer]:
    """Send the first request at temperature 0, which uses another verification kernel; return the answer, too."""
    body = _build_body(server, _WARM_UP.text, _WARM_UP.max_tokens) | {"temperature": 0.0, "return_token_ids": True}
    stream = CompletionStream(GREEDY_WARM_UP)
    async with _open_client(server) as client:
        return await _send(client, server, body, stream), stream.build_answer()


async def send_long_warm_up(server: Server, words: int) -> RequestDone:
    """Send a greedy request with a unique prompt of about `words` tokens, which the prefix cache lacks."""
    text = f"{words} words:{' tree' * words}"
    body = _build_body(server, text, _WARM_UP.max_tokens) | {"temperature": 0.0}
    async with _open_client(server) as client:
        return await _send(client, server, body, CompletionStream(LONG_WARM_UP))


async def send_conversation(server: Server, body: Mapping[str, Any], stream: CompletionStream) -> RequestDone:
    """Send the body of a conversation; `stream` receives the answer as it arrives."""
    whole = {"model": server.model, **body, **_list_stream_fields(server)}
    async with _open_client(server) as client:
        return await _send_measured(client, server, whole, stream)


async def send_probe(server: Server, patience: float) -> RequestDone:
    """Request one token within `patience` seconds, to see whether an idle server can still generate."""
    async with _open_client(server, patience) as client:
        body = _build_body(server, _PROBE.text, _PROBE.max_tokens)
        return await _send(client, server, body, CompletionStream(PROBE), patience)


def _open_client(server: Server, timeout: float = _TIMEOUT) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {server.key}"} if server.key else None
    reading = _READING if timeout == _TIMEOUT else None
    return bounded_http.open_client(server.url, timeout=timeout, reading=reading, headers=headers)


def _build_body(server: Server, text: str, max_tokens: int) -> dict[str, Any]:
    body = {"model": server.model, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}
    return body | _list_stream_fields(server)


def _list_stream_fields(server: Server) -> dict[str, Any]:
    if not server.facts.takes_usage:
        return {"stream": True}
    return _STREAMED if server.facts.takes_extras else _STREAMED | {"stream_options": {"include_usage": True}}


def make_prompt_unique(prompt: Prompt, number: int, seed: int) -> str:
    """Return a prompt's text; if salted it begins with a tag that differs per `number` but not per boot."""
    if not prompt.salted or prompt.follows or prompt.session:
        return prompt.text
    return f"[{_make_tag(prompt.kind, number, seed)}] {prompt.text}"


def _make_tag(kind: str, number: int, seed: int) -> str:
    return hashlib.sha256(f"{seed} {kind} {number}".encode()).hexdigest()[:8]


def _list_session_fields(server: Server, prompt: Prompt, number: int, seed: int) -> dict[str, Any]:
    """Return the messages and tools of a session's turn; a launch without a tool parser accepts no call."""
    first, *others = prompt.messages
    if prompt.salted and isinstance(content := first.get("content"), str):
        first = first | {"content": f"[{_make_tag(prompt.session, number, seed)}] {content}"}
    fields: dict[str, Any] = {"messages": [first, *others]}
    if not prompt.tools:
        return fields
    parses = server.run is None or server.run.plan.find_flag("tool-call-parser")
    return fields | {"tools": prompt.tools, "tool_choice": "auto" if parses else "none"}


def _build_measured_body(
    server: Server, prompt: Prompt, number: int, sampling: Sampling, salt: str = ""
) -> dict[str, Any]:
    """Return the body of a measured request; if the prompt is salted, the prefix cache cannot answer it.

    The chat template puts the same tokens before every text, so each body has its own `cache_salt`, which is part of
    the keys of vLLM's prefix cache and does not affect sampling. The turns of a session share one, made of `salt`.
    """
    text = make_prompt_unique(prompt, number, sampling.seed)
    body = _build_body(server, text, answer_length(prompt, sampling.scale))
    if prompt.messages:
        body |= _list_session_fields(server, prompt, number, sampling.seed)
    if server.facts.takes_extras:
        salt = f"{salt} {prompt.session} {number}" if salt and prompt.session else uuid.uuid4().hex
        body |= {"ignore_eos": sampling.fixed} | ({"cache_salt": salt} if prompt.salted else {})
        body |= {"return_token_ids": True, "repetition_penalty": 1.0} if sampling.tokens else {}
        body |= sampling.options
    elif sampling.top_p is not None:
        body["top_p"] = sampling.top_p
    body |= {"seed": sampling.seed} if sampling.seeded else {}
    return body if sampling.temperature is None else body | {"temperature": sampling.temperature}


def answer_length(prompt: Prompt, scale: float) -> int:
    """Return the `max_tokens` of a prompt's scaled answer."""
    return max(8, round(prompt.max_tokens * scale))


async def _send_measured(
    client: httpx.AsyncClient,
    server: Server,
    body: dict[str, Any],
    stream: CompletionStream,
    keep: AnswerSink | None = None,
) -> RequestDone:
    """Send a request; its steps come from the answer, or with one stream from the server's counters."""
    before = await _read_counters(client) if stream.streams == 1 and server.facts.has_counters else None
    done = await _send(client, server, body, stream)
    if keep and not done.error:
        keep(done, stream.build_answer(), stream.list_marks())
    if before is None or (done.steps is not None and not stream.tools):
        return done
    if (after := await _read_counters(client)) is None:
        return done
    if after.prefix_queries > before.prefix_queries:
        done = msgspec.structs.replace(done, cached=max(0.0, after.prefix_hits - before.prefix_hits))
    if done.steps is not None or before.steps is None or after.steps is None or after.steps < before.steps:
        return done
    accepted = subtract(after.accepted, before.accepted)
    return msgspec.structs.replace(done, steps=after.steps - before.steps, accepted=accepted)


async def read_counters(server: Server) -> Counters | None:
    """Return the server's current counters, or None if it has none or does not answer."""
    async with _open_client(server, _METRICS_TIMEOUT) as client:
        return await _read_counters(client) if server.facts.has_counters else None


async def _read_counters(client: httpx.AsyncClient) -> Counters | None:
    with contextlib.suppress(*bounded_http.list_failures(bounded_http.BadResponse)):
        return (await fetch_metrics(client)).counters
    return None


def compute_deadline(max_tokens: int) -> float:
    """Return the deadline in seconds of a request for `max_tokens`."""
    return _DEADLINE + _DEADLINE_PER_TOKEN * max_tokens


async def _send(
    client: httpx.AsyncClient,
    server: Server,
    body: dict[str, Any],
    stream: CompletionStream,
    patience: float | None = None,
) -> RequestDone:
    """Send a streaming chat completion and return its measures; failures and timeouts are in `error`."""
    longest = body.get("max_tokens", _MOST_TOKENS)
    patience = compute_deadline(longest) if patience is None else patience
    try:
        async with asyncio.timeout(patience):
            stream.begin()  # reading the counters may have taken time since its creation
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
        stream.error = f"the server changed its model: it answers as {stream.model}, and answered before as {known}"
    is_counted = server.facts.tokens is TokenCount.USAGE
    if is_counted and stream.tokens > (longest if "max_tokens" in body else _compute_most_pieces(longest)):
        stream.error = stream.error or f"the server counts {stream.tokens} tokens, where {longest} were requested"
    return stream.result()


class _Tokenized(msgspec.Struct):
    """The response of /tokenize: vLLM and SGLang send a count, vLLM and llama.cpp the list of tokens."""

    count: int | None = None
    tokens: list[Any] | None = None


class _Detokenized(msgspec.Struct):
    """The response of /detokenize of vLLM, SGLang or llama.cpp."""

    prompt: str = ""
    text: str = ""
    content: str = ""


register_type(_Tokenized)
register_type(_Detokenized)


async def count_text_tokens(client: httpx.AsyncClient, model: str, text: str) -> int:
    """Return a text's token count from the server's /tokenize; raise `BadResponse` if there is none."""
    told = await _tokenize(client, model, text)
    count = len(told.tokens) if told.count is None and told.tokens is not None else told.count
    if not count or not 0 < count <= len(text.encode(errors="replace")):
        raise bounded_http.BadResponse("/tokenize: no count")
    return count


async def _tokenize(client: httpx.AsyncClient, model: str, text: str) -> _Tokenized:
    fields = {"model": model, "prompt": text, "content": text, "add_special_tokens": False}
    return await _ask_tokenizer(client, "/tokenize", fields, _Tokenized)


async def _ask_tokenizer(client: httpx.AsyncClient, path: str, fields: dict[str, Any], kind: type[_T]) -> _T:
    response = await client.post(path, json=fields)
    if response.status_code != 200:
        raise bounded_http.BadResponse(f"{path}: HTTP {response.status_code}", response.status_code)
    try:
        return msgspec.json.decode(response.content, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise bounded_http.BadResponse(f"{path}: {error}") from None


async def vary_tokens(server: Server, suite: Suite) -> tuple[Suite, TokenVariety]:
    """Return the suite with prompts that have different tokens on this server, and what is known of them.

    A tokenizer to which every English word is the same unknown token gets random tokens instead, always the same ones:
    with one repeated token a mixture of experts reads far fewer experts.
    """
    if not suite.any_text:
        return suite, TokenVariety.UNCHECKED
    prompts, found = list[Prompt](), TokenVariety.DIFFERENT
    async with _open_client(server) as client:
        list_tokens = partial(_list_text_tokens, client, server.model)
        try:
            for prompt in suite.prompts:
                if prompt.messages or _are_different(tokens := await list_tokens(prompt.text)):
                    prompts.append(prompt)
                    continue
                found = TokenVariety.REPEATED
                text = await _write_random_text(client, server.model, prompt.kind, len(tokens))
                if not _are_different(await list_tokens(text)):
                    return suite, found
                prompts.append(msgspec.structs.replace(prompt, text=text))
        except bounded_http.list_failures(bounded_http.BadResponse):
            return suite, TokenVariety.UNKNOWN if found is TokenVariety.DIFFERENT else found
    if found is TokenVariety.DIFFERENT:
        return suite, found
    return msgspec.structs.replace(suite, prompts=tuple(prompts)), TokenVariety.RANDOM


def _are_different(tokens: Sequence[Any]) -> bool:
    return len({*tokens}) >= _FEWEST_DIFFERENT


async def _list_text_tokens(client: httpx.AsyncClient, model: str, text: str) -> list[Any]:
    if not (tokens := (await _tokenize(client, model, text)).tokens):
        raise bounded_http.BadResponse("/tokenize: no tokens")
    return tokens


async def _write_random_text(client: httpx.AsyncClient, model: str, kind: str, count: int) -> str:
    ids = random.Random(kind).choices(_ORDINARY_TOKENS, k=count)  # noqa: S311 - nothing secret
    told = await _ask_tokenizer(client, "/detokenize", {"model": model, "tokens": ids}, _Detokenized)
    return told.prompt or told.text or told.content


def _compute_most_pieces(longest: int) -> int:
    return _PIECES_PER_TOKEN * longest + _MORE_PIECES


async def _stream(client: httpx.AsyncClient, body: dict[str, Any], stream: CompletionStream, longest: int) -> None:
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code == 200:
            async with contextlib.aclosing(_read_lines(response)) as lines:
                async for line in lines:
                    stream.take(line)
                    if stream.is_complete:
                        # The connection can be reused once the response has ended.
                        with contextlib.suppress(*bounded_http.list_failures(bounded_http.BadResponse)):
                            async with asyncio.timeout(_ENDING):
                                while await anext(lines, "end") == "":
                                    pass
                        break
                    if len(stream.arrivals.times) > _compute_most_pieces(longest):
                        what = f"the answer has more pieces than the {longest} tokens that were requested"
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
        await asyncio.sleep(0)  # let other tasks run: thousands of pieces may be buffered already
    yield buffer.unfinished_line.decode(errors="replace")


async def fetch_metrics(client: httpx.AsyncClient, url: str = "/metrics") -> Scrape:
    """Return the values of a server's /metrics; raise `BadResponse` if they are not those of a vLLM."""
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
    """Decodes greedily and scores tokens by their log-probabilities before sampling, on one server."""

    def __init__(self, url: str, model: str, key: str = "") -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else None
        self._client = bounded_http.open_client(url, timeout=_TIMEOUT, reading=_SCORE_READING, headers=headers)
        self._model = model

    async def __aenter__(self) -> TokenScorer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def decode(self, prompt: Sequence[int], count: int) -> tuple[list[int], list[Scores]]:
        """Return `count` tokens after the prompt, decoded one at a time, and the scores at each."""
        named = {"return_token_ids": True, "return_tokens_as_token_ids": True}
        choice = await self._ask(prompt, count, {"logprobs": _CANDIDATES, "ignore_eos": True, **named})
        tokens, scored = choice.token_ids or [], choice.logprobs.top_logprobs if choice.logprobs else []
        if not len(tokens) == len(scored) == count:
            raise bounded_http.BadResponse("the server did not score the tokens that it decoded")
        return tokens, [
            {int(name.removeprefix(_ID_PREFIX)): score for name, score in scores.items()} for scores in scored
        ]

    async def read(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[Scores]:
        """Return the scores at each of `tokens` after the prompt, all computed in one step."""
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
    """Return how far each token's log-probability is below that of the likeliest at its position."""
    return [max(scored.values()) - scored[token] for token, scored in zip(tokens, scores, strict=True)]


def measure_shifts(tokens: Sequence[int], decoded: Sequence[Scores], read: Sequence[Scores]) -> list[float]:
    """Return how much each token's lead over its runner-up differs between two computations of the scores."""
    shifts = []
    for token, decoded_scores, read_scores in zip(tokens, decoded, read, strict=True):
        runner_up = max(
            (other for other in decoded_scores if other != token), key=decoded_scores.__getitem__, default=None
        )
        if runner_up is not None and {token, runner_up} <= decoded_scores.keys() & read_scores.keys():
            leads = (scored[token] - scored[runner_up] for scored in (decoded_scores, read_scores))
            shifts.append(abs(operator.sub(*leads)))
    return shifts
