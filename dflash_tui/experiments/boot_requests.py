"""What a boot of an experiment sends: one request alone, warm-ups, and the measured ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from msgspec.structs import replace

from dflash_tui.benchmark import client
from dflash_tui.benchmark.client import AnswerSink
from dflash_tui.benchmark.load import Load, LoadRecord
from dflash_tui.benchmark.prompts import Prompt, Suite
from dflash_tui.benchmark.sampling import Sampling
from dflash_tui.common.errors import DflashError
from dflash_tui.events import RequestDone
from dflash_tui.experiments.design import Design
from dflash_tui.experiments.store import load_experiment_suite
from dflash_tui.machine import nvml
from dflash_tui.runs.run import Run

# Long enough to load every kernel that decoding takes, short beside what is measured.
_WARM_UP_TOKENS = 64


def choose_sampling(design: Design, samplers: Sequence[str] = ()) -> Sampling:
    """Return how measured prompts are answered by a server whose log says that it samples with these."""
    sampling = Sampling(design.scale, design.seed, design.temperature, design.fixed, top_p=design.top_p)
    return sampling._replace(tokens=design.checks_output).suit_to(samplers)


def count_most_tokens(design: Design) -> int:
    """Return the tokens of all answers of a boot with one stream, each as long as it may be: 0 without its suite."""
    try:
        suite = load_experiment_suite(design)
    except DflashError:
        return 0
    lengths = [client.answer_length(prompt, design.scale) for prompt in suite.prompts]
    measured = sum(length * prompt.repeat for length, prompt in zip(lengths, suite.prompts, strict=True))
    return lengths[0] + sum(_short(design, prompt) for prompt in suite.prompts) + design.rounds * measured


async def send_cold_request(suite: Suite, run: Run, sampling: Sampling) -> AsyncIterator[RequestDone]:
    """Send the first prompt, alone, as the first real request of a server."""
    without_tokens = sampling._replace(tokens=False)
    yield await client.send_prompt(run.url, run.plan.served_name, suite.prompts[0], without_tokens, key=run.api_key)


async def send_warm_up(design: Design, suite: Suite, run: Run, sampling: Sampling) -> AsyncIterator[RequestDone]:
    """Send every prompt with a short answer, alone and at each number of streams, as many as that at least."""
    for streams in dict.fromkeys((1, *design.concurrency)):
        times = -(-streams // len(suite.prompts))
        short = tuple(replace(prompt, max_tokens=_short(design, prompt), repeat=times) for prompt in suite.prompts)
        async for request in client.send_suite(
            run.url,
            run.plan.served_name,
            replace(suite, prompts=short),
            sampling._replace(scale=1.0, fixed=True, tokens=False),
            streams=streams,
            key=run.api_key,
        ):
            yield request


def _short(design: Design, prompt: Prompt) -> int:
    return min(prompt.max_tokens, client.answer_length(prompt, design.scale), _WARM_UP_TOKENS)


async def send_measured_rounds(
    design: Design,
    suite: Suite,
    run: Run,
    sampling: Sampling,
    *,
    keep: AnswerSink | None = None,
    records: list[LoadRecord] | None = None,
) -> AsyncIterator[RequestDone]:
    """Send every prompt `rounds` times, or as often as the streams need, for each number of streams; fillers, too.

    Args:
        design: the experiment, whose seed gives the order.
        suite: the prompts.
        run: the server.
        sampling: how they are to be answered.
        keep: takes each answer that counts.
        records: gets the record of each number of streams.
    """
    meter = nvml.find_energy_meter(run.metered_gpus)
    for streams in design.concurrency:
        record = LoadRecord(Load(streams), meter)
        if records is not None:
            records.append(record)
        async for request in client.send_suite(
            run.url,
            run.plan.served_name,
            suite,
            sampling,
            rounds=suite.rounds(design.rounds, streams),
            key=run.api_key,
            keep=keep,
            record=record,
        ):
            yield request
