"""`bench`: send prompt suites to a running server, and measure, record and summarize the requests."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import time
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from dflash_tui.benchmark import client, suites, summary
from dflash_tui.benchmark.load import Load, LoadRecord
from dflash_tui.benchmark.memory_limit import compare_with_memory
from dflash_tui.benchmark.prompts import Sampling, Suite, TokenVariety, name_template
from dflash_tui.benchmark.server import Server, ServerSeen
from dflash_tui.benchmark.sse import CompletionStream
from dflash_tui.benchmark.summary import Goodput, LevelSummary, Slo
from dflash_tui.cli.console import is_json, print_data, print_status, print_text, terminal_width
from dflash_tui.cli.event_lines import print_event
from dflash_tui.cli.requests import choose_server, ensure_dataset
from dflash_tui.common.errors import ServerFailed, UsageError
from dflash_tui.engines import model_hub
from dflash_tui.events import FILLER, OBSERVER_SOURCE, Health, LogLine, RequestDone
from dflash_tui.machine import nvml
from dflash_tui.monitoring import observer, recorder, step_history
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.step_limit import StepReader
from dflash_tui.presentation import benchmark_text
from dflash_tui.presentation.report import to_terminal
from dflash_tui.run_state.speculation import DraftForecast
from dflash_tui.run_state.state import RunState
from dflash_tui.runs.run import Run

# Seconds to wait until the server's last counters are recorded.
_LAST_READING = 30.0
# Added to the seed, so that warm-up texts differ from measured ones.
_WARM_UP_SEED = 1_000_003
_QUESTION = "What is the capital of France, and what is it known for?"


class Bench(NamedTuple):
    """What a bench sends and prints; if `watched`, the run's observer prints the recorded requests."""

    server: Server
    suite: Suite
    sampling: Sampling
    rounds: int = 1
    levels: tuple[int, ...] = (1,)
    watched: bool = False
    samplers: tuple[str, ...] = ()
    rate: float = 0.0
    ramp: float = 0.0
    slo: Slo | None = None
    warm_up: int = 0
    token_variety: TokenVariety = TokenVariety.UNCHECKED
    limit: bool = False
    dataset: str = ""

    def suit_to(self, samplers: tuple[str, ...]) -> Bench:
        """Return the bench for a server whose log names these samplers."""
        return self._replace(sampling=self.sampling.suit_to(samplers), samplers=samplers)

    async def send_warm_up(self) -> None:
        """Send the uncounted warm-up rounds, one request at a time, with texts that no measured request has."""
        if not self.warm_up:
            return
        print_status(f"warm-up, not counted: the prompts {self.warm_up} times")
        sampling = self.sampling._replace(seed=self.sampling.seed + _WARM_UP_SEED)
        requests = client.send_suite(self.server, self.suite, sampling, rounds=self.warm_up)
        async with aclosing(requests):
            async for request in requests:
                if request.error:
                    print_status(f"! {request.kind}: {request.error}")

    async def level(self, streams: int) -> LevelSummary:
        """Send the suite with `streams` requests at a time, print and record each, and return their summary."""
        server, run, done = self.server, self.server.run, list[RequestDone]()
        before = await client.read_counters(server)
        print_text(benchmark_text.format_request(None))
        load = Load(0 if self.rate else streams, self.rate, self.ramp)
        record = LoadRecord(load, partial(nvml.read_energy, run.metered_gpus if run else ()))
        requests = client.send_suite(
            server, self.suite, self.sampling, rounds=self.suite.rounds(self.rounds, streams), record=record
        )
        async with aclosing(requests):
            async for request in requests:
                if run:
                    run.record(request)
                if request.kind == FILLER:
                    continue
                done.append(request)
                print_text(benchmark_text.format_request(request))
                if is_json() and not self.watched:
                    print_event(request)
        after = await client.read_counters(server)
        measured = self._summarize(
            LevelSummary.from_requests(server, done, before, after, self.suite, record=record), done
        )
        if is_json():
            print_event(measured)
        else:
            is_session = any(prompt.session for prompt in self.suite.prompts)
            sections = [benchmark_text.build_turns(done)] if is_session else []
            print_data(to_terminal([*sections, benchmark_text.build_level(measured)], terminal_width()))
        if measured.failed == len(done):
            hint = f"the log: {run.log}" if run else "the log of the server may say why"
            raise ServerFailed("no request succeeded", evidence=done[-1].error, hint=hint)
        return measured

    def _summarize(self, measured: LevelSummary, done: Sequence[RequestDone]) -> LevelSummary:
        """Return the summary with what this bench knows of its requests, and what they say about the launch."""
        run = self.server.run
        # A server known by its address may ignore fields of a request.
        is_full = bool(run) or all(request.finish == "length" for request in done if not request.error)
        knows_sampler = bool(run) or self.sampling.temperature == 0
        measured = replace(
            measured,
            fixed=self.sampling.fixed and is_full,
            token_variety=self.token_variety,
            sampling=name_template(self.sampling.words, run.plan) if run else self.sampling.words,
            sampler=self.sampling.name_sampler(self.samplers) if knows_sampler else "unknown",
            goodput=Goodput.from_requests(self.slo, done, measured.completed_per_second) if self.slo else None,
        )
        if self.limit:
            reader = _read_step_models(run.plan) if run else None
            measured = replace(measured, memory_limit=compare_with_memory(reader, measured, done))
        if run and measured.streams == 1:
            measured = replace(measured, fewer_drafts=self._forecast_drafts(run.plan, measured, done))
        return measured

    def _forecast_drafts(self, plan: Plan, measured: LevelSummary, done: Sequence[RequestDone]) -> DraftForecast | None:
        """Return what fewer drafts would gain, with the command that tries them."""
        found = step_history.forecast_from_history(plan, done, measured.per_position, measured.steps or 0.0)
        if not found:
            return None
        request, vary = step_history.build_trial(plan, found)
        prompts = ["--dataset", self.dataset] if self.dataset else []
        words = ["dflash-tui", "ab" if found.step_ratio else "tune", *request.to_argv(), "--vary", vary, *prompts]
        return replace(found, command=shlex.join(words))


def bench(args: argparse.Namespace) -> int:
    """`bench [RUN|URL]`: send the prompts and print the measures of each request."""
    if args.rate and args.concurrency != (1,):
        raise UsageError("--rate cannot be combined with --concurrency", hint="use only one of them")
    server = choose_server(args)
    ensure_dataset(args.suite)
    suite, plan = suites.load_suite(args.suite), server.run.plan if server.run else None
    scale = args.scale if args.scale is not None else plan.bench_scale if plan else 1.0
    sampling = Sampling(scale, args.seed, args.temperature, args.fixed, top_p=args.top_p, top_k=args.top_k)
    benchmark = Bench(
        server, suite, sampling.as_published(plan.expected if plan else ()), args.rounds, args.concurrency,
        rate=args.rate, ramp=args.ramp, slo=summary.parse_slo(args.slo) if args.slo else None, warm_up=args.warm_up,
        limit=args.limit, dataset=args.suite,
    )  # fmt: skip
    if server.run:
        return asyncio.run(_bench_run(benchmark, server.run))
    if is_json():
        print_event(ServerSeen(time.time(), server.url, server.model, server.facts))
    else:
        print_data(benchmark_text.format_server(server))
    asyncio.run(run_bench(benchmark))
    return 0


def _read_step_models(plan: Plan) -> StepReader:
    drafter = model_hub.read_step_model(plan, plan.drafter) if plan.drafter else None
    return StepReader(plan, model_hub.read_step_model(plan, plan.target), drafter)


async def _bench_run(benchmark: Bench, run: Run) -> int:
    """Measure a run after its first request, and record it unless another process does."""
    state, answered, can_record = RunState(), asyncio.Event(), True

    async def follow() -> None:
        nonlocal can_record
        async with observer.observe_run(run) as events:
            async for event in events:
                state.apply(event)
                if isinstance(event, LogLine) and event.source == OBSERVER_SOURCE:
                    can_record = event.text == recorder.RECORDING_AGAIN
                    print_status(f"! {event.text}")
                if state.health in {Health.WARM, Health.UNHEALTHY}:
                    answered.set()

    following = asyncio.create_task(follow())
    try:
        await wait_for_first_answer(answered, following)
        await run_bench(benchmark.suit_to(state.startup.samplers))
        if can_record:
            await _wait_for_last_reading(run, state, following)
        return 0
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _wait_for_last_reading(run: Run, state: RunState, following: asyncio.Task[None]) -> None:
    """Wait until all tokens generated so far are in the recorded counters, or the server has ended."""
    counters = await client.read_counters(Server.from_run(run))
    deadline = time.monotonic() + _LAST_READING
    while counters and not following.done() and time.monotonic() < deadline:
        if state.readings and state.readings[-1].counters.generated >= counters.generated:
            return
        await asyncio.sleep(0.1)
    if counters and not following.done():
        print_status(f"! the server's last figures were not recorded within {_LAST_READING:.0f} s")


async def wait_for_first_answer(answered: asyncio.Event, following: asyncio.Task[None]) -> bool:
    """Wait until the server has answered its first request, or ended; return whether it answered."""
    waiting = asyncio.create_task(answered.wait())
    await asyncio.wait({waiting, following}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    return answered.is_set()


async def show_exchange(run: Run) -> None:
    """Ask one question at temperature 0, uncounted, and print it with its answer."""
    stream = CompletionStream("question")
    body = {"messages": [{"role": "user", "content": _QUESTION}], "max_tokens": 64, "temperature": 0.0}
    if not (await client.send_conversation(Server.from_run(run), body, stream)).error:
        print_data(benchmark_text.format_exchange(_QUESTION, stream.build_answer()))


async def run_bench(benchmark: Bench) -> None:
    """Send the warm-up and each level, then print a table of the levels if there are several."""
    levels = []
    suite, found = await client.vary_tokens(benchmark.server, benchmark.suite)
    benchmark = benchmark._replace(suite=suite, token_variety=found)
    await benchmark.send_warm_up()
    for streams in benchmark.levels:
        if len(benchmark.levels) > 1:
            print_text(f"\n{streams} at a time")
        levels.append(await benchmark.level(streams))
    if len(levels) > 1:
        print_text(f"\n{to_terminal([benchmark_text.build_levels(levels)], terminal_width())}")
