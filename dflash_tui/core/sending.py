"""What a boot of an experiment sends: one request alone, warm-ups, and the measured ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import lru_cache

from msgspec.structs import replace

from dflash_tui.core import suites, workload
from dflash_tui.core.events import RequestDone
from dflash_tui.core.experiment import Design
from dflash_tui.core.server import Run
from dflash_tui.core.suites import Suite
from dflash_tui.errors import DflashError, UsageError

# Long enough to load every kernel that decoding takes, short beside what is measured.
_WARM_UP_TOKENS = 64


def suite_of(design: Design) -> Suite:
    """Return the prompts of an experiment.

    Raises:
        UsageError: they are not those that it was begun with.
    """
    suite = suites.load(design.suite)
    if suite.digest != design.digest:
        raise UsageError(f"the suite {suite.name} is not what it was when {design.id} began", do="begin a new one")
    return suite


def due(design: Design) -> int:
    """Return how many measured requests a boot sends; 0 when the suite is gone."""
    return _in_a_round(design.suite, design.digest) * design.rounds * len(design.concurrency)


@lru_cache(maxsize=32)
def _in_a_round(name: str, digest: str) -> int:
    try:
        suite = suites.load(name)
    except DflashError:
        return 0
    return sum(prompt.repeat for prompt in suite.prompts) if suite.digest == digest else 0


async def cold(design: Design, suite: Suite, run: Run) -> AsyncIterator[RequestDone]:
    """Send the first prompt, alone, as the first real request of a server."""
    yield await workload.one(
        run.url,
        run.plan.served_name,
        suite.prompts[0],
        scale=design.scale,
        seed=design.seed,
        temperature=design.temperature,
    )


async def warm_up(design: Design, suite: Suite, run: Run) -> AsyncIterator[RequestDone]:
    """Send every prompt once, with a short answer."""
    for prompt in suite.prompts:
        tokens = min(prompt.max_tokens, workload.length(prompt, design.scale), _WARM_UP_TOKENS)
        yield await workload.one(
            run.url,
            run.plan.served_name,
            replace(prompt, max_tokens=tokens),
            seed=design.seed,
            temperature=design.temperature,
        )


async def measured(design: Design, suite: Suite, run: Run) -> AsyncIterator[RequestDone]:
    """Send every prompt `rounds` times, in the order that the seed gives, for each number of streams."""
    for streams in design.concurrency:
        async for request in workload.answer(
            run.url,
            run.plan.served_name,
            suite,
            rounds=design.rounds,
            scale=design.scale,
            seed=design.seed,
            temperature=design.temperature,
            streams=streams,
        ):
            yield request
