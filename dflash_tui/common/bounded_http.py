"""GET requests with a limit of size, number of pieces and time, since anybody may listen on a port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx

# The /metrics of a real server are some 100 kB, of eight engines under one port less than 1 MB.
BODY_LIMIT = 4 << 20
# Each costs some 20 µs however small it is, and a server may send its answer byte by byte. An answer of BODY_LIMIT in
# packets as small as a network's comes in 3000.
PIECES_LIMIT = 4096
WHOLE = 10.0
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
        BadResponse: its status is not 200, or it is larger than `BODY_LIMIT` or in more than `PIECES_LIMIT` pieces.
        httpx.HTTPError: there is no answer.
        TimeoutError: it was not complete within `WHOLE` seconds.
    """
    name, size, pieces = name or url, 0, 0
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
