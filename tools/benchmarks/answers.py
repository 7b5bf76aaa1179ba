"""Compare the greedy answers of servers of one target: `python -m tools.benchmarks.answers OUT REFERENCE=URL NAME=URL`.

The reference serves without speculation. Every server answers each prompt alone, then four at a time: the held-out
prompts of the demo's drafter, by kind, and questions about pages of docs/, 100 to 7,500 tokens long. Where an answer
parts from the reference's, the reference scores both next tokens after the common text, which it reads at once. A gap
above the measured rounding is a fault. Rounding is the largest change of the lead of a token over its runner-up between
decoding the reference's own answers and reading them at once. OUT is JSON; the table is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from dflash_tui.benchmark.client import TokenScorer, measure_shifts
from dflash_tui.experiments.analysis.answers import locate_difference
from tools.train_drafter.prompts import held_out

ROOT = Path(__file__).parents[2]
CONTEXTS = (100, 200, 400, 800, 1600, 3000, 5000, 7500)
TASKS = (
    "What does this text explain? Answer in five sentences.",
    "Write a JSON array of eight objects with the keys name and purpose about the things in this text. JSON only.",
    "Write a Python program that does what this text describes.",
    "List ten facts from this text, one a line.",
    "Copy the last paragraph of this text word by word.",
    "Summarize this text.",
    "Write a table in Markdown of what this text names.",
    "Rewrite the first paragraph of this text in simpler words.",
)
STREAMS = (1, 4)
# Contexts up to here are read with the scores of every position: of a long one that would be megabytes.
READ = 1000
EVERY_TOKENS = 8  # after longer prompts, every eighth token is read
CANDIDATES = 20
_COUNTER = re.compile(
    r"^vllm:(spec_decode_num_drafts|spec_decode_num_accepted_tokens)_total(?:\{.*\})? (\S+)$", re.MULTILINE
)


Scored = list[dict[int, float]]


class Prompt(NamedTuple):
    """A prompt in tokens, what it asks for, and the tokens of its answer at most."""

    kind: str
    tokens: tuple[int, ...]
    limit: int


@dataclass
class Server:
    """A server, and what it answered: tokens by number of streams and prompt."""

    name: str
    url: str
    model: str = ""
    answers: dict[int, dict[int, tuple[int, ...]]] = field(default_factory=dict)
    scores: dict[int, Scored] = field(default_factory=dict)
    acceptance: dict[str, tuple[float, float]] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    error: str = ""


async def make_prompts(client: httpx.AsyncClient, server: Server, limit: int) -> list[Prompt]:
    """Return the prompts, in the tokens of the model's chat template."""
    pages = "\n\n".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    texts = held_out()
    words = re.findall(r"\S+\s*", pages)
    for row, context in enumerate(CONTEXTS):
        for column, task in enumerate(TASKS):
            count = int(context * 0.45)  # tokens to words of these pages, with room for the template
            begin = (row * len(TASKS) + column) * 1009 % (len(words) - count)
            texts.append((f"about {context} tokens", f"{''.join(words[begin : begin + count])}\n\n{task}"))
    prompts = []
    for kind, text in texts:
        body = {"model": server.model, "messages": [{"role": "user", "content": text}], "add_generation_prompt": True}
        answer = await client.post(f"{server.url}/tokenize", json=body)
        prompts.append(Prompt(kind, tuple(answer.raise_for_status().json()["tokens"]), limit))
    return prompts


async def ask(client: httpx.AsyncClient, server: Server, prompt: Sequence[int], tokens: int, **more: Any) -> Any:
    """Return the first choice of a greedy completion."""
    body = {"model": server.model, "prompt": [*prompt], "max_tokens": tokens, "temperature": 0.0}
    body |= {"repetition_penalty": 1.0, "return_token_ids": True, "return_tokens_as_token_ids": True} | more
    answer = await client.post(f"{server.url}/v1/completions", json=body)
    return answer.raise_for_status().json()["choices"][0]


async def read_counters(client: httpx.AsyncClient, server: Server) -> tuple[float, float]:
    """Return the steps and the accepted tokens so far."""
    found = dict.fromkeys(("spec_decode_num_drafts", "spec_decode_num_accepted_tokens"), 0.0)
    for name, value in _COUNTER.findall((await client.get(f"{server.url}/metrics")).text):
        found[name] += float(value)
    steps, accepted = found.values()
    return steps, accepted


async def answer_all(client: httpx.AsyncClient, server: Server, prompts: Sequence[Prompt], *, scored: bool) -> None:
    """Let a server answer all prompts at each number of streams, and count acceptance by kind at one stream."""
    for streams in STREAMS:
        began, answers = time.perf_counter(), server.answers.setdefault(streams, {})
        for kind in dict.fromkeys(prompt.kind for prompt in prompts):
            waiting = [place for place, prompt in enumerate(prompts) if prompt.kind == kind][::-1]
            steps, accepted = await read_counters(client, server)
            scores = server.scores if scored and streams == 1 else None
            workers = (answer_some(client, server, prompts, waiting, answers, scores=scores) for _ in range(streams))
            await asyncio.gather(*workers)
            steps_after, accepted_after = await read_counters(client, server)
            if steps_after > steps and streams == 1:
                server.acceptance[kind] = steps_after - steps, accepted_after - accepted
        server.seconds[streams] = time.perf_counter() - began


async def answer_some(
    client: httpx.AsyncClient,
    server: Server,
    prompts: Sequence[Prompt],
    waiting: list[int],
    answers: dict[int, tuple[int, ...]],
    *,
    scores: dict[int, Scored] | None,
) -> None:
    """Answer prompts, one after the other, until none waits."""
    while waiting:
        place = waiting.pop()
        more = {} if scores is None else {"logprobs": CANDIDATES}
        choice = await ask(client, server, prompts[place].tokens, prompts[place].limit, **more)
        answers[place] = tuple(choice["token_ids"])
        if scores is not None:
            scores[place] = read_scores(choice)


async def measure_rounding(client: httpx.AsyncClient, reference: Server, prompts: Sequence[Prompt]) -> list[float]:
    """Return the changes of the leads between decoding and reading, at the tokens after shorter prompts."""
    shifts: list[float] = []
    async with TokenScorer(reference.url, reference.model) as scorer:
        for place, prompt in enumerate(prompts):
            tokens, decoded = reference.answers[1][place], reference.scores[place]
            if len(prompt.tokens) <= READ:
                shifts += measure_shifts(tokens, decoded, await scorer.read(prompt.tokens, tokens))
                continue
            for at in range(0, len(tokens), EVERY_TOKENS):
                choice = await ask(client, reference, [*prompt.tokens, *tokens[:at]], 1, logprobs=CANDIDATES)
                shifts += measure_shifts(tokens[at : at + 1], decoded[at : at + 1], [read_scores(choice)[0]])
    return shifts


def read_scores(choice: Any) -> Scored:
    """Return the scores of the candidates at each decoded token."""
    scores = choice["logprobs"]["top_logprobs"]
    return [{int(name.removeprefix("token_id:")): score for name, score in at.items()} for at in scores]


async def find_gap(
    client: httpx.AsyncClient, reference: Server, prompt: Prompt, ours: Sequence[int], theirs: Sequence[int]
) -> tuple[int, float] | None:
    """Return where an answer parts from the reference's, from 1, and how unlikely its token is there; None: alike."""
    place = locate_difference(ours, theirs)
    if place is None:
        return None
    if place >= len(theirs):
        return place + 1, float("inf")
    choice = await ask(client, reference, [*prompt.tokens, *theirs[:place]], 1, logprobs=CANDIDATES)
    scores = read_scores(choice)[0]
    lowest = min(scores.values())  # a token that is not among the candidates is at most as likely
    return place + 1, max(scores.values()) - scores.get(theirs[place], lowest)


async def compare(pairs: Sequence[str], out: Path, every: int, limit: int) -> None:
    """Ask all servers at once, compare, write and print."""
    servers = [Server(name, url) for name, url in (pair.split("=", 1) for pair in pairs)]
    reference = servers[0]
    async with httpx.AsyncClient(timeout=600) as client:
        for server in servers:
            try:
                server.model = (await client.get(f"{server.url}/v1/models")).json()["data"][0]["id"]
            except httpx.HTTPError as error:
                server.error = f"does not answer: {error}"
        prompts = (await make_prompts(client, reference, limit))[::every]
        living = [server for server in servers if not server.error]
        asked = await asyncio.gather(
            *(answer_all(client, server, prompts, scored=server is reference) for server in living),
            return_exceptions=True,
        )
        for server, result in zip(living, asked, strict=True):
            server.error = "" if result is None else repr(result)
        shifts = await measure_rounding(client, reference, prompts)
        rounding = max(shifts)
        lengths = [len(prompt.tokens) for prompt in prompts]
        print(f"{len(prompts)} prompts of {min(lengths)} to {max(lengths)} tokens;", end=" ")
        print(f"rounding {rounding:.3f} at {len(shifts)} positions")
        rows = []
        for server in servers:
            for streams, answers in server.answers.items():
                places = [place for place in answers if place in reference.answers[1]]
                pairs_of = ((prompts[place], reference.answers[1][place], answers[place]) for place in places)
                found = await asyncio.gather(*(find_gap(client, reference, *pair) for pair in pairs_of))
                gaps = sorted((round(gap[1], 3) for gap in found if gap), reverse=True)
                faults = sum(gap > rounding for gap in gaps)
                row = {
                    "server": server.name,
                    "streams": streams,
                    "answers": len(places),
                    "tokens": sum(map(len, answers.values())),
                    "alike": len(places) - len(gaps),
                    "rounding": len(gaps) - faults,
                    "faults": faults,
                    "gaps": gaps,
                    "parted_at": sorted(gap[0] for gap in found if gap),
                    "seconds": round(server.seconds.get(streams, math.nan), 1),
                }
                rows.append(row)
                print(
                    " ".join(f"{key} {value}" for key, value in row.items() if key not in {"gaps", "parted_at"}), end=""
                )
                print(f" largest gap {max(gaps, default=0)}")
            if server.error:
                print(f"{server.name} {server.error}")
            for kind, (steps, accepted) in server.acceptance.items():
                print(f"  {server.name:24} {kind:20} acceptance length {1 + accepted / steps:.2f} ({steps:.0f} steps)")
    out.write_text(
        json.dumps(
            {
                "rounding": rounding,
                "positions": len(shifts),
                "shifts_above_0.1": sum(shift > 0.1 for shift in shifts),
                "prompt_tokens": lengths,
                "rows": rows,
                "acceptance": {server.name: server.acceptance for server in servers},
                "errors": {server.name: server.error for server in servers if server.error},
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("servers", nargs="+", metavar="NAME=URL")
    parser.add_argument("--every", type=int, default=1, help="of the prompts every Nth only")
    parser.add_argument("--tokens", type=int, default=96, help="of an answer at most")
    options = parser.parse_args()
    asyncio.run(compare(options.servers, options.out, options.every, options.tokens))
