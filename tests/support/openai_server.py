"""A small OpenAI-compatible server of this process, which tells and refuses what a test says."""

import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PAGE = "<!doctype html><title>Router \x1b[31mlogin</title>"


@dataclass
class OpenAIServer:
    """What the server tells, and what it was asked: each path with its headers and body."""

    models: tuple[str, ...] = ("m",)
    """None for a server that lists no models."""
    owner: str = "me"
    texts: dict[str, Any] = field(default_factory=dict)
    """The answers to GET by their paths, with the status where it is not 200."""
    key: str = ""
    answers_as: tuple[str, ...] = ()
    """The models that the answers name in turn, the last one for all that follow."""
    pieces: tuple[str, ...] = ("Hello", " there", ", this is", " an answer.")
    call: tuple[str, tuple[str, ...]] | None = None
    """The function that its answers call, and the pieces of the arguments."""
    dropped: int | None = None
    """The piece of these arguments that its stream loses."""
    finish: str = "stop"
    usage: bool = True
    refused: tuple[str, ...] = ()
    """The fields of a request that it answers with HTTP 400."""
    last: dict[str, Any] = field(default_factory=dict)
    """What its last event holds beside the usage."""
    tokenizes: bool = False
    vocabulary: bool = False
    """Whether its tokenizer knows `w1`, `w2` and so on, and every other word is token 0."""
    detokenizes: bool = True
    slow: float = 0.0
    tls: ssl.SSLContext | None = None
    url: str = ""
    asked: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The bodies of the chats."""
        return [body for path, _, body in self.asked if path == "/v1/chat/completions"]

    @contextmanager
    def serve(self, port: int = 0) -> Iterator[str]:
        """Yield its address for as long as it serves, on a free port unless one is named."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                outer.answer_get(self)

            def do_POST(self) -> None:
                outer.answer_post(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        server.daemon_threads = True
        if self.tls:
            server.socket = self.tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"http{'s' if self.tls else ''}://127.0.0.1:{server.server_port}"
        try:
            yield self.url
        finally:
            server.shutdown()
            server.server_close()

    def answer_get(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append((handler.path, dict(handler.headers), {}))
        listed = {"data": [{"id": model, "owned_by": self.owner} for model in self.models]}
        texts = {**({"/v1/models": json.dumps(listed)} if self.models else {}), **self.texts}
        time.sleep(self.slow)
        answer = texts.get(handler.path, (404, ""))
        self._send(handler, *(answer if isinstance(answer, tuple) else (200, answer)))

    def answer_post(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        self.asked.append((handler.path, dict(handler.headers), body))
        if handler.path == "/tokenize":
            words = body.get("content", "").split()
            known = [int(word[1:]) if word[0] == "w" and word[1:].isdecimal() else 0 for word in words]
            status = 200 if self.tokenizes else 404
            self._send(handler, status, json.dumps({"tokens": known if self.vocabulary else words}))
        elif handler.path == "/detokenize":
            prompt = " ".join(f"w{token}" for token in body["tokens"])
            self._send(handler, 200 if self.detokenizes else 404, json.dumps({"prompt": prompt}))
        elif unknown := [name for name in self.refused if name in body or name in body.get("stream_options", {})]:
            self._send(handler, 400, json.dumps({"error": {"message": f"unknown field {unknown[0]}"}}))
        else:
            time.sleep(self.slow)
            self._send(handler, 200, "".join(self._write_events(body)))

    def _write_events(self, body: dict[str, Any]) -> Iterator[str]:
        number = len(self.bodies) - 1
        model = self.answers_as[min(number, len(self.answers_as) - 1)] if self.answers_as else body["model"]
        events: list[dict[str, Any]] = [{"choices": [{"delta": {"content": piece}}]} for piece in self.pieces]
        if self.call:
            name, pieces = self.call
            sent = [piece for place, piece in enumerate(pieces) if place != self.dropped]
            functions = [{"name": name, "arguments": ""}, *({"arguments": piece} for piece in sent)]
            calls = [{"delta": {"tool_calls": [{"index": 0, "function": function}]}} for function in functions]
            events += [{"choices": [call]} for call in calls]
        events.append({"choices": [{"delta": {}, "finish_reason": self.finish}]})
        counted = {"usage": {"completion_tokens": 8, "prompt_tokens": 5}} if self.usage else {}
        events.append({"choices": []} | counted | self.last)
        for event in events:
            yield f"data: {json.dumps({'model': model} | event)}\n\n"
        yield "data: [DONE]\n\n"

    def _send(self, handler: BaseHTTPRequestHandler, status: int, text: str) -> None:
        if self.key and handler.headers["Authorization"] != f"Bearer {self.key}":
            status, text = 401, '{"error": "Unauthorized"}'
        handler.send_response(status)
        handler.end_headers()
        with suppress(OSError):  # the client is gone
            handler.wfile.write(text.encode())
