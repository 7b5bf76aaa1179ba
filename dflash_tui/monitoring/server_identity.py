"""Identify the model server at an address: its engine, models and settings, and how it streams."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psutil

from dflash_tui.benchmark import client
from dflash_tui.benchmark.server import Server, ServerFacts, TokenCount
from dflash_tui.common import bounded_http
from dflash_tui.common.errors import DflashError, ServerFailed, UsageError
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.machine import processes
from dflash_tui.monitoring.foreign_server import explain_silence, parse_address
from dflash_tui.vllm_output.metrics import parse_sample

CHECK_ADDRESS = "check the address and the port"
_TIMEOUT = 10.0
_KEY_STATUS = {401, 403}
# Statuses of a request with a field that the server does not know.
_FIELD_STATUS = {400, 422}
_CUT = 200
_TEXT = "Say hello."


class ServerKind(msgspec.Struct, frozen=True):
    """A kind of model server: its name, the marks of its series and models, and the settings that it reports."""

    name: str
    series: str
    owner: str
    figures: dict[str, str] = {}
    """The display names of its series."""
    facts: str = ""
    """The path that returns its version and settings."""
    version: str = ""
    settings: tuple[str, ...] = ()


KINDS = (
    ServerKind("SGLang", "sglang:", "sglang", {
        "sglang:gen_throughput": "tok/s", "sglang:spec_accept_length": "acceptance length",
        "sglang:spec_accept_rate": "acceptance", "sglang:cache_hit_rate": "prefix cache hits",
        "sglang:token_usage": "KV cache usage", "sglang:num_running_reqs": "running requests",
        "sglang:num_queue_reqs": "waiting requests",
    }, "/get_server_info", "version", (
        "model_path", "dtype", "quantization", "kv_cache_dtype", "tp_size", "context_length", "speculative_algorithm",
        "speculative_draft_model_path", "speculative_num_steps", "speculative_num_draft_tokens",
    )),
    ServerKind("llama.cpp", "llamacpp:", "llamacpp", {
        "llamacpp:predicted_tokens_seconds": "tok/s", "llamacpp:prompt_tokens_seconds": "prefill tok/s",
        "llamacpp:kv_cache_usage_ratio": "KV cache usage", "llamacpp:requests_processing": "running requests",
        "llamacpp:requests_deferred": "waiting requests",
    }, "/props", "build_info", ("model_path", "total_slots", "n_ctx")),
    ServerKind("Text Generation Inference", "tgi_", "tgi"),
    ServerKind("TensorRT-LLM", "trtllm_", "tensorrt_llm"),
    ServerKind("Ollama", "ollama_", "library"),
    ServerKind("vLLM", "vllm:", "vllm", {}, "/version", "version"),
)  # fmt: skip
_SERIES = re.compile(r"(?m)^([a-zA-Z_]\w*:?\w*)[{ ]")
_TITLE = re.compile(r"(?is)<title[^>]*>([^<]{1,80})")
_PAGE = re.compile(r"(?i)\s*<(?:!doctype|html|head)")
_CACHE_SETTINGS = ("cache_dtype", "block_size", "enable_prefix_caching", "gpu_memory_utilization")
_CONTEXTS = ("context_length", "n_ctx")


class _Model(msgspec.Struct):
    id: str
    owned_by: str = ""
    root: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


register_type(_Models)


def read_models(body: str) -> list[_Model]:
    """Return the models in a body of /v1/models; none if the body is invalid."""
    try:
        return msgspec.json.decode(body.encode(errors="replace"), type=_Models).data
    except (msgspec.MsgspecError, RecursionError):
        return []


def list_series(metrics: str) -> set[str]:
    """Return the names of the series in a /metrics body."""
    return set(_SERIES.findall(metrics))


def choose_kind(series: set[str], models: list[_Model]) -> ServerKind | None:
    """Return the kind of server that has these series or models; None if it is unknown."""
    owners = {model.owned_by.lower() for model in models}
    by_series = (kind for kind in KINDS if any(name.startswith(kind.series) for name in series))
    return next(by_series, None) or next((kind for kind in KINDS if kind.owner in owners), None)


def build_no_models_error(
    url: str, body: str, evidence: str = "", *, missing: str = "no list of models", hint: str = CHECK_ADDRESS
) -> DflashError:
    """Return the error that no model server answers at `url`, but the web page in `body` if it is one."""
    title = clean_line(match[1].strip()) if (match := _TITLE.search(body)) else ""
    found = f"a web page{f', “{title}”' if title else ''}" if _PAGE.match(body) else missing
    return DflashError(f"{url} is not a model server: it returned {found}", evidence=evidence, hint=hint)


def read_key(variable: str | None) -> str:
    """Return the API key in the variable of that name; raise UsageError if it holds no valid key."""
    key = os.environ.get(variable, "").strip() if variable else ""
    if variable and not (key and key.isascii() and key.isprintable()):
        raise UsageError(
            f"{clean_line(variable)[:80]} does not hold a valid API key",
            hint="--key-env NAME names a variable; a key is one line of printable ASCII",
        )
    return key


async def find_server(address: str, model: str | None = None, key_variable: str | None = None) -> Server:
    """Return the server at an address; a short chat request shows how it streams.

    It also gets GETs of `/v1/models`, `/metrics` and its settings. All requests carry the key, if one is named.

    Raises:
        UsageError: the address, the key or the model is invalid.
        DflashError: nothing answers there, or no model server does.
    """
    url = parse_address(address, "--key-env NAME names the variable that holds it")
    reader = _Reader(url, read_key(key_variable), key_variable)
    models = read_models(body := await reader.read_models(required=model is None))
    if model is None:
        model = _choose_model(url, models, body)
    server = Server(url, model, reader.key, await _read_facts(reader, model, models))
    return await _try_stream(server, key_variable)


def is_here(url: str) -> bool:
    """Whether the host of an address is this machine."""
    host, cards = urlsplit(url).hostname or "", psutil.net_if_addrs().values()
    return host == "localhost" or host.startswith("127.") or host in {each.address for card in cards for each in card}


def read_server_process(url: str) -> str:
    """Return the identity of the process that listens at an address of this machine; empty if it is unknown."""
    listeners = processes.list_listeners() if is_here(url) else []
    pid = next((listener.pid for listener in listeners if listener.port == read_port(url)), None)
    return f"{pid} {processes.read_process_identity(pid)}" if pid else ""


def read_port(url: str) -> int:
    """Return the port of an address."""
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


class _Reader:
    """Sends GET requests to one server."""

    def __init__(self, url: str, key: str, variable: str | None) -> None:
        self.url, self.key, self._variable = url, key, variable

    async def read(self, path: str) -> str:
        """Return the body at a path; raise the errors of httpx and `bounded_http`."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        async with bounded_http.open_client(timeout=_TIMEOUT, headers=headers) as http:
            return (await bounded_http.fetch_bounded(http, self.url + path, path)).decode(errors="replace")

    async def try_read(self, path: str) -> str:
        """Return the body at a path; empty if there is none."""
        try:
            return await self.read(path) if path else ""
        except bounded_http.list_failures(bounded_http.BadResponse):
            return ""

    async def read_models(self, *, required: bool) -> str:
        """Return the body of /v1/models; empty if the server lacks it and it is not `required`."""
        try:
            return await self.read("/v1/models")
        except bounded_http.BadResponse as error:
            if error.status in _KEY_STATUS:
                raise _build_key_error(self.url, self._variable, str(error)) from None
            if not required:
                return ""
            hint = f"{CHECK_ADDRESS}; for a server without /v1/models name the model with --model"
            raise build_no_models_error(self.url, await self.try_read("/"), str(error), hint=hint) from None
        except bounded_http.list_failures() as error:
            raise DflashError(
                explain_silence(self.url, error),
                evidence=bounded_http.describe_failure(error),
                hint=CHECK_ADDRESS,
            ) from None


def _build_key_error(url: str, variable: str | None, evidence: str) -> UsageError:
    what = f"{url} refuses the key in {variable}" if variable else f"{url} requires an API key"
    return UsageError(what, evidence=evidence, hint="--key-env NAME names the variable that holds it")


def _choose_model(url: str, models: list[_Model], body: str) -> str:
    names = [model.id for model in models]
    if len(names) == 1:
        return names[0]
    if not names:
        raise build_no_models_error(url, body)
    listed = clean_line(", ".join(names[:8]))[:_CUT]
    raise UsageError(f"{url} serves {len(names)} models", hint=f"--model NAME names one of {listed}")


async def _read_facts(reader: _Reader, name: str, models: list[_Model]) -> ServerFacts:
    metrics = await reader.try_read("/metrics")
    kind = choose_kind(series := list_series(metrics), models)
    told = _read_object(await reader.try_read(kind.facts)) if kind else {}
    known = told | (nested if isinstance(nested := told.get("default_generation_settings"), dict) else {})
    settings = {key: clean_line(str(known[key]))[:_CUT] for key in (kind.settings if kind else ()) if known.get(key)}
    model = next((model for model in models if model.id == name), None)
    context = (model.max_model_len if model else None) or next(
        (value for key in _CONTEXTS if isinstance(value := known.get(key), int)), None
    )
    if model and model.root and model.root != name:
        settings["model"] = clean_line(model.root)[:_CUT]
    if has_counters := "vllm:generation_tokens_total" in series:
        settings |= _read_vllm_settings(metrics)
    version = clean_line(str(told.get(kind.version, "")))[:_CUT] if kind else ""
    return ServerFacts(kind.name if kind else "", version, settings, context, TokenCount.CHUNKS, has_counters)


def _read_object(body: str) -> dict[str, Any]:
    try:
        told = msgspec.json.decode(body.encode(errors="replace"))
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _read_vllm_settings(metrics: str) -> dict[str, str]:
    """Return the cache settings, and whether speculation is on, from vLLM's /metrics."""
    settings, drafts = dict[str, str](), False
    for line in metrics.splitlines():
        drafts = drafts or line.startswith("vllm:spec_decode_num_drafts_total")
        if line.startswith("vllm:cache_config_info") and (sample := parse_sample(line)):
            told = {key: clean_line(sample.labels[key])[:_CUT] for key in _CACHE_SETTINGS if key in sample.labels}
            settings |= told
    return settings | {"speculation": "on" if drafts else "off"}


async def _try_stream(server: Server, key_variable: str | None) -> Server:
    """Request a short answer with ever fewer fields until the server accepts; return how it streams and counts."""
    for extras, usage in ((True, True), (False, True), (False, False)):
        facts = msgspec.structs.replace(server.facts, takes_extras=extras, takes_usage=usage)
        server = msgspec.structs.replace(server, facts=facts)
        done, stream = await client.send_trial(server, _TEXT)
        if done.status not in _FIELD_STATUS:
            break
    if done.status in _KEY_STATUS:
        raise _build_key_error(server.url, key_variable, done.error)
    if done.error:
        raise ServerFailed(f"{server.url} does not answer a chat with {clean_line(server.model)}", evidence=done.error)
    counted = TokenCount.USAGE
    if not stream.is_counted:
        counted = await client.find_token_count(server, _TEXT)
    facts = msgspec.structs.replace(server.facts, tokens=counted, answers_as=stream.model)
    return msgspec.structs.replace(server, facts=facts)
