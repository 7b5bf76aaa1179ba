"""What a boot of an experiment sends: one request alone, warm-ups, and the measured ones."""

from __future__ import annotations

from collections.abc import AsyncIterator

from msgspec.structs import replace

from dflash_tui.benchmark import client
from dflash_tui.benchmark.client import Sampling
from dflash_tui.benchmark.suites import Prompt, Suite
from dflash_tui.events import RequestDone
from dflash_tui.experiments.design import Design
from dflash_tui.runs.run import Run

# Long enough to load every kernel that decoding takes, short beside what is measured.
_WARM_UP_TOKENS = 64


async def send_cold_request(design: Design, suite: Suite, run: Run) -> AsyncIterator[RequestDone]:
    """Send the first prompt, alone, as the first real request of a server."""
    yield await client.send_prompt(
        run.url,
        run.plan.served_name,
        suite.prompts[0],
        Sampling(design.scale, design.seed, design.temperature),
        key=run.api_key,
    )


async def send_warm_up(design: Design, suite: Suite, run: Run) -> AsyncIterator[RequestDone]:
    """Send every prompt with a short answer, alone and at each number of streams, as many as that at least."""
    for streams in dict.fromkeys((1, *design.concurrency)):
        times = -(-streams // len(suite.prompts))
        short = tuple(replace(prompt, max_tokens=_short(design, prompt), repeat=times) for prompt in suite.prompts)
        async for request in client.send_suite(
            run.url,
            run.plan.served_name,
            replace(suite, prompts=short),
            Sampling(seed=design.seed, temperature=design.temperature),
            streams=streams,
            key=run.api_key,
        ):
            yield request


def _short(design: Design, prompt: Prompt) -> int:
    return min(prompt.max_tokens, client.answer_length(prompt, design.scale), _WARM_UP_TOKENS)


async def send_measured_rounds(design: Design, suite: Suite, run: Run) -> AsyncIterator[RequestDone]:
    """Send every prompt `rounds` times, or as often as keeps all streams busy, for each number of streams.

    The order is the one that the seed gives.
    """
    for streams in design.concurrency:
        async for request in client.send_suite(
            run.url,
            run.plan.served_name,
            suite,
            Sampling(design.scale, design.seed, design.temperature),
            rounds=suite.rounds(design.rounds, streams),
            key=run.api_key,
            streams=streams,
        ):
            yield request
