"""Serve a model by plain transformers behind a small OpenAI-compatible server, to compare with by its URL.

    ENGINE/bin/python tools/transformers_server.py MODEL [PORT]

It answers one request at a time, greedily, a chunk per piece of text, without usage and without /tokenize.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

MODEL, PORT = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8140
NAME = MODEL.rstrip("/").rpartition("/")[2]
tokenizer = AutoTokenizer.from_pretrained(MODEL)
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)


class Handler(BaseHTTPRequestHandler):
    """Answers the list of models and streaming chats."""

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _begin(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def do_GET(self) -> None:
        """List the model; nothing else is here."""
        self._begin(200 if self.path == "/v1/models" else 404, "application/json")
        if self.path == "/v1/models":
            self.wfile.write(json.dumps({"data": [{"id": NAME, "owned_by": "transformers"}]}).encode())

    def do_POST(self) -> None:
        """Answer a chat as server-sent events."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions":
            self._begin(404, "application/json")
            return
        self._begin(200, "text/event-stream")
        asked = tokenizer.apply_chat_template(
            body["messages"], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        most: dict[str, Any] = {"max_new_tokens": body.get("max_tokens", 512), "do_sample": False}
        threading.Thread(target=model.generate, kwargs={**asked, **most, "streamer": streamer}, daemon=True).start()
        for piece in filter(None, streamer):
            self._send({"delta": {"content": piece}})
        self._send({"delta": {}, "finish_reason": "stop"})
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, choice: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps({'model': NAME, 'choices': [choice]})}\n\n".encode())
        self.wfile.flush()


HTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
