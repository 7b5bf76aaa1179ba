"""Stands in for `vllm serve` at the process boundary: `fake_server.py PORT [BEHAVIOUR ...]`.

It speaks the few endpoints that are asked, counts like a server with seven drafted and three accepted tokens per step,
and misbehaves on demand: `deaf` never listens, `stubborn` ignores SIGTERM and has a child that does, `slow=S` waits
before it answers a chat, `sleepy` never answers a second one, `refuse` answers chats with HTTP 400, `dead` reports a
dead engine in the stream, `telling` says of each request how many steps it took, `log` writes down what is asked,
`pace=S` waits so long before each chunk, `dies=N` ends without a word when it is asked for the N-th time. `busy` works
on one request from the start, about 37 steps a second; `like=FILE` adds what a real server's /metrics said.
`metrics=FILE` answers /metrics as the word in FILE says, which may change meanwhile: see `MISBEHAVING`. `says=FILE`
logs what is in FILE at every chat, answers the first with it, refuses the others by it, and has it in /metrics.
`host=ADDRESS` listens there. `adds=TEXT` ends each answer with that, `thinks=TEXT` begins it with thoughts, `calls`
calls the first tool that it is given. `greets=TEXT` begins each answer with that. `stays=N` never sends the last piece
of the first N (of all without N); `holds=N` never answers the N-th chat. `shares=NAME` has shared memory of that name.
Tokens are named where they are asked for, one per character, and scored by /v1/completions: its own answer is the
likeliest.
"""

import itertools
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import shared_memory
from pathlib import Path

PORT, WORDS = int(sys.argv[1]), sys.argv[2:]
GIVEN = dict(word.partition("=")[::2] for word in WORDS)
SLOW, PACE = float(GIVEN.get("slow", 0)), float(GIVEN.get("pace", 0.02))
DIES = float(GIVEN.get("dies", math.inf))
STAYS = float(GIVEN["stays"] or math.inf) if "stays" in GIVEN else 0
LIKE = Path(GIVEN["like"]).read_text() if "like" in GIVEN else ""
SAYS = Path(GIVEN["says"]).read_bytes().decode(errors="surrogateescape") if "says" in GIVEN else ""
WHOLE = SAYS.encode(errors="surrogateescape").decode(errors="replace")
SPEC, STARTED = "vllm:spec_decode_num_", time.time()
PIECES = (
    GIVEN.get("greets", "Hello"),
    " there, this is",
    " speculative.",
    *([GIVEN["adds"]] if "adds" in GIVEN else []),
)
PROMPT = [1, 2, 3]  # the tokens of every chat
steps, answers, chats = 0.0, 0, 0


def counted(done: float, accepted: float) -> dict[str, float]:
    """Return the counters after so many steps."""
    return {
        'vllm:generation_tokens_total{engine="0"}': done + accepted, f'{SPEC}drafts_total{{engine="0"}}': done,
        f'{SPEC}draft_tokens_total{{engine="0"}}': 7 * done, f'{SPEC}accepted_tokens_total{{engine="0"}}': accepted,
    }  # fmt: skip


def working(seconds: float) -> dict[str, float]:
    """Return what is told after so long on one request: no rate stays what it was a second ago."""
    done = 37 * seconds + 60 * math.sin(seconds / 9)
    shares = (0.8, 0.65, 0.5, 0.4, 0.3, 0.2, 0.15)
    positions = [share * done + 4 * math.sin(seconds / (5 + place)) for place, share in enumerate(shares)]
    told = {f'{SPEC}accepted_tokens_per_pos_total{{position="{p}"}}': count for p, count in enumerate(positions)}
    return counted(done, sum(positions)) | told | {
        'vllm:prompt_tokens_total{engine="0"}': 90 * seconds, 'vllm:num_requests_running{engine="0"}': 1,
        'vllm:kv_cache_usage_perc{engine="0"}': 0.2 + seconds % 50 / 500,
    }  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # as a real one it keeps connections open

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
        figures = working(time.time() - STARTED) if "busy" in WORDS else counted(steps, 3 * steps)
        if word := Path(GIVEN["metrics"]).read_text() if "metrics" in GIVEN else "":
            MISBEHAVING[word](self)
            return
        told = [f"{name} {value}" for name, value in figures.items()]
        families = {name.partition("{")[0] for name in figures}
        told += [f'vllm:cache_config_info{{x="{SAYS}"}} 1'] if SAYS else []
        told += [line for line in LIKE.splitlines() if line.partition("{")[0] not in families]
        self.answer("\n".join([*told, ""]).encode(errors="surrogateescape"))

    def unauthorized(self) -> bytes:
        """Return why a chat is refused: its key is another than the server's."""
        key = os.environ.get("VLLM_API_KEY")
        return b'{"error": "Unauthorized"}' if key and self.headers["Authorization"] != f"Bearer {key}" else b""

    def refused(self) -> bytes:
        """Return why a chat is refused although its key is right; empty when it is not."""
        if SAYS:
            os.write(1, f"{SAYS}\n".encode(errors="surrogateescape"))
        if SAYS and answers:
            return json.dumps({"error": {"message": WHOLE}}, ensure_ascii=False).encode()
        return b'{"error":{"message":"no \x1b[31mthanks"}}' if "refuse" in WORDS else b""

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if self.path == "/v1/completions":
            self.answer(json.dumps({"choices": [score_tokens(json.loads(asked))]}).encode())
        else:
            self.chat(asked)

    def chat(self, asked: str) -> None:
        global chats  # noqa: PLW0603 - the number that the server has
        if "log" in WORDS:
            print(f"{asked}\n", end="", flush=True)  # in one piece: several are answered at a time
        number = chats = chats + 1
        time.sleep(600 if (answers and "sleepy" in WORDS) or str(number) == GIVEN.get("holds") else SLOW)
        if refusal := self.unauthorized():
            self.answer(refusal, 401)
            return
        if refusal := self.refused():
            self.answer(refusal, 400)
            return
        body = json.loads(asked)
        length = body.get("max_tokens", 40)
        named = body.get("return_token_ids")
        count_answer(length, is_warm_up=body.get("temperature") == 0 and length == 8)
        if answers >= DIES:
            os._exit(1)
        self.send_response(200)
        self.send_header("Connection", "close")  # a stream is as long as it lasts
        self.end_headers()
        self.think_and_call(body.get("tools") if "calls" in WORDS else None)
        pieces = cut_pieces((WHOLE,) if SAYS else PIECES, length if named else math.inf)
        stays = number <= STAYS
        for piece in pieces:
            time.sleep(600 if stays and piece is pieces[-1] else PACE)
            self.event(
                {"choices": [{"delta": {"content": piece}} | ({"token_ids": [*map(ord, piece)]} if named else {})]}
                | {"prompt_token_ids": PROMPT}
            )
        if "dead" in WORDS:
            self.event({"error": {"message": "EngineCore encountered an issue."}})
        else:
            self.event({"choices": [{"delta": {}, "finish_reason": "length"}]})
            told = {"speculative_decoding": {"num_spec_steps": 11, "num_accepted_draft_tokens": 29}}
            tokens = sum(map(len, pieces)) if named else min(40, length)
            usage = {"completion_tokens": tokens, "prompt_tokens": 9}
            self.event({"choices": [], "usage": usage} | ({"metrics": told} if "telling" in WORDS else {}))
        self.wfile.write(b"data: [DONE]\n\n")

    def think_and_call(self, tools: list[dict[str, dict[str, str]]] | None) -> None:
        """Send thoughts, and call the first of the tools, in pieces."""
        for thought in filter(None, GIVEN.get("thinks", "").split("|")):
            self.event({"choices": [{"delta": {"reasoning_content": thought}}]})
        for piece in ("", '{"city":', ' "Paris"}') if tools else ():
            name = {} if piece or not tools else {"name": tools[0]["function"]["name"]}
            self.event(
                {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": name | {"arguments": piece}}]}}]}
            )

    def event(self, body: object) -> None:
        self.wfile.write(b"data: " + json.dumps(body).encode() + b"\n\n")
        self.wfile.flush()


def count_answer(length: int, *, is_warm_up: bool) -> None:
    """Count an answer of so many tokens, 40 at most: four in each step."""
    global steps, answers
    # The greedy warm-up before the first one counts for nothing: what misbehaves does so from the first one on.
    if answers or not is_warm_up:
        steps, answers = steps + min(10, length / 4), answers + 1


def score_tokens(body: dict[str, list[int]]) -> dict[str, object]:
    """Return what follows on a prompt and its scores, or those of the tokens of the prompt, where they are asked for.

    The likeliest has -0.1, token 0 behind it -5, any other one -9.
    """
    own = [*map(ord, "".join(PIECES)), *itertools.repeat(0, len(body["prompt"]))]
    if "logprobs" in body:
        scores = [{f"token_id:{token}": -0.1, "token_id:0": -5.0} for token in own[: int(str(body["max_tokens"]))]]
        return {"token_ids": own[: len(scores)], "logprobs": {"top_logprobs": scores}}
    followed = zip(body["prompt"][len(PROMPT) :], own, strict=False)
    read = [{token: -9.0, 0: -5.0, likeliest: -0.1} for token, likeliest in followed]
    scored = [{str(token): {"logprob": score} for token, score in scores.items()} for scores in read]
    return {"prompt_logprobs": [None, {}, {}, *scored]}


def cut_pieces(pieces: Sequence[str], length: float) -> list[str]:
    """Return the pieces of an answer of so many characters at most."""
    ends = itertools.accumulate(map(len, pieces))
    left = ((piece, min(len(piece), length - end + len(piece))) for piece, end in zip(pieces, ends, strict=True))
    return [piece[: int(room)] for piece, room in left if room > 0]


def endless(handler: Handler) -> None:
    """Say that 100 MB come, and send them as long as somebody reads."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(100 << 20))
    handler.end_headers()
    for _ in range(100):
        handler.wfile.write(b"vllm:generation_tokens_total 1\n" * (1 << 15))


def torn(handler: Handler) -> None:
    """End the answer in the middle of a line."""
    handler.send_response(200)
    handler.send_header("Content-Length", "5000")
    handler.end_headers()
    handler.wfile.write(b'vllm:generation_tokens_total{engine="0"} 1')
    handler.close_connection = True


NONE = 'vllm:generation_tokens_total{engine="0"} NaN\nvllm:num_requests_running{engine="0"} +Inf\n'
LABELS = "vllm:generation_tokens_total{" + ",".join(f'a{number}="b"' for number in range(300_000)) + "} 1\n"
FEWER = 'vllm:generation_tokens_total{engine="0"} 1\n'
MISBEHAVING: dict[str, Callable[[Handler], None]] = {
    "500": lambda handler: handler.answer(b"broken", 500),
    "hangs": lambda _: time.sleep(600),
    "endless": endless,
    "torn": torn,
    "half": lambda handler: handler.answer(b'vllm:generation_tokens_total{engine="0"} 40\nvllm:spec_decode_num_dra'),
    "nan": lambda handler: handler.answer(NONE.encode()),
    "fewer": lambda handler: handler.answer(FEWER.encode()),
    "labels": lambda handler: handler.answer(LABELS.encode()),
    "page": lambda handler: handler.answer(b"<html>hello</html>"),
}
print("INFO:     Application startup complete.", flush=True)
if "shares" in GIVEN:
    memory = shared_memory.SharedMemory(GIVEN["shares"], create=True, size=1 << 20)
    print(f"shared memory {memory.name}", flush=True)
if "stubborn" in WORDS:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"])
if "deaf" in WORDS:
    time.sleep(600)


class Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that went away."""


ADDRESS = socket.getaddrinfo(GIVEN.get("host", "127.0.0.1"), PORT)[0]
Server.address_family = ADDRESS[0]
Server(ADDRESS[4], Handler).serve_forever()  # type: ignore[arg-type]
