"""GET requests with limits of size and time, since any program may listen on a port."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported with httpx when a request is made
    from http.cookiejar import CookieJar

    import httpx

# A server's /metrics is about 100 kB, with eight engines behind one port less than 1 MB.
BODY_LIMIT = 4 << 20
WHOLE = 10.0
# No compression: a small answer could expand to a large one.
PLAIN = {"Accept-Encoding": "identity"}


def list_failures(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the exceptions of a request without an answer, and `others`, for an `except`.

    httpx does not wrap the error of a TLS record that breaks after the handshake.
    """
    import httpx

    return (*others, httpx.HTTPError, httpx.InvalidURL, TimeoutError, ssl.SSLError)


class BadResponse(Exception):
    """The answer is too large or has the HTTP error status `status`."""

    def __init__(self, what: str, status: int = 200) -> None:
        super().__init__(what)
        self.status = status


def describe_failure(error: Exception) -> str:
    """Return why a request failed: `no answer within 5 s`, or the message of httpx or TLS."""
    import httpx

    if isinstance(error, httpx.TimeoutException):
        seconds = None
        with contextlib.suppress(RuntimeError):  # the error has no request
            seconds = error.request.extensions.get("timeout", {}).get("read")
        return f"no answer within {seconds:g} s" if seconds else "no answer in time"
    if isinstance(error, TimeoutError):
        return f"no complete answer within {WHOLE:g} s"
    if isinstance(error, ssl.SSLError):
        reason = (getattr(error, "reason", None) or "TLS").replace("_", " ").lower()
        return f"the encrypted connection broke ({reason}): check the server's TLS set-up, or the proxy in front of it"
    return str(error) or type(error).__name__


def open_client(
    base_url: str = "", *, timeout: float, reading: float | None = None, headers: Mapping[str, str] | None = None
) -> httpx.AsyncClient:
    """Return a client without proxies, redirects and cookies.

    `timeout` is in seconds for each part of a request; `reading` replaces it for each part of an answer.
    """
    import httpx

    plain = PLAIN | dict(headers or {})
    return httpx.AsyncClient(
        base_url=base_url,
        timeout=httpx.Timeout(timeout, read=reading or timeout),
        trust_env=False,
        headers=plain,
        cookies=_make_empty_jar(),
        verify=_load_certificates(),
    )


@functools.cache
def _make_empty_jar() -> CookieJar:
    """Return a jar that ignores cookies: the library's parser prints a traceback for one that it cannot read."""
    from http.cookiejar import CookieJar

    class EmptyJar(CookieJar):
        def extract_cookies(self, response: Any, request: Any) -> None:
            pass

    return EmptyJar()


@functools.cache
def _load_certificates() -> ssl.SSLContext:
    """Return the trusted certificate authorities, read once: it takes 15 ms, and answers are timed."""
    import httpx

    return httpx.create_ssl_context(trust_env=False)


async def fetch_bounded(client: httpx.AsyncClient, url: str, name: str = "") -> bytes:
    """Return the body of GET `url`, which errors call `name`; see `feed_bounded`."""
    body = bytearray()
    await feed_bounded(client, url, body.extend, name)
    return bytes(body)


async def feed_bounded(client: httpx.AsyncClient, url: str, take: Callable[[bytes], object], name: str = "") -> None:
    """Pass the body of GET `url`, which errors call `name`, to `take` in pieces of at most 64 KiB.

    Raises:
        BadResponse: the status is not 200, or the body is larger than `BODY_LIMIT`.
        httpx.HTTPError: there is no answer.
        ssl.SSLError: the encrypted connection broke.
        TimeoutError: the body was not complete within `WHOLE` seconds.
    """
    size, name = 0, name or url
    async with asyncio.timeout(WHOLE), client.stream("GET", url, headers=PLAIN) as answer:
        if answer.status_code != 200:
            raise BadResponse(f"{name}: HTTP {answer.status_code}", answer.status_code)
        async for piece in answer.aiter_raw():
            size += len(piece)
            if size > BODY_LIMIT:
                raise BadResponse(f"{name}: more than {BODY_LIMIT >> 20} MiB")
            take(piece)
            await asyncio.sleep(0)  # lets other tasks run: pieces that have arrived are read without a pause
