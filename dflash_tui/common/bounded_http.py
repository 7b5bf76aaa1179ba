"""GET requests with a limit of size, number of pieces, time and work, since anybody may listen on a port."""

from __future__ import annotations

import asyncio
import functools
import math
import time
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

import httpx

T = TypeVar("T")

# The /metrics of a real server are some 100 kB, of eight engines under one port less than 1 MB.
BODY_LIMIT = 4 << 20
# Each costs some 20 µs however small it is, and a server may send its answer byte by byte. An answer of BODY_LIMIT in
# packets as small as a network's comes in 3000.
PIECES_LIMIT = 4096
WHOLE = 10.0
# Seconds of processor time for a whole request. An answer of BODY_LIMIT takes a fifth of it; a server may send other
# things than a body without end, as interim responses (RFC 9110, 15.2).
WORK = 0.5
# Nothing packed: a small answer could unpack to a large one.
PLAIN = {"Accept-Encoding": "identity"}
FAILED = (httpx.HTTPError, httpx.InvalidURL, TimeoutError)


class BadResponse(Exception):
    """The answer is too large or has an error status; `status` is its HTTP status."""

    def __init__(self, what: str, status: int = 200) -> None:
        super().__init__(what)
        self.status = status


async def fetch_bounded(client: httpx.AsyncClient, url: str, name: str = "") -> bytes:
    """Return the body of the answer to GET `url`, called `name` in errors; see `feed_bounded`."""
    body = bytearray()
    await feed_bounded(client, url, body.extend, name)
    return bytes(body)


async def feed_bounded(client: httpx.AsyncClient, url: str, take: Callable[[bytes], object], name: str = "") -> None:
    """Give the body of the answer to GET `url` to `take`, piece by piece.

    Args:
        client: what asks; the request says that nothing may be packed.
        url: the address, or a path of the client's.
        take: called with each piece, of 64 KiB at most, between which everything else goes on.
        name: what the address is called in errors.

    Raises:
        BadResponse: its status is not 200, it is larger than `BODY_LIMIT` or in more than `PIECES_LIMIT` pieces, or it
            takes more than `WORK` seconds of processor time.
        httpx.HTTPError: there is no answer.
        TimeoutError: it was not complete within `WHOLE` seconds.
    """
    await limit_work(_feed(client, url, take, name or url), WORK, name or url)


async def _feed(client: httpx.AsyncClient, url: str, take: Callable[[bytes], object], name: str) -> None:
    size, pieces = 0, 0
    async with asyncio.timeout(WHOLE), client.stream("GET", url, headers=PLAIN) as answer:
        if answer.status_code != 200:
            raise BadResponse(f"{name}: HTTP {answer.status_code}", answer.status_code)
        async for piece in answer.aiter_raw():
            size, pieces = size + len(piece), pieces + 1
            if size > BODY_LIMIT:
                raise BadResponse(f"{name}: more than {BODY_LIMIT >> 20} MiB")
            if pieces > PIECES_LIMIT:
                raise BadResponse(f"{name}: in more than {PIECES_LIMIT} pieces")
            take(piece)
            await asyncio.sleep(0)  # several pieces may be here already, which would be read without a pause


@types.coroutine
def limit_work(work: Coroutine[Any, Any, T], seconds: float, name: str) -> Generator[Any, Any, T]:
    """Await `work` and return its result, as long as that takes at most so many seconds of processor time.

    Time in which it waits does not count, nor what other tasks do meanwhile.

    Raises:
        BadResponse: it took more; `name` is what the error calls it.
    """
    spent, proceed = 0.0, functools.partial(work.send, None)
    while True:
        began = time.thread_time()
        try:
            awaited = proceed()
        except StopIteration as end:
            result: T = end.value
            return result
        spent += time.thread_time() - began
        try:
            proceed = functools.partial(work.send, (yield awaited))
        except BaseException as error:  # noqa: BLE001 - as a cancellation, which `work` raises again
            proceed = functools.partial(work.throw, error)
        else:
            if spent > seconds:
                too_much = BadResponse(f"{name}: more than {seconds:g} s of processor time")
                proceed, spent = functools.partial(work.throw, too_much), -math.inf  # to clean up takes what it takes
