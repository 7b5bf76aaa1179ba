"""What a boot of an experiment sends: one request alone, warm-ups, and the measured ones."""

from __future__ import annotations

from collections.abc import AsyncIterator

from msgspec.structs import replace

from dflash_tui.core import workload
from dflash_tui.core.events import RequestDone
from dflash_tui.core.experiment import Design
from dflash_tui.core.server import Run

# Long enough to load every kernel that decoding takes, short beside what is measured.
_WARM_UP_TOKENS = 64


def due(design: Design) -> int:
    """Return how many measured requests a boot sends; 0 when the suite is gone."""
    return len(workload.PROMPTS) * design.rounds * len(design.concurrency)


async def cold(design: Design, run: Run) -> RequestDone:
    """Send the first prompt, alone, as the first real request of a server."""
    async for request in workload.run(
        run.url, run.plan.served_name, workload.PROMPTS[:1], scale=design.scale, temperature=design.temperature
    ):
        return request
    raise AssertionError


async def warm_up(design: Design, run: Run) -> AsyncIterator[RequestDone]:
    """Send every prompt once, with a short answer."""
    prompts = tuple(p._replace(max_tokens=min(p.max_tokens, _WARM_UP_TOKENS)) for p in workload.PROMPTS)
    async for request in workload.run(
        run.url, run.plan.served_name, prompts, scale=design.scale, temperature=design.temperature
    ):
        yield request


async def measured(design: Design, run: Run) -> AsyncIterator[RequestDone]:
    """Send every prompt `rounds` times, in the order that the seed gives, for each number of streams."""
    for _ in design.concurrency:
        for number in range(design.rounds):
            async for request in workload.run(
                run.url, run.plan.served_name, scale=design.scale, temperature=design.temperature
            ):
                yield replace(request, round=number)
