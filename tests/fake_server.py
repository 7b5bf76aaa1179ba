"""Stands in for `vllm serve` at the process boundary: `fake_server.py PORT [BEHAVIOUR ...]`.

It speaks the few endpoints that are asked, counts like a server with seven drafted and three accepted tokens per
step, and misbehaves on demand: `deaf` never listens, `stubborn` ignores SIGTERM and has a child that does, `slow=S`
waits before it answers a chat, `sleepy` never answers a second one, `refuse` answers chats with HTTP 400, `cut` ends
a stream in the middle, `garbled` sends what is no JSON, `dead` reports a dead engine in the stream, `silent`
sends no usage, `telling` says of each request how many steps it took, `log` writes down what is asked.
"""

import json
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, WORDS = int(sys.argv[1]), sys.argv[2:]
SLOW = next((float(word.partition("=")[2]) for word in WORDS if word.startswith("slow=")), 0.0)
PIECES = ("Hello", " there, this is", " speculative.")
steps = 0


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Keep the log to what the test writes."""

    def answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path != "/metrics":
            self.answer(b"")
            return
        spec = "vllm:spec_decode_num_"
        figures = {
            "vllm:generation_tokens_total": 4 * steps, f"{spec}drafts_total": steps,
            f"{spec}draft_tokens_total": 7 * steps, f"{spec}accepted_tokens_total": 3 * steps,
        }  # fmt: skip
        self.answer("".join(f'{name}{{engine="0"}} {value}\n' for name, value in figures.items()).encode())

    def do_POST(self) -> None:
        global steps  # noqa: PLW0603 - the one number that the server has
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if "log" in WORDS:
            print(asked, flush=True)
        time.sleep(SLOW if not steps or "sleepy" not in WORDS else 600)
        if "refuse" in WORDS:
            self.answer(b'{"error":{"message":"no \x1b[31mthanks"}}', 400)
            return
        steps += 10
        self.send_response(200)
        self.end_headers()
        for piece in PIECES:
            time.sleep(0.02)
            self.event({"choices": [{"delta": {"content": piece}}]})
            if "cut" in WORDS:
                return
        if "garbled" in WORDS:
            self.wfile.write(b"data: {not json\n\n")
        if "dead" in WORDS:
            self.event({"error": {"message": "EngineCore encountered an issue."}})
        elif "silent" not in WORDS:
            self.event({"choices": [{"delta": {}, "finish_reason": "length"}]})
            told = {"speculative_decoding": {"num_spec_steps": 11, "num_accepted_draft_tokens": 29}}
            usage = {"completion_tokens": 40, "prompt_tokens": 9}
            self.event({"choices": [], "usage": usage} | ({"metrics": told} if "telling" in WORDS else {}))
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, body: object) -> None:
        self.wfile.write(b"data: " + json.dumps(body).encode() + b"\n\n")
        self.wfile.flush()


print("INFO:     Application startup complete.", flush=True)
if "stubborn" in WORDS:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"])
if "deaf" in WORDS:
    time.sleep(600)
ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
