"""Ask the hub for a repository's access and files over HTTP; whatever it answers is untrusted text."""

from __future__ import annotations

import asyncio
import re
from enum import StrEnum
from urllib.parse import quote

import httpx
import msgspec

from dflash_tui.common.sanitizer import join_clean_lines
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.engines.hub import cache
from dflash_tui.planning.field_types import HIGHEST_PORT

TIMEOUT = 10.0
"""Seconds that an answer of the hub may take."""
_BODY_LIMIT = 8_000_000
_TEXT_LIMIT = 300
_REDIRECTS = 5


class Access(StrEnum):
    """Whether this user may download a model from the hub."""

    OPEN = "open"
    GRANTED = "granted"
    NEEDS_TOKEN = "needs token"  # noqa: S105 - words for the user
    TOKEN_REFUSED = "token refused"  # noqa: S105
    TERMS_NOT_ACCEPTED = "terms not accepted"
    NOT_FOUND = "not found"
    REVISION_NOT_FOUND = "revision not found"
    UNREACHABLE = "unreachable"
    OFFLINE = "offline"

    @property
    def ok(self) -> bool:
        """Whether its files can be fetched."""
        return self in {Access.OPEN, Access.GRANTED}


class LargeFile(msgspec.Struct):
    """The storage of a large file."""

    sha256: str = ""


class RepositoryFile(msgspec.Struct):
    """A file as the hub lists it; nothing of it is checked yet."""

    rfilename: str
    size: int | None = None
    blob: str | None = msgspec.field(name="blobId", default=None)
    lfs: LargeFile | None = None


class RepositoryInfo(msgspec.Struct):
    """The hub's description of a repository: commit, files, whether it is gated or private."""

    sha: str
    siblings: list[RepositoryFile] = []
    gated: bool | str | None = None
    private: bool = False


register_type(RepositoryInfo)


class HubAccessError(Exception):
    """The hub does not give access: why, the evidence, and whether the model is known to be gated."""

    def __init__(self, access: Access, detail: str, gated: bool | None = None) -> None:
        super().__init__(detail)
        self.access, self.detail, self.gated = access, detail, gated


async def ask_hub(repo: str, revision: str) -> RepositoryInfo:
    """Return the hub's description of a repository; asks for a file first, since a gated model's list is public.

    Raises:
        HubAccessError: the hub refuses access, may not be asked, or did not answer within ten seconds.
    """
    quoted, kind = quote(revision, safe=""), "" if repo.startswith(cache.DATASETS) else "models/"
    body = await _ask(
        ("HEAD", f"{repo}/resolve/{quoted}/config.json"), ("GET", f"api/{kind}{repo}/revision/{quoted}?blobs=true")
    )
    try:
        info = msgspec.json.decode(body, type=RepositoryInfo)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HubAccessError(Access.UNREACHABLE, quote_hub_text(f"not an answer of the hub: {error}")) from None
    if not re.fullmatch(r"[0-9a-f]{40}", info.sha):
        raise HubAccessError(Access.UNREACHABLE, "not an answer of the hub: `sha` is not a commit")
    return info


async def fetch_small_file(repo: str, revision: str, name: str) -> bytes:
    """Return a file of a repository, such as its config.json, as the hub has it.

    Raises:
        HubAccessError: the hub refuses access, may not be asked, or did not answer within ten seconds.
    """
    return await _ask(("GET", f"{repo}/resolve/{quote(revision, safe='')}/{name}"))


async def fetch_description(repo: str, field: str) -> bytes:
    """Return the name of a repository and one more field of its description, as the hub has them.

    Raises:
        HubAccessError: the hub refuses access, may not be asked, or did not answer within ten seconds.
    """
    return await _ask(("GET", f"api/models/{repo}?expand[]={field}"))


async def list_models(query: str) -> bytes:
    """Return the hub's list of the models that fit a query.

    Raises:
        HubAccessError: the hub refuses access, may not be asked, or did not answer within ten seconds.
    """
    return await _ask(("GET", f"api/models?{query}"))


async def _ask(*requests: tuple[str, str]) -> bytes:
    """Send requests, each a method and a path, one after the other, and return the body of the last answer."""
    if cache.is_hub_offline():
        raise HubAccessError(Access.OFFLINE, "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set")
    token = cache.read_hub_token()
    if token and not (token.isascii() and token.isprintable()):
        raise HubAccessError(Access.TOKEN_REFUSED, "the token contains characters that no token may have")
    headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        async with asyncio.timeout(TIMEOUT), httpx.AsyncClient(timeout=TIMEOUT, headers=headers) as client:
            bodies = [await _send(client, method, f"{cache.hub_endpoint()}/{path}") for method, path in requests]
    except TimeoutError:
        raise HubAccessError(Access.UNREACHABLE, f"no answer within {TIMEOUT:.0f} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
        raise HubAccessError(Access.UNREACHABLE, quote_hub_text(f"{type(error).__name__}: {error}")) from None
    except HubAccessError as error:
        raise HubAccessError(error.access, quote_hub_text(error.detail), error.gated) from None
    return bodies[-1]


async def _send(client: httpx.AsyncClient, method: str, url: str) -> bytes:
    """Send a request and return the body of its answer.

    Redirects are followed by hand. httpx leaves the token out of a request to another origin, and a HEAD that is
    sent to another origin (the storage) has its answer: the file may be read.
    """
    request = client.build_request(method, url)
    for _ in range(_REDIRECTS):
        if (request.url.port or 0) > HIGHEST_PORT:  # httpx itself ends with a group of errors
            raise HubAccessError(Access.UNREACHABLE, f"{request.url} has no port of that number")
        response = await client.send(request, stream=True)
        try:
            following = response.next_request
            if following is None:
                _check(response, with_token="Authorization" in request.headers)
                return await _body(response)
        finally:
            await response.aclose()
        elsewhere = (following.url.scheme, following.url.netloc) != (request.url.scheme, request.url.netloc)
        if method == "HEAD" and elsewhere:
            return b""
        request = following
    raise HubAccessError(Access.UNREACHABLE, f"more than {_REDIRECTS} redirects")


async def _body(response: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > _BODY_LIMIT:
            raise HubAccessError(Access.UNREACHABLE, f"the answer is larger than {_BODY_LIMIT // 1_000_000} MB")
    return bytes(body)


def _check(response: httpx.Response, *, with_token: bool) -> None:
    """Raise HubAccessError as huggingface_hub's `hf_raise_for_status` does; a missing config.json is no refusal."""
    status, code = response.status_code, response.headers.get("X-Error-Code", "")
    if response.is_success or code == "EntryNotFound":
        return
    message = response.headers.get("X-Error-Message", "")
    detail = f"HTTP {status}{f' {code}' if code else ''}{f': {message}' if message else ''}"
    gated: bool | None = None
    if "Invalid credentials" in message or (status == 401 and code == "GatedRepo" and with_token):
        access = Access.TOKEN_REFUSED
    elif code == "GatedRepo":
        access, gated = (Access.TERMS_NOT_ACCEPTED if with_token else Access.NEEDS_TOKEN), True
    elif code == "RevisionNotFound":
        access = Access.REVISION_NOT_FOUND
    elif code == "RepoNotFound" or status in {401, 404} or "is disabled" in message:
        # The hub does not tell a stranger whether a model is private or does not exist.
        access = Access.NOT_FOUND
    elif status == 403 and with_token and message:
        access = Access.TOKEN_REFUSED
    else:
        access = Access.UNREACHABLE
    raise HubAccessError(access, detail, gated)


def quote_hub_text(text: str) -> str:
    """Return the start of a text from outside as one line that a terminal does not act on, without the token."""
    return join_clean_lines(text)[:_TEXT_LIMIT]
