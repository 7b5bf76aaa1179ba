"""GET requests with a limit of size, number of pieces, time and work, since anybody may listen on a port."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import ssl
import time
import types
from collections.abc import Callable, Coroutine, Generator, Mapping
from http.cookiejar import CookieJar
from typing import Any, TypeVar

import httpx

from dflash_tui.common.sanitizer import clean_line

T = TypeVar("T")

# The /metrics of a real server are some 100 kB, of eight engines under one port less than 1 MB.
BODY_LIMIT = 4 << 20
# Each costs some 20 µs however small it is, and a server may send its answer byte by byte. An answer of BODY_LIMIT in
# packets as small as a network's comes in 3000.
PIECES_LIMIT = 4096
WHOLE = 10.0
# Seconds of processor time for a whole request, what is made of its body included. An answer of BODY_LIMIT takes a
# fifth of it, that of a real server a hundredth; a server may send other things than a body without end, as interim
# responses (RFC 9110, 15.2).
WORK = 0.5
# The share of a core that answers may take while a server is watched, and how many times more seldom it is asked at
# most when they take more: eight seconds between two readings are no hole in a chart yet.
SHARE, _SLOWEST = 0.1, 8
# Nothing packed: a small answer could unpack to a large one.
PLAIN = {"Accept-Encoding": "identity"}
_LONGEST_NAME = 40
# What a request without an answer raises. httpx lets the error of a TLS record that is broken after the handshake
# through, and whoever does not know it takes it for one of a file: it is an OSError.
FAILED = (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ssl.SSLError)


class BadResponse(Exception):
    """The answer is too large or has an error status; `status` is its HTTP status."""

    def __init__(self, what: str, status: int = 200) -> None:
        super().__init__(what)
        self.status = status


def describe_failure(error: Exception) -> str:
    """Return why there is no answer, or none that is used: `no answer within 5 s`, or what httpx or TLS says."""
    if isinstance(error, httpx.TimeoutException):
        seconds = None
        with contextlib.suppress(RuntimeError):  # no request belongs to it
            seconds = error.request.extensions.get("timeout", {}).get("read")
        return f"no answer within {seconds:g} s" if seconds else "no answer in time"
    if isinstance(error, TimeoutError):
        return f"no complete answer within {WHOLE:g} s"
    if isinstance(error, ssl.SSLError):
        reason = clean_line(getattr(error, "reason", None) or "TLS").replace("_", " ").lower()
        return f"the encrypted connection broke ({reason}): check the server's TLS set-up, or the proxy in front of it"
    return clean_line(str(error)) or type(error).__name__


def open_client(
    base_url: str = "", *, timeout: float | httpx.Timeout, headers: Mapping[str, str] | None = None
) -> httpx.AsyncClient:
    """Return a client that asks no proxy, goes nowhere else, and keeps nothing of what a server says.

    A jar of cookies would grow with each answer, and be sent back.

    Args:
        base_url: what paths are added to.
        timeout: seconds for each part of a request.
        headers: are sent with each request.
    """
    plain = PLAIN | dict(headers or {})
    return httpx.AsyncClient(
        base_url=base_url,
        timeout=timeout,
        trust_env=False,
        headers=plain,
        cookies=_NoCookies(),
        verify=_load_certificates(),
        event_hooks={"response": [_forget_redirect]},
    )


class _NoCookies(CookieJar):
    """Reads no cookie: the library's parser prints a traceback where one cannot be read."""

    def extract_cookies(self, response: Any, request: Any) -> None:
        pass


async def _forget_redirect(response: httpx.Response) -> None:
    """Drop where an answer redirects to: httpx would read it, though nobody goes there, and fail at what is no name."""
    response.headers.pop("Location", None)


@functools.cache
def _load_certificates() -> ssl.SSLContext:
    """Return the authorities whose certificates are trusted, read once: it takes 15 ms, while answers are timed."""
    return httpx.create_ssl_context(trust_env=False)


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
        ssl.SSLError: the encrypted connection broke.
        TimeoutError: it was not complete within `WHOLE` seconds.
    """
    await limit_work(_feed(client, url, take, name or url), WORK, name or url)


async def _feed(client: httpx.AsyncClient, url: str, take: Callable[[bytes], object], name: str) -> None:
    size, pieces = 0, 0
    async with asyncio.timeout(WHOLE), client.stream("GET", url, headers=PLAIN) as answer:
        if answer.status_code != 200:
            raise BadResponse(f"{name}: HTTP {answer.status_code}", answer.status_code)
        refuse_packed(answer, name)
        async for piece in answer.aiter_raw():
            size, pieces = size + len(piece), pieces + 1
            if size > BODY_LIMIT:
                raise BadResponse(f"{name}: more than {BODY_LIMIT >> 20} MiB")
            if pieces > PIECES_LIMIT:
                raise BadResponse(f"{name}: in more than {PIECES_LIMIT} pieces")
            take(piece)
            await asyncio.sleep(0)  # several pieces may be here already, which would be read without a pause


def refuse_packed(answer: httpx.Response, name: str) -> None:
    """Raise BadResponse for an answer that is packed, though none was to be: its bytes would be read as text."""
    packing = clean_line(answer.headers.get("Content-Encoding", ""))[:_LONGEST_NAME]
    if packing.lower() not in {"", "identity"}:
        raise BadResponse(f"{name} is packed ({packing}), and nothing packed was asked for")


async def limit_work(work: Coroutine[Any, Any, T], seconds: float, name: str) -> T:
    """Await `work` and return its result, as long as that takes at most so many seconds of processor time.

    Time in which it waits does not count, nor what other tasks do meanwhile.

    Raises:
        BadResponse: it took more; `name` is what the error calls it.
    """
    left = seconds

    def count(spent: float) -> Exception | None:
        nonlocal left
        left -= spent
        if left >= 0:
            return None
        left = math.inf  # to clean up takes what it takes
        return BadResponse(f"{name}: more than {seconds:g} s of processor time")

    return await _drive(work, count)


class Pace:
    """How often a server is asked while it is watched: less often when its answers cost too much processor time."""

    def __init__(self) -> None:
        self._usual = 0.0

    async def measure(self, work: Coroutine[Any, Any, T]) -> T:
        """Await one look at the server and return its result; what it costs counts for the next ones."""
        cost = 0.0

        def count(spent: float) -> None:
            nonlocal cost
            cost += spent

        try:
            return await _drive(work, count)
        finally:
            self._usual += (cost - self._usual) / 4  # a single one that costs much, as the first, is no habit

    @property
    def slower(self) -> int:
        """How many times more seldom than usual to ask: 1, 2, 4 or 8."""
        return next((times for times in (1, 2, 4) if self._usual <= SHARE * times), _SLOWEST)


@types.coroutine
def _drive(work: Coroutine[Any, Any, T], count: Callable[[float], Exception | None]) -> Generator[Any, Any, T]:
    """Await `work` and give `count` the processor time of each of its parts; what that returns is raised in it."""
    problem: BaseException | None = None
    proceed = functools.partial(work.send, None)
    while True:
        began = time.thread_time()
        try:
            awaited = proceed()
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            problem = count(time.thread_time() - began) or problem
        try:
            proceed = functools.partial(work.send, (yield awaited))
        except BaseException as error:  # noqa: BLE001 - as a cancellation, which `work` raises again
            proceed = functools.partial(work.throw, error)
        else:
            if problem:
                proceed, problem = functools.partial(work.throw, problem), None
