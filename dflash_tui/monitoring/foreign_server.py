"""Monitor a vLLM server that dflash-tui did not launch, by its URL: health, metrics, version and model.

The server gets only GET requests; nothing is signalled, launched or recorded. Its answers are limited in size and time,
and kept in memory only, since a run folder would claim a plan and a process that are unknown.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec
import psutil

from dflash_tui.benchmark.client import fetch_metrics
from dflash_tui.common import bounded_http
from dflash_tui.common.bounded_http import WHOLE, BadResponse, list_failures
from dflash_tui.common.errors import UsageError
from dflash_tui.common.formatting import format_host_and_port
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.common.secrets import looks_secret
from dflash_tui.events import AnyEvent, Health, HealthChanged, Histogram, LatenciesSampled, Noted, Sampled
from dflash_tui.machine.processes import Listener, list_listeners
from dflash_tui.planning.field_types import HIGHEST_PORT
from dflash_tui.runs import registry

if TYPE_CHECKING:
    import httpx

_Answer = TypeVar("_Answer")
# Never an argument: every user of the machine can read arguments.
KEY_VARIABLE = "DFLASH_TUI_API_KEY"
INTERVAL = 1.0
_TIMEOUT = 5.0
# Seconds for each round of requests to a candidate on this machine.
_SEARCH_TIMEOUT = 1.0
_LOCAL_HOSTS = {"127.0.0.1": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "127.0.0.1", "::1": "::1"}  # noqa: S104
_FIRST_USER_PORT = 1024
_DEFAULT_PORT = "8000"
# Programs that forward a container's port; there may be a server behind it.
_PASSES_ON = re.compile(r"docker-proxy|rootlessport|conmon|pasta|slirp")


class ForeignIdentity(NamedTuple):
    """The model and the version that the server reports; empty where it does not."""

    model: str = ""
    version: str = ""


class ForeignServer:
    """A vLLM server at `url` that dflash-tui did not launch.

    Raises:
        UsageError: the address, or the key in `KEY_VARIABLE`, is invalid.
    """

    def __init__(self, url: str) -> None:
        self.url, self.identity = parse_address(url, f"export {KEY_VARIABLE}"), ForeignIdentity()
        self.answers = False  # whether it has ever answered, if only with an error
        self.fault = ""  # why it does not answer, in one clause
        self._health = Health.STARTING
        self._latencies: tuple[Histogram | None, Histogram | None] = (None, None)
        self._is_noted = False
        self._key = os.environ.get(KEY_VARIABLE, "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise UsageError(
                f"{KEY_VARIABLE} does not hold a valid API key", hint="a key is one line of printable ASCII"
            )

    async def events(self) -> AsyncIterator[AnyEvent]:
        """Poll the server once a second, forever; yield its counters, and its health when that changes."""
        async with self._open_client() as client:
            while True:
                began = time.monotonic()
                for event in await self._poll(client):
                    yield event
                await asyncio.sleep(max(0.05, began + INTERVAL - time.monotonic()))

    async def read(self, path: str) -> bytes:
        """Return the body of a GET of `path`; empty on an error or without an answer."""
        async with self._open_client() as client:
            try:
                return await self._get(client, path)
            except list_failures(BadResponse):
                return b""

    def _open_client(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        return bounded_http.open_client(timeout=_TIMEOUT, headers=headers)

    async def _poll(self, client: httpx.AsyncClient) -> list[AnyEvent]:
        try:
            async with asyncio.timeout(WHOLE):
                await self._get(client, "/health")
                scrape = await _with_key_hint(fetch_metrics(client, self.url + "/metrics"))
                if not self.identity.version:
                    model, version = await _read_identity(client, self.url)
                    self.identity = ForeignIdentity(model, version or "version unknown")
        except list_failures(BadResponse) as error:
            detail = bounded_http.describe_failure(error)
            self.answers = self.answers or isinstance(error, BadResponse)
            if not self.answers and not self.fault:
                self.fault = explain_silence(self.url, error)
            return self._health_change(Health.UNHEALTHY, detail)
        now, self.answers = time.time(), True
        events: list[AnyEvent] = [*self._health_change(Health.HEALTHY), Sampled(now, scrape.counters)]
        if scrape.prefix_cache == "False" and not self._is_noted:
            self._is_noted = True
            events.append(Noted(now, "prefix cache", scrape.prefix_cache))
        latencies = scrape.ttft, scrape.tpot
        if latencies != self._latencies and any(latencies):
            self._latencies = latencies
            events.append(LatenciesSampled(now, *latencies))
        return events

    async def _get(self, client: httpx.AsyncClient, path: str) -> bytes:
        return await _with_key_hint(bounded_http.fetch_bounded(client, self.url + path, path))

    def _health_change(self, health: Health, detail: str = "") -> list[AnyEvent]:
        if health == self._health:
            return []
        self._health = health
        return [HealthChanged(time.time(), health, detail)]


async def _read_identity(client: httpx.AsyncClient, url: str) -> ForeignIdentity:
    version = _text_field(await _fetch_json(client, f"{url}/version"), "version")
    models = await _fetch_json(client, f"{url}/v1/models")
    listed = models.get("data") if isinstance(models, dict) else None
    return ForeignIdentity(_text_field(listed[0] if isinstance(listed, list) and listed else None, "id"), version)


async def _fetch_json(client: httpx.AsyncClient, url: str) -> Any:
    try:
        return msgspec.json.decode(await bounded_http.fetch_bounded(client, url))
    except list_failures(BadResponse, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


async def _with_key_hint(answer: Awaitable[_Answer]) -> _Answer:
    """Return `answer`; if the server rejects the request for lack of a key, name `KEY_VARIABLE` in the error."""
    try:
        return await answer
    except BadResponse as error:
        if error.status in {401, 403}:
            raise BadResponse(f"{error}; if the server requires an API key, set {KEY_VARIABLE}", error.status) from None
        raise


def explain_silence(url: str, error: Exception) -> str:
    """Return why a server does not answer, in one clause; another program may listen there."""
    import httpx

    place, tls = urlsplit(url).netloc, _find_tls_error(error)
    if isinstance(error, httpx.RemoteProtocolError):
        return f"{place} does not speak HTTP, or breaks off its answers"
    if isinstance(tls, ssl.SSLCertVerificationError):
        return f"the certificate of {place} is self-signed or of an unknown authority: connect by http over ssh -L"
    if tls:
        return f"{place} rejects our encrypted connection"
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return f"no server answers at {url}"
    return f"{place} accepts connections but does not respond"


def _find_tls_error(error: BaseException | None) -> ssl.SSLError | None:
    while error and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error if isinstance(error, ssl.SSLError) else None


def is_address(name: str | None) -> bool:
    """Whether the name is the address of a server rather than a run."""
    return bool(name) and str(name).lower().startswith(("http://", "https://"))


def parse_address(url: str, where_keys_go: str) -> str:
    """Return the base URL of a server, without the path of its API; raise UsageError if it is invalid."""
    # Checked first, as errors of `urlsplit` would quote half of a password that has a slash.
    if "@" in url or looks_secret(url):
        raise UsageError("an API key in an address can be read by every user of this machine", hint=where_keys_go)
    import httpx

    try:
        parts = httpx.URL(url)
        host_and_port = parts.netloc.decode()  # encodes an internationalised name
    except (httpx.InvalidURL, UnicodeError) as error:
        raise UsageError("not a valid address", evidence=clean_line(str(error))) from None
    is_plain = parts.host and not (parts.query or parts.fragment or " " in url) and clean_line(url) == url
    is_port = parts.port is None or 0 < parts.port <= HIGHEST_PORT
    if parts.scheme not in {"http", "https"} or not (is_plain and is_port):
        raise UsageError(f"{clean_line(url)} is not the address of a server", hint="use one like http://host:8000")
    return f"{parts.scheme}://{host_and_port}{parts.path.rstrip('/').removesuffix('/v1').removesuffix('/metrics')}"


def _text_field(value: Any, key: str) -> str:
    text = value.get(key) if isinstance(value, dict) else None
    return clean_line(text)[:200] if isinstance(text, str) else ""


class FoundServer(msgspec.Struct, frozen=True):
    """A vLLM server on this machine that dflash-tui did not launch."""

    url: str
    """Its address, as an argument of `attach`."""
    port: int
    model: str
    """The model it serves; empty if neither the server nor its command names it."""
    version: str
    """The vLLM release; empty if the server does not report it."""
    pid: int | None
    """The pid of the listening process; null if it is another user's."""


async def find_foreign_servers() -> list[FoundServer]:
    """Return the vLLM servers on this machine that dflash-tui did not launch, by port.

    A process whose readable command is neither vLLM nor a container's port forwarder is not asked. Each of the two
    rounds of requests takes 1 s at most. `KEY_VARIABLE` is never sent.
    """
    candidates = await asyncio.to_thread(_list_candidates)
    answers = await asyncio.gather(*map(_tells_version, candidates))
    listeners = [each for each, answers in zip(candidates, answers, strict=True) if answers or _is_known(each)]
    if not listeners:
        return []
    async with bounded_http.open_client(timeout=_SEARCH_TIMEOUT) as client:
        found = await asyncio.gather(*(_identify(client, listener) for listener in listeners))
    return [server for server in found if server]


def _list_candidates() -> list[Listener]:
    sessions = {run.pid for run in registry.list_living_runs()}
    ports = {run.plan.port for run in registry.list_living_runs()}
    candidates = {
        listener.port: listener
        for listener in list_listeners()
        if listener.host in _LOCAL_HOSTS
        and listener.port >= _FIRST_USER_PORT
        and (listener.port not in ports if listener.pid is None else _find_session(listener.pid) not in sessions)
        and _may_serve(listener)
    }
    return list(candidates.values())


def _find_session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def _may_serve(listener: Listener) -> bool:
    words = _read_command(listener)
    return not words or "vllm" in " ".join(words).lower() or bool(_PASSES_ON.search(words[0]))


def _read_command(listener: Listener) -> list[str]:
    try:
        return psutil.Process(listener.pid).cmdline() if listener.pid else []
    except psutil.Error:
        return []


def _is_server(words: list[str]) -> bool:
    """Whether a command is `vllm serve`, or vLLM's API server as a module or by its process title."""
    after_program = dict(zip(map(os.path.basename, words), words[1:], strict=False))
    is_module = any(word.startswith("vllm.entrypoints") for word in words)
    return after_program.get("vllm") == "serve" or is_module or words[0].startswith("VLLM::APIServer")


async def _tells_version(listener: Listener) -> bool:
    """Whether a server reports its version; asked without httpx, which the panel then rarely has to import."""
    with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        async with asyncio.timeout(_SEARCH_TIMEOUT):
            reader, writer = await asyncio.open_connection(_LOCAL_HOSTS[listener.host], listener.port)
            try:
                writer.write(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                return b'"version"' in await reader.readuntil(b"}")
            finally:
                writer.close()
    return False


def _is_known(listener: Listener) -> bool:
    """Whether the command is a vLLM server's with this port; a busy or encrypted one does not answer."""
    words = _read_command(listener)
    return bool(words) and _is_server(words) and _read_flag(words, "--port", _DEFAULT_PORT) == str(listener.port)


async def _identify(client: httpx.AsyncClient, listener: Listener) -> FoundServer | None:
    url = f"http://{format_host_and_port(_LOCAL_HOSTS[listener.host], listener.port)}"
    words, identity = _read_command(listener), ForeignIdentity()
    with suppress(*list_failures(BadResponse)):
        async with asyncio.timeout(_SEARCH_TIMEOUT):
            await fetch_metrics(client, f"{url}/metrics")
            identity = await _read_identity(client, url)
    if not identity.version and not _is_known(listener):
        return None
    model = identity.model or _read_flag(words, "--served-model-name") or _read_flag(words, "--model")
    model = model or _read_flag(words, "serve")
    return FoundServer(url, listener.port, clean_line(model)[:200], identity.version, listener.pid)


def _read_flag(words: list[str], flag: str, default: str = "") -> str:
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word == flag or word.startswith(f"{flag}="):
            return word.partition("=")[2] or after
    return default
