"""Targets for what others answer over the network: streams of a server, and the hub."""

from __future__ import annotations

import asyncio
import math
import os
import zlib
from collections.abc import AsyncIterator, Iterator
from unittest import mock

import httpx
import msgspec

from dflash_tui.benchmark import client as benchmark_client
from dflash_tui.benchmark.sse import CompletionStream
from dflash_tui.common.errors import DflashError
from dflash_tui.engines.hub import cache, download, model_lookup
from dflash_tui.event_json import decode_recorded, encode
from dflash_tui.events import RequestDone
from tests.fuzz.json_edits import EDITED, edited
from tests.fuzz.promises import assert_is_error, assert_plain, scratch_folder
from tests.support import escapes
from tests.support.hub_server import COMMIT, REFUSALS

_TOKEN = "hf_" + "t" * 30
_HUB = "hub.invalid"
_CUT = b"\n=== \n"
_MOST_REQUESTS = 12
_CHUNKS = [
    {"choices": [{"index": 0, "delta": {"content": "Hello"}, "finish_reason": None}], "usage": None},
    {"choices": [{"delta": {"reasoning_content": "Hm"}}]},
    {"choices": [{"delta": {"reasoning": "Hm"}}]},
    {"choices": [{"delta": {}, "finish_reason": "length"}]},
    {
        "choices": [],
        "usage": {"prompt_tokens": 9, "completion_tokens": 12, "total_tokens": 21},
        "metrics": {"speculative_decoding": {"num_spec_steps": 4, "num_accepted_draft_tokens": 8}},
    },
    {"error": {"message": "EngineCore died", "type": "Internal", "code": 500}},
]
_LISTING = {
    "sha": COMMIT,
    "gated": "manual",
    "private": False,
    "siblings": [
        {"rfilename": "config.json", "size": 20, "blobId": "1" * 40},
        {"rfilename": "additional_chat_templates/rag.jinja", "size": 3},
        {"rfilename": "model.safetensors", "size": 5000, "lfs": {"sha256": "2" * 64, "size": 5000}},
        {"rfilename": "../x.json", "size": -1, "blobId": "../../x"},
    ],
}


def stream(data: bytes) -> None:
    """A streamed answer: the same measures however it is cut, plain and finite."""
    if data[:1] == bytes([EDITED]):
        data = b"\n".join(b"data: " + edited(_CHUNKS, part) for part in data[1:].split(b"\n")) + b"\n"
    cut = zlib.crc32(data) % (len(data) + 1)
    whole, parts = _measure(data), _measure(data[:cut], data[cut:])
    assert whole.tokens == parts.tokens
    assert (whole.error, whole.finish, whole.digests) == (parts.error, parts.finish, parts.digests)
    assert (whole.steps, whole.accepted) == (parts.steps, parts.accepted)
    assert len(whole.error) <= 400
    assert_plain(encode(whole).decode())
    for figure in msgspec.to_builtins(whole).values():
        assert not isinstance(figure, int | float) or (math.isfinite(figure) and figure >= 0), whole
    assert decode_recorded(encode(whole)) == whole


class _Pieces(httpx.AsyncByteStream):
    """A body that comes in pieces, as from a socket."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


def _measure(*pieces: bytes) -> RequestDone:
    async def read() -> RequestDone:
        taken = CompletionStream("fuzz")
        async for line in benchmark_client._read_lines(httpx.Response(200, stream=_Pieces(*pieces))):
            taken.take(line)
        taken.end()
        return taken.result()

    return asyncio.run(read())


def hub(data: bytes) -> None:
    """Answers of the hub, one after the other: the token goes nowhere else, and what is kept of them is bounded."""
    if data[:1] == bytes([EDITED]):
        data = b"200\n\n" + _CUT + b"200\n\n" + edited([_LISTING], data[1:])
    answers = iter([_answer(part) for part in data.split(_CUT)])
    asked: list[httpx.Request] = []

    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.scheme not in {"http", "https"}:  # as the transport over sockets does
            raise httpx.UnsupportedProtocol(request.url.scheme)
        asked.append(request)
        return next(answers, httpx.Response(500))

    variables = {"HF_ENDPOINT": f"http://{_HUB}", "HF_TOKEN": _TOKEN, "HF_HUB_CACHE": str(scratch_folder() / "hub")}
    real = httpx.AsyncClient
    with (
        mock.patch.dict(os.environ, variables),
        mock.patch.object(httpx, "AsyncClient", lambda **more: real(transport=httpx.MockTransport(respond), **more)),
    ):
        model = asyncio.run(model_lookup.look_up_model("owner/m"))
        said = [model.detail, model_lookup.advise_access(model)]
        if model.missing_bytes is not None:
            try:
                download._check_space(model.repo, model.missing_bytes)
            except DflashError as error:
                said.append(str(error))
        snapshot = cache.snapshot_folder("owner/m", COMMIT)
    assert len(asked) <= _MOST_REQUESTS
    for request in asked:
        assert "Authorization" not in request.headers or request.url.host == _HUB, request.url
    assert len(model.detail) <= 300
    for text in said:
        assert_is_error(text)
        assert _TOKEN not in text
    for file in model.files:
        assert not escapes.acting(file.name), file.name
        assert (snapshot / file.name).resolve().is_relative_to(snapshot.resolve())
        assert file.size is None or file.size >= 0


def _answer(part: bytes) -> httpx.Response:
    """Return the answer that a part of an input stands for: a status, headers, an empty line and a body."""
    head, _, body = part.partition(b"\n\n")
    status, *lines = head.split(b"\n")
    pairs = [line.partition(b": ") for line in lines]
    headers = [(name, value) for name, _, value in pairs if name.isalnum() or name.replace(b"-", b"").isalnum()]
    number = int(status) if status.isdigit() and len(status) == 3 else 200
    return httpx.Response(max(200, number), headers=headers, stream=_Pieces(body))


def stream_seeds() -> Iterator[bytes]:
    """Yield answers as vLLM streams them, and some that fail."""
    lines = [b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in _CHUNKS]
    yield b"".join([*lines[:3], *lines[:3], *lines[3:-1], b"data: [DONE]\n\n"])
    yield lines[1] + b": ping\r\n" + lines[0] + lines[-1]
    yield b'data: {"choices": null, "metrics": {"speculative_decoding": null}}\n\ndata: {"a":[[[{"b":1e5}]]]}\n'
    yield bytes([EDITED, 0, 0, 5, 27]) + b"\n" + bytes([4, 0, 9, 5])


def hub_seeds() -> Iterator[bytes]:
    """Yield what the hub answers: a file and a listing, redirects, and each refusal."""
    listing = b"200\n\n" + msgspec.json.encode(_LISTING)
    yield b"200\n\n" + _CUT + listing
    yield _CUT.join((b"307\nLocation: http://elsewhere.invalid/x\n\n", b"302\nLocation: /api/x\n\n", listing))
    yield _CUT.join((b"404\nX-Error-Code: EntryNotFound\n\n", b"302\nLocation: http://elsewhere.invalid\n\n", listing))
    for status, code, message in REFUSALS.values():
        yield f"{status}\nX-Error-Code: {code}\nX-Error-Message: {message}\n\nno".encode()
    yield bytes([EDITED, 0, 0, 9, 27])
