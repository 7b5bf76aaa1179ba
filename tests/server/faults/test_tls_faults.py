"""A TLS record that is broken after the handshake: a failed request everywhere, as any other, said in plain words."""

import asyncio
import json
import ssl
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from dflash_tui.benchmark import client
from dflash_tui.benchmark.server import Server
from dflash_tui.cli import console
from dflash_tui.cli.commands import up as commands_up
from dflash_tui.cli.parser import build_parser
from dflash_tui.common import bounded_http
from dflash_tui.monitoring import foreign_server
from dflash_tui.monitoring.foreign_server import ForeignServer
from tests.support.raw_server import serving
from tests.support.waiting import PATIENCE, until

BROKEN = b"\x17\x03\x03\x00\x40" + b"z" * 64
WORDS = "the encrypted connection broke (decryption failed or bad record mac): check the server's TLS set-up"
METRICS = b"vllm:generation_tokens_total 5\n"
STREAM = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\ndata: {"usage": {"completion_tokens": 2}}\n\n'


def build_context(protocol: int) -> ssl.SSLContext:
    """Return a context whose connections are encrypted without a certificate, so that nobody needs to keep a key."""
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AECDH-AES128-SHA:@SECLEVEL=0")
    return context


def breaking(body: bytes, whole: int = 0) -> AbstractAsyncContextManager[str]:
    """Answer so many requests with `body`, and each later one with its beginning and a broken record."""
    count = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        while await reader.readuntil(b"\r\n\r\n"):
            count += 1
            length = len(body) + (count > whole)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length + body)
            await writer.drain()
            if count > whole:
                encrypted: Any = writer.transport
                encrypted._ssl_protocol._transport.write(BROKEN)

    return serving(answer, build_context(ssl.PROTOCOL_TLS_SERVER))


@pytest.fixture(autouse=True)
def trusting(monkeypatch):
    """Have clients take the connections of `breaking`."""
    monkeypatch.setattr(bounded_http, "_load_certificates", lambda: build_context(ssl.PROTOCOL_TLS_CLIENT))
    monkeypatch.setattr(foreign_server, "INTERVAL", 0.05)


async def test_attach_continues_after_tls_error(capsys):
    """It ended with the advice to make the folder writable."""
    async with breaking(METRICS, 20) as url:
        console.use_json(True)
        args = build_parser().parse_args(["attach", url, "--json"])
        watching = asyncio.create_task(commands_up._print_server(args, ForeignServer(url)))
        lines: list[str] = []

        def is_unhealthy() -> bool:
            lines.extend(capsys.readouterr().out.splitlines())
            assert not watching.done()
            told = [json.loads(line) for line in lines if line]
            return any(one.get("health") == "unhealthy" and one["detail"].startswith(WORDS) for one in told)

        await until(is_unhealthy)
        watching.cancel()


async def test_failed_request_gives_reason():
    """In the middle of its answer."""
    async with breaking(STREAM) as url:
        done = await asyncio.wait_for(client.send_first_request(Server(url, "x")), PATIENCE)
    assert done.error.startswith(WORDS)
