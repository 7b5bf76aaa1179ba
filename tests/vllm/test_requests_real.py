"""Requests to the real vLLM, held against its own counters: tokens without a text, and eight at a time."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import fmean
from typing import NamedTuple

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dflash_tui.benchmark import client, suites
from dflash_tui.benchmark.load import Load, LoadRecord
from dflash_tui.benchmark.prompts import Sampling
from dflash_tui.benchmark.server import Server
from dflash_tui.benchmark.sse import CompletionStream
from dflash_tui.events import FILLER, Health, RequestDone
from dflash_tui.monitoring import observer
from dflash_tui.runs import registry
from dflash_tui.runs.run import Run
from tests.support.waiting import until

pytestmark = [pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(1800)]
PORT, TOKENS, ATTEMPTS = "8773", 300, 40
# The toy's special tokens have no text, its letters have one.
SPECIAL, LETTERS = [1020, 1021, 1022], [65, 66, 67]
ALLOWED = {"special tokens only": SPECIAL, "special tokens among others": [*SPECIAL, *LETTERS]}


async def counted(http: httpx.AsyncClient) -> dict[str, float]:
    """Return the server's counters by another reader than the product's."""
    text = (await http.get("/metrics")).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    sums: dict[str, float] = {}
    for sample in samples:
        sums[sample.name.removeprefix("vllm:")] = sums.get(sample.name.removeprefix("vllm:"), 0.0) + sample.value
    return sums


async def test_request_measurements_match_server_counters(with_engine):
    """Answers without a text have the server's own speed; of eight at a time, eight are under way by its own gauge."""
    words = ("--port", PORT, "--set", "max-num-seqs=8", "--detach")
    command = [sys.executable, "-m", "dflash_tui", "up", "toy", *words]
    assert subprocess.run(command, check=False, timeout=300).returncode == 0
    [run] = registry.list_runs()
    async with observer.fold_run(run) as (state, _):
        await until(lambda: state.health is Health.WARM)
    async with httpx.AsyncClient(base_url=run.url, timeout=300) as http:
        for allowed in ALLOWED.values():
            # A reader that waits for a processor gets an answer late or in one piece, whose speed nobody knows.
            attempts = [await _an_answer_is_timed_right(run, http, allowed)]
            while attempts[-1] is None or attempts[-1] != pytest.approx(1, rel=0.15):
                assert len(attempts) < ATTEMPTS, attempts
                attempts.append(await _an_answer_is_timed_right(run, http, allowed))
        # Nor has it eight under way, or has read what the server generated, while it waits for one.
        sent = [await _send_eight_at_a_time(run, http)]
        while sent[-1].running < 7.0 or sent[-1].unseen > 8 * 64:
            assert len(sent) < ATTEMPTS, sent
            sent.append(await _send_eight_at_a_time(run, http))


async def _an_answer_is_timed_right(run: Run, http: httpx.AsyncClient, allowed: list[int]) -> float | None:
    """Its tokens are those of the server's counters; return its speed as a share of theirs, None where it has none."""
    body = {
        "model": run.plan.served_name, "messages": [{"role": "user", "content": "Tell me."}], "max_tokens": TOKENS,
        "allowed_token_ids": allowed, "ignore_eos": True, "temperature": 1.0, "seed": 1,
    }  # fmt: skip
    before = await counted(http)
    stream = CompletionStream("special")
    done = await client.send_conversation(Server.from_run(run), body, stream)
    after = await counted(http)
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    assert (done.error, done.tokens, grown["generation_tokens_total"]) == ("", TOKENS, TOKENS)
    assert (stream.count_tokens(), done.finish) == (TOKENS, "length")
    assert done.ttft is not None
    assert done.ttft >= grown["time_to_first_token_seconds_sum"] * 0.9
    steps, accepted = grown["spec_decode_num_drafts_total"], grown["spec_decode_num_accepted_tokens_total"]
    assert (done.steps, done.accepted) == (steps, accepted)
    assert done.acceptance_length == pytest.approx((TOKENS - 1) / steps)
    assert 0 <= 1 + steps + accepted - TOKENS <= run.plan.num_speculative_tokens
    return done.decode_tok_s and done.decode_tok_s * grown["request_decode_time_seconds_sum"] / (TOKENS - 1)


class Sent(NamedTuple):
    """What the server says of eight at a time: how many ran on average, and what it generated that nobody read."""

    running: float
    unseen: float


async def _send_eight_at_a_time(run: Run, http: httpx.AsyncClient) -> Sent:
    """Send eight at a time, one answer eight times as long as the others."""
    suite, record = suites.load_suite("quick"), LoadRecord(Load(8))
    while (before := await counted(http))["num_requests_running"]:  # fillers of another try that were broken off
        await asyncio.sleep(0.1)
    async with _watch_gauge(http) as running:
        sampling = Sampling(1.0, fixed=True)
        requests = client.send_suite(Server.from_run(run), suite, sampling, rounds=2, record=record)
        done: list[RequestDone] = [request async for request in requests]
    window, after = record.measure_window(), await counted(http)
    counts = [request for request in done if request.kind != FILLER]
    assert (len(counts), {request.error for request in counts}) == (10, {""})
    assert window.under_way >= 7.5
    # What a filler has generated when it is broken off is a step of each of them ahead of what arrived.
    ours = sum(request.tokens for request in counts) + window.filler_tokens
    unseen = after["generation_tokens_total"] - before["generation_tokens_total"] - ours
    assert unseen >= 0
    assert 0 < window.tokens <= ours
    return Sent(fmean(running), unseen)


@asynccontextmanager
async def _watch_gauge(http: httpx.AsyncClient) -> AsyncIterator[list[float]]:
    """Take down how many requests the server says are running, from the first on that sees any to the last."""
    seen: list[float] = []

    async def watch() -> None:
        while True:
            figures = await counted(http)
            seen.append(figures["num_requests_running"] + figures["num_requests_waiting"])
            await asyncio.sleep(0.1)

    watching = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        while seen and not seen[0]:
            seen.pop(0)
        while seen and seen[-1] < seen[0]:
            seen.pop()
