"""What a boot of an experiment sends: one request alone, warm-ups, the measured ones, and answers to be scored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from msgspec.structs import replace

from dflash_tui.benchmark import client
from dflash_tui.benchmark.client import MOST_POSITIONS, AnswerSink, TokenScorer, measure_gaps, measure_shifts
from dflash_tui.benchmark.load import Load, LoadRecord
from dflash_tui.benchmark.prompts import Prompt, Sampling, Suite
from dflash_tui.common import bounded_http
from dflash_tui.common.errors import DflashError
from dflash_tui.events import RequestDone
from dflash_tui.experiments import store
from dflash_tui.experiments.analysis.answers import PromptKey, locate_difference
from dflash_tui.experiments.design import AnswerCheck, Design, KeptAnswer
from dflash_tui.machine import nvml
from dflash_tui.runs.run import Run

# Long enough to load every kernel that decoding takes, short beside what is measured.
_WARM_UP_TOKENS = 64
# Log-probabilities are float32: differences of less say nothing.
_DIGITS = 4


def choose_sampling(design: Design, samplers: Sequence[str] = ()) -> Sampling:
    """Return how measured prompts are answered by a server whose log says that it samples with these."""
    sampling = Sampling(design.scale, design.seed, design.temperature, design.fixed, top_p=design.top_p)
    return sampling._replace(tokens=design.checks_output).suit_to(samplers)


def count_most_tokens(design: Design) -> int:
    """Return the tokens of all answers of a boot with one stream, each as long as it may be: 0 without its suite."""
    try:
        suite = store.load_experiment_suite(design)
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


async def check_kept_answers(design: Design, arm: int, run: Run) -> tuple[AnswerCheck, ...]:
    """Return a check of each answer of other arms to a prompt that `run`, a server of `arm`, has answered, too."""
    folder = store.experiment_folder(design.id)
    others = {boot.run for boot in store.read_progress(folder).boots if boot.arm != arm and not boot.error}
    keyed = [(PromptKey(line.kind, line.streams, line.round), line) for line in store.read_answers(folder)]
    ours = {key: line for key, line in keyed if line.run == run.id}
    theirs = {key: line for key, line in keyed if line.run in others}
    async with TokenScorer(run.url, run.plan.served_name, run.api_key) as scorer:
        return tuple([await _check_answer(scorer, theirs[key], ours[key]) for key in ours if key in theirs])


async def _check_answer(scorer: TokenScorer, theirs: KeptAnswer, ours: KeptAnswer) -> AnswerCheck:
    check = AnswerCheck(theirs.kind, theirs.streams, theirs.round)
    prompt, ours_tokens, theirs_tokens = theirs.answer.prompt, ours.answer.tokens, theirs.answer.tokens
    if not (prompt and ours_tokens and theirs_tokens) or prompt != ours.answer.prompt:
        return replace(check, error="the server did not name the tokens")
    if (room := MOST_POSITIONS - len(prompt)) < 1:
        return replace(check, error=f"the prompt has more than {MOST_POSITIONS} tokens")
    scored = theirs_tokens[:room]
    try:
        tokens, decoded = await scorer.decode(prompt, len(ours_tokens[:room]))
        read = await scorer.read(prompt, tokens)
        gaps = measure_gaps(scored, read if tokens == [*scored] else await scorer.read(prompt, scored))
    except bounded_http.list_failures(bounded_http.BadResponse) as error:
        return replace(check, error=bounded_http.describe_failure(error))
    shifts, place = measure_shifts(tokens, decoded, read), locate_difference(ours_tokens, theirs_tokens)
    if place is not None and place >= room:
        return replace(check, error=f"the answers part after {MOST_POSITIONS} tokens")
    worst = max(range(len(gaps)), key=gaps.__getitem__)
    return replace(
        check,
        tokens=len(gaps),
        parted=None if place is None else place + 1,
        ends_early=place is not None and place >= min(len(ours_tokens), len(theirs_tokens)),
        gap=round(gaps[worst], _DIGITS),
        place=worst + 1,
        rounding=round(max(shifts, default=0.0), _DIGITS),
        positions=len(shifts),
    )
