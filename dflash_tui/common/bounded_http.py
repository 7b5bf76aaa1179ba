"""GET requests with a limit of size and time, since anybody may listen on a port."""

from __future__ import annotations

import asyncio

import httpx

# The /metrics of a real server are some 100 kB, of eight engines under one port less than 1 MB.
BODY_LIMIT = 4 << 20
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
    """Return the body of the answer to GET `url`, called `name` in errors; the client sends `PLAIN`.

    Raises:
        BadResponse: its status is not 200, or it is larger than `BODY_LIMIT`.
        httpx.HTTPError: there is no answer.
        TimeoutError: it was not complete within `WHOLE` seconds.
    """
    name, body = name or url, bytearray()
    async with asyncio.timeout(WHOLE), client.stream("GET", url, headers=PLAIN) as answer:
        if answer.status_code != 200:
            raise BadResponse(f"{name}: HTTP {answer.status_code}", answer.status_code)
        async for chunk in answer.aiter_raw(1 << 16):
            body += chunk
            if len(body) > BODY_LIMIT:
                raise BadResponse(f"{name}: more than {BODY_LIMIT >> 20} MiB")
    return bytes(body)
