"""Suites sent to a stand-in for the server: what is asked, in which order, and what a request says afterwards."""

import asyncio
import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

import pytest

from dflash_tui.benchmark import client, suites
from dflash_tui.benchmark.prompts import Prompt, Sampling, Suite, build_suite
from dflash_tui.benchmark.server import Server
from dflash_tui.common import bounded_http
from dflash_tui.events import RequestDone
from dflash_tui.experiments import boot
from tests import ROOT
from tests.support.boot_factories import modes
from tests.support.fake_runs import free_port, wait_for_answer
from tests.support.raw_server import serving

FAKE = ROOT / "tests" / "support" / "fake_server.py"
SUITE = build_suite("three", (Prompt("a", "first", 20), Prompt("b", "second", 40, 3), Prompt("c", "third", 60)))
Start = Callable[..., str]


@pytest.fixture
def serve(tmp_path) -> Iterator[Start]:
    """Return a function that starts the stand-in with some words and returns its address."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> str:
        url = f"http://127.0.0.1:{(port := free_port(18_300))}"
        with (tmp_path / "asked").open("wb") as log:
            started.append(subprocess.Popen([sys.executable, FAKE, str(port), "log", *words], stdout=log))
        wait_for_answer(url)
        return url

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def asked(tmp_path) -> Callable[[], list[dict[str, Any]]]:
    """Return a function that says what the stand-in was asked."""
    return lambda: [json.loads(line) for line in (tmp_path / "asked").read_text().splitlines() if line[0] == "{"]


async def sent(url: str, suite: Suite = SUITE, seed: int = 0, **how) -> list[RequestDone]:
    return [done async for done in client.send_suite(Server(url, "x"), suite, Sampling(seed=seed), **how)]


async def test_seed_orders_all_prompts(serve, asked):
    """Each round sends all of them, repeated ones under numbers of their own."""
    done = await sent(serve(), rounds=2, seed=7)
    numbers = {kind: sorted(d.round for d in done if d.kind == kind) for kind in "abc"}
    assert numbers == {"a": [0, 1], "b": [0, 1, 2, 3, 4, 5], "c": [0, 1]}
    assert [(d.kind, d.round) for d in done] == [(p.kind, n) for p, n in client.order_requests(SUITE, 2, 7)]
    assert sorted(d.kind for d in done[:5]) == ["a", "b", "b", "b", "c"]
    assert client.order_requests(SUITE, 2, 7) != client.order_requests(SUITE, 2, 8)
    assert [body["max_tokens"] for body in asked()] == [{"a": 20, "b": 40, "c": 60}[d.kind] for d in done]
    assert all(not d.error and d.streams == 1 and len(d.digests) == 1 for d in done)


async def test_prompts_differ_within_boot_not_between_boots(serve, asked):
    """No two requests of a boot begin alike, and each has a salt of its own; another boot sends the same texts."""
    url = serve()
    for _ in range(2):
        await sent(url, rounds=2, seed=3)
    first, second = asked()[:10], asked()[10:]
    texts = [body["messages"][0]["content"] for body in first]
    assert len({text[:10] for text in texts}) == 10
    assert texts == [body["messages"][0]["content"] for body in second]
    assert [body["seed"] for body in first] == [body["seed"] for body in second]
    assert len({body["cache_salt"] for body in first + second}) == 20
    await client.send_prompt(Server(url, "x"), SUITE.prompts[0], Sampling(seed=4))
    assert asked()[-1]["messages"][0]["content"] not in texts


async def test_repeated_prompt_is_sent_unchanged(serve, asked):
    """The same text each time and no salt, so that a prefix cache answers from the second on."""
    await sent(serve(), suites._repeat_suite(SUITE, "repeat:three"), rounds=2)
    bodies = asked()
    assert len(bodies) == 20
    assert {body["messages"][0]["content"] for body in bodies} == {"first", "second", "third"}
    assert not any("cache_salt" in body for body in bodies)


async def test_a_second_turn_carries_the_first(serve, asked):
    """Question and answer of the same round go before it; with both at once there is no answer yet."""
    url, pair = serve(), suites.load_suite("seed-q1q2")
    done = await sent(url, pair, rounds=2)
    assert [(request.kind, request.error) for request in done] == [("Q1", ""), ("Q2", "")] * 2
    for first, second in zip(asked()[::2], asked()[1::2], strict=True):
        question, answer, follow_up = second["messages"]
        assert first["messages"] == [question]
        assert (answer["role"], bool(answer["content"])) == ("assistant", True)
        assert follow_up == {"role": "user", "content": "add exponential button"}
    assert (await sent(url, pair, streams=2))[0].error.startswith("Q1 ")


async def test_length_and_temperature_are_as_requested(serve, asked):
    """A fixed answer goes on past its end; what is left to the server is not sent."""
    url = serve()
    await client.send_prompt(Server(url, "x"), SUITE.prompts[2], Sampling(0.5, seed=1), number=2)
    await client.send_prompt(Server(url, "x"), SUITE.prompts[2], Sampling(0.01, temperature=None, fixed=False))
    fixed, free = asked()
    assert (fixed["max_tokens"], fixed["ignore_eos"], fixed["temperature"], fixed["seed"]) == (30, True, 0.0, 1)
    assert (free["max_tokens"], free["ignore_eos"], "temperature" in free) == (8, False, False)
    assert fixed["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize(
    ("samplers", "temperature", "expected"),
    [
        (("FlashInfer",), None, (False, "FlashInfer")),
        (("FlashInfer",), 0.6, (False, "FlashInfer")),
        (("FlashInfer",), 0.0, (True, "none, greedy")),
        ((), 0.6, (True, "PyTorch, seed 5")),
    ],
)
async def test_seed_that_changes_sampler_is_not_sent(serve, asked, samplers, temperature, expected):
    """Which requests of an experiment have one, and what is said to draw their tokens."""
    of = modes(seed=5, temperature=temperature, fixed=False, scale=0.5)
    sampling = boot.choose_sampling(of, samplers)
    await client.send_prompt(Server(serve(), "x"), SUITE.prompts[0], sampling)
    (body,) = asked()
    assert ("seed" in body, sampling.name_sampler(samplers)) == expected
    assert (body["ignore_eos"], body["max_tokens"]) == (False, 10)


async def test_steps_are_known_per_request_or_absent(serve):
    """Alone, the server's counters tell them; beside others, only the answer itself can."""
    url = serve()
    assert {(d.steps, d.accepted) for d in await sent(url)} == {(5.0, 15.0), (10.0, 30.0)}
    assert {(d.steps, d.accepted, d.streams) for d in await sent(url, streams=2)} == {(None, None, 2)}
    telling = serve("telling")
    for streams in (1, 3):
        assert {(d.steps, d.accepted) for d in await sent(telling, streams=streams)} == {(11, 29)}


def test_each_number_of_streams_is_warmed_up():
    """Kernels for four sequences are loaded before four are measured: each prompt alone, then as many as needed."""
    levels = boot.list_warm_ups(modes(concurrency=(1, 4)), SUITE)
    assert [(streams, suite.requests) for streams, suite in levels] == [(1, 3), (4, 6)]
    assert {prompt.max_tokens for _, suite in levels for prompt in suite.prompts} == {20, 40, 60}


@pytest.mark.parametrize("streams", [1, 2])
async def test_cancelled_suite_leaves_no_request_behind(serve, asked, streams):
    async with aclosing(
        client.send_suite(Server(serve("slow=0.2"), "x"), SUITE, Sampling(), streams=streams)
    ) as requests:
        async for _ in requests:
            break
    await asyncio.sleep(0.5)
    assert len(asked()) <= 2 * streams


async def _drip(piece: bytes, status: int, writer: asyncio.StreamWriter) -> None:
    """Send `piece` again and again, as long as somebody listens."""
    writer.write(f"HTTP/1.1 {status} x\r\nConnection: close\r\n\r\n".encode())
    while True:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("piece", "status"),
    [
        (b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n', 200),
        (b"x", 500),
    ],
)
async def test_dripping_answer_ends_at_deadline(piece, status, monkeypatch):
    """A chunk comes in time for ever: the request ends with an error that says after how long, and for how much."""
    monkeypatch.setattr(client, "_DEADLINE", 0.5)
    monkeypatch.setattr(client, "_DEADLINE_PER_TOKEN", 0.025)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await _drip(piece, status, writer)

    async with serving(answer) as url:
        done = await asyncio.wait_for(client.send_prompt(Server(url, "x"), SUITE.prompts[0], Sampling()), 120)
        suite = await asyncio.wait_for(sent(url, SUITE, streams=5), 120)
        probe = await asyncio.wait_for(client.send_probe(Server(url, "x"), 0.25), 120)
    [longest] = [request for request in suite if request.kind == "c"]
    assert len(suite) == 5
    assert all(request.error and request.total >= 0.5 for request in suite)
    assert [re.findall(r"[\d.]+ s\b|max_tokens=\d+", each.error) for each in (done, longest, probe)] == [
        ["1 s", "max_tokens=20"],
        ["2 s", "max_tokens=60"],
        ["0.25 s", "max_tokens=1"],
    ]


@pytest.mark.parametrize(
    ("prompt_tokens", "prefill_s", "max_tokens", "tok_s", "streams"),
    [
        (32_768, 100, 2000, 3.0, 1),  # a GB10
        (2048, 200, 1000, 8.0, 8),
        (100, 10, 300, 1.0, 1),  # the demo on a busy processor
    ],
)
def test_no_valid_request_is_aborted(prompt_tokens, prefill_s, max_tokens, tok_s, streams):
    """However slow the machine: prefill at so many tok/s, decoding at so many tok/s shared by the streams."""
    needed = streams * (prompt_tokens / prefill_s + max_tokens / tok_s)
    assert client.compute_deadline(max_tokens) > 1.5 * needed


@pytest.mark.parametrize("rest", [b"", b"data: {}\n\n"])
async def test_complete_answer_ends_without_waiting(rest, monkeypatch):
    """A server that has said [DONE] and holds the connection open, silent or not, keeps nobody until the deadline."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + PIECE + b"\n\n")
        writer.write(b'data: {"usage": {"completion_tokens": 2}}\n\ndata: [DONE]\n\n')
        left = asyncio.ensure_future(reader.read())
        while not left.done():
            writer.write(rest)
            await writer.drain()
            await asyncio.sleep(0.02)

    async with serving(answer) as url:
        done = await asyncio.wait_for(client.send_first_request(Server(url, "x")), 120)
    assert (done.error, done.tokens) == ("", 2)
    assert done.total < client._ENDING / 2  # what came after is no part of it


@pytest.mark.parametrize(("tokens", "refused"), [(8, False), (9, True), (10**15, True)])
async def test_more_tokens_than_requested_are_error(tokens, refused):
    """Of eight that were asked for: no speed is computed from what no server has generated."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + PIECE + b"\n\n")
        writer.write(b'data: {"usage": {"completion_tokens": %d}}\n\ndata: [DONE]\n\n' % tokens)

    async with serving(answer) as url:
        done = await client.send_first_request(Server(url, "x"))
    assert bool(done.error) is refused


async def test_finished_answer_frees_connection_for_next_request(monkeypatch):
    """As vLLM's do: a new connection for each request would be measured with it."""
    connections = 0
    body = PIECE + b'\n\ndata: {"usage": {"completion_tokens": 2}}\n\ndata: [DONE]\n\n'

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while head := await reader.readuntil(b"\r\n\r\n"):
            await reader.readexactly(sum(map(int, re.findall(rb"(?i)content-length: (\d+)", head))))
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            writer.write(b"%x\r\n%s\r\n" % (len(body), body))
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.write(b"0\r\n\r\n")

    async with serving(answer) as url:
        done = await asyncio.wait_for(sent(url), 120)
    assert [each.error for each in done] == [""] * 5
    assert connections == 1


# A kilobyte each: what takes time is their number, what has a limit their bytes.
PIECE = b'data: {"choices": [{"delta": {"content": "x"}}], "padding": "%s"}' % (b"x" * 1000)
ANSWERS = {
    "endless": (200, (PIECE + b"\n\n") * 50, "more pieces than the 8 tokens"),
    "endless without pieces": (
        200,
        b'data: {"padding": "%s"}\n\n' % (b"x" * 50_000),
        "the answer has more than 64 MiB",
    ),
    "no line end": (200, b"x" * (1 << 16), "the answer has a line of more than 1 MiB"),
    "endless error": (500, b"wrong " * 10_000, "HTTP 500: wrong wrong"),
    "no key": (401, b'{"error": "Unauthorized"} ' * 10_000, "VLLM_API_KEY is for one launched here"),
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_an_answer_without_end_takes_little_memory(kind):
    """A server that never stops sending is left, and why is said; what a key is missing for, too."""
    status, piece, words = ANSWERS[kind]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status} x\r\nConnection: close\r\n\r\n".encode())
        while True:
            writer.write(piece)
            await writer.drain()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with serving(answer) as url:
        done = await asyncio.wait_for(client.send_first_request(Server(url, "x")), 120)
    assert words in done.error
    assert len(done.error) < 500
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 << 10  # KiB, of both ends


def answering(*parts: bytes) -> AbstractAsyncContextManager[str]:
    """Return a server that answers every request so, whose address is yielded."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.writelines(parts)
        await writer.drain()

    return serving(answer)


async def test_unreadable_cookie_is_dropped_silently(recwarn):
    """Python's own parser prints a traceback of it; no cookie is kept or sent."""
    cookie = b"Set-Cookie: a=b; expires=01 Jan " + b"9" * 5000 + b" 00:00:00\r\n\r\n"
    async with (
        answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", cookie) as url,
        bounded_http.open_client(timeout=60) as http,
    ):
        answered = await http.get(url)
    of_cookies = [str(each.message) for each in recwarn if "http.cookiejar" in str(each.message)]
    assert (answered.status_code, dict(http.cookies), of_cookies) == (200, {}, [])
