"""A target for what others answer over the network: streams of a server."""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import AsyncIterator, Iterator

import httpx
import msgspec

from dflash_tui.benchmark import client as benchmark_client
from dflash_tui.benchmark.sse import CompletionStream
from dflash_tui.events import RequestDone, decode_recorded, encode
from tests.fuzz.json_edits import EDITED, edited
from tests.fuzz.promises import assert_prints_plain

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
    assert_prints_plain(encode(whole).decode())
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


def stream_seeds() -> Iterator[bytes]:
    """Yield answers as vLLM streams them, and some that fail."""
    lines = [b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in _CHUNKS]
    yield b"".join([*lines[:3], *lines[:3], *lines[3:-1], b"data: [DONE]\n\n"])
    yield lines[1] + b": ping\r\n" + lines[0] + lines[-1]
    yield b'data: {"choices": null, "metrics": {"speculative_decoding": null}}\n\ndata: {"a":[[[{"b":1e5}]]]}\n'
    yield bytes([EDITED, 0, 0, 5, 27]) + b"\n" + bytes([4, 0, 9, 5])
