"""Read a file that the user names by its path or its https address, bounded in size and time; nothing of it is run."""

from __future__ import annotations

import asyncio
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.secrets import looks_secret

if TYPE_CHECKING:
    import httpx

_TIMEOUT = 20.0
_REDIRECTS = 5
_HEADERS = {"Accept-Encoding": "identity"}
_TRANSPORT: httpx.AsyncBaseTransport | None = None  # httpx's own; tests answer in its place


def read_named_file(place: str, limit: int) -> tuple[str, bytes]:
    """Return the last part of a path or address without its ending, and what is there.

    Args:
        place: A path, or an address that begins with https://.
        limit: The most bytes.

    Raises:
        UsageError: it is neither, holds a secret, is larger than the limit, or cannot be read.
        DflashError: nobody answers, or not with a file.
    """
    if "://" not in place:
        path = paths.expand_home(place)
        try:
            return path.stem, private_files.read_file(path, limit)
        except OSError as error:
            raise UsageError(f"{place} cannot be read", evidence=error.strerror or str(error)) from None
    _refuse_address(place)
    name = PurePosixPath(unquote(urlsplit(place).path)).stem
    return name, asyncio.run(_fetch(place, limit))


def _refuse_address(address: str) -> None:
    """Raise UsageError for an address that is not fetched: not https, with a password, or none."""
    try:
        parts = urlsplit(address)
        host, user, _ = parts.hostname, parts.username, parts.port
    except ValueError as error:
        evidence = "" if "@" in address else str(error)  # which quotes half of a password with a slash
        raise UsageError("not an address", evidence=evidence) from None
    if parts.scheme != "https":
        raise UsageError(
            f"{parts.scheme}:// is not supported: others could change the file in transit",
            hint="an https:// address, or the path of a file",
        )
    if user is not None or looks_secret(address):
        raise UsageError("the address holds a secret", hint="download the file yourself, and name its path")
    if not host:
        raise UsageError("not an address", evidence="it names no host")


async def _fetch(address: str, limit: int) -> bytes:
    import httpx

    try:
        async with (
            asyncio.timeout(_TIMEOUT),
            httpx.AsyncClient(timeout=_TIMEOUT, transport=_TRANSPORT, headers=_HEADERS) as client,
        ):
            return await _follow(client, address, limit)
    except TimeoutError:
        raise DflashError(f"no answer within {_TIMEOUT:.0f} s", evidence=address) from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
        raise DflashError("the file cannot be fetched", evidence=f"{type(error).__name__}: {error}") from None


async def _follow(client: httpx.AsyncClient, address: str, limit: int) -> bytes:
    """Return the body behind redirects, each of which has to be https, too."""
    request = client.build_request("GET", address)
    for _ in range(_REDIRECTS):
        response = await client.send(request, stream=True)
        try:
            if response.next_request is None:
                return await _read_body(response, limit)
            request = response.next_request
            client.cookies.clear()
            request.headers.pop("Cookie", None)
        finally:
            await response.aclose()
        _refuse_address(str(request.url))
    raise DflashError(f"more than {_REDIRECTS} redirects", evidence=address)


async def _read_body(response: httpx.Response, limit: int) -> bytes:
    if not response.is_success:
        raise DflashError("the file cannot be fetched", evidence=f"HTTP {response.status_code}")
    if response.headers.get("Content-Type", "").startswith("text/html"):
        raise UsageError("the address is that of a web page", hint="name the address of the file itself (raw)")
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > limit:
            raise UsageError(f"the file is larger than {limit >> 10} KiB")
    return bytes(body)
