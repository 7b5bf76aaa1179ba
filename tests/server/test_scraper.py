"""Servers whose /metrics lie: one answer costs a bounded time and memory, and nobody waits for it at the end."""

import asyncio
import itertools
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager

import httpx
import pytest

from dflash_tui.benchmark.client import fetch_metrics
from dflash_tui.vllm_output.metrics import Scrape
from tests.support import recordings
from tests.support.raw_server import serving
from tests.support.waiting import PATIENCE, until

REAL = recordings.metrics("h200-vllm-0.26.0/g26-dflash-compile", "end").encode()
GENERATED = b"vllm:generation_tokens_total"
LABELS = GENERATED + b"{" + b",".join(b'a%d="b"' % n for n in range(300_000)) + b"} 1\n"
Respond = Callable[[asyncio.StreamWriter], Awaitable[None]]


def responding(respond: Respond, *, chunked: bool = False) -> AbstractAsyncContextManager[str]:
    """Serve what `respond` writes to every request, as a body that ends with the connection, or in chunks."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        framing = b"Transfer-Encoding: chunked" if chunked else b"Connection: close"
        writer.write(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n")
        await respond(writer)
        await writer.drain()

    return serving(answer)


def writing(*bodies: bytes) -> Respond:
    """Write one of the bodies after the other, again and again."""
    turns = itertools.cycle(bodies)

    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(next(turns))

    return respond


async def fetch(url: str) -> Scrape:
    async with httpx.AsyncClient(base_url=url, timeout=60.0, trust_env=False) as client:
        return await fetch_metrics(client)


async def test_metric_with_300_000_labels_is_skipped():
    """The rest of the answer counts, and the line costs no more than looking for its end."""
    async with responding(writing(LABELS + REAL)) as url:
        scrape = await asyncio.wait_for(fetch(url), PATIENCE)
    assert scrape.counters.steps == 264


@pytest.fixture
def attached() -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Start `attach URL` without a screen, and end whatever is left of it."""
    started: list[subprocess.Popen[bytes]] = []

    def start(url: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dflash_tui", "attach", url, "--plain"]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


async def test_ctrl_c_ends_attach_during_hostile_answer(attached):
    """The server has sent its worst, and has answered whatever it is asked, when Ctrl-C comes."""
    sent = 0

    async def respond(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(GENERATED + b" 1\n" + LABELS)
        await writer.drain()
        sent += 1

    async with responding(respond) as url:
        process = attached(url)
        await until(lambda: sent >= 4)  # /health, /metrics, /version, /v1/models
        process.send_signal(signal.SIGINT)
        await until(lambda: process.poll() is not None, 60)
    assert process.returncode == 130
