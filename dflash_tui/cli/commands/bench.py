"""`bench`: send suites of prompts to a running server, measure, record and sum up."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import aclosing
from typing import NamedTuple

from dflash_tui.benchmark import client, suites, vllm_bench
from dflash_tui.benchmark.client import Sampling
from dflash_tui.benchmark.imported_results import ImportedResult
from dflash_tui.benchmark.suites import Suite
from dflash_tui.benchmark.summary import LevelSummary
from dflash_tui.cli.console import print_data, print_status
from dflash_tui.common.errors import ServerFailed, UsageError
from dflash_tui.events import Health, RequestDone, encode
from dflash_tui.machine import processes
from dflash_tui.monitoring import observer, recorder
from dflash_tui.presentation import benchmark_text
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import registry, run_files, server_process
from dflash_tui.runs.run import Run

# What the turn that does not count is taken to last at most: seconds.
_WARM_UP = 600.0


class Bench(NamedTuple):
    """What a bench sends and how it shows it; `watched` runs show the recorded requests themselves."""

    run: Run
    suite: Suite
    sampling: Sampling
    rounds: int = 1
    levels: tuple[int, ...] = (1,)
    with_vllm: bool = False
    as_json: bool = False
    watched: bool = False

    async def level(self, streams: int) -> LevelSummary:
        """Send the suite with so many requests under way, print and record each, and return what they sum up to."""
        run, done = self.run, list[RequestDone]()
        before = await recorder.read_counters(run)
        if not self.as_json:
            print_data(benchmark_text.format_request(None))
        requests = client.send_suite(
            run.url, run.plan.served_name, self.suite, self.sampling,
            rounds=self.suite.rounds(self.rounds, streams), streams=streams, key=run.api_key,
        )  # fmt: skip
        async with aclosing(requests):
            async for request in requests:
                run_files.record_event(run, request)
                done.append(request)
                if not self.as_json:
                    print_data(benchmark_text.format_request(request))
                elif not self.watched:
                    print_data(encode(request).decode())
        measured = LevelSummary.from_requests(run, done, before, await recorder.read_counters(run), self.suite)
        if self.as_json:
            print_data(encode(measured).decode())
        else:
            print_data(
                "\n".join(
                    filter(None, (benchmark_text.tabulate_kinds(measured), benchmark_text.format_level(measured)))
                )
            )
        if measured.failed == len(done):
            raise ServerFailed("no request succeeded", evidence=done[-1].error, hint=f"the log: {run.log}")
        return measured

    async def turns(self, streams: int) -> None:
        """Let us and the engine's own benchmark send the same by turns, a round each, and print both.

        Who begins changes from turn to turn, so that what drifts on the machine meets both alike. Several turns begin
        with one that does not count: what a server has not met before, such as its first long prompt, takes longer.
        """
        ours, theirs = list[LevelSummary](), list[ImportedResult]()
        if self.rounds > 1:
            print_status("warm-up, not counted: vllm bench serve sends the prompts once")
            await self._turn(self.rounds).theirs(streams, _WARM_UP)
        for turn in range(self.rounds):
            mine = self._turn(turn)
            print_status(f"turn {turn + 1} of {self.rounds}: dflash-tui and vllm bench serve send the same prompts")
            if turn % 2:
                theirs.append(await mine.theirs(streams, ours[-1].seconds))
            ours.append(await mine.level(streams))
            if not turn % 2:
                theirs.append(await mine.theirs(streams, ours[-1].seconds))
        compared = vllm_bench.VllmBenchCompared.from_results(self.run, ours, theirs)
        if self.as_json:
            print_data(encode(compared).decode())
            return
        print_data(benchmark_text.tabulate_with_vllm(ours, compared))
        if compared.synthetic:
            print_data(benchmark_text.format_synthetic_warning(compared.synthetic))

    def _turn(self, number: int) -> Bench:
        """Return the bench of one round, whose texts are those of no other."""
        return self._replace(rounds=1, sampling=self.sampling._replace(seed=self.sampling.seed + number))

    async def theirs(self, streams: int, seconds: float) -> ImportedResult:
        """Return what `vllm bench serve` says of one level, which took us so many seconds."""
        scale, seed, temperature, _ = self.sampling
        asks = [
            vllm_bench.BenchPrompt(client.make_prompt_unique(prompt, number, seed), client.answer_length(prompt, scale))
            for prompt, number in client.order_requests(self.suite, self.suite.rounds(self.rounds, streams), seed)
        ]
        return await vllm_bench.run_vllm_bench(
            self.run, asks, seed=seed, temperature=temperature, streams=streams, patience=60 + 10 * seconds
        )


def bench(args: argparse.Namespace) -> int:
    """`bench [RUN]`: send the prompts and print what each request took."""
    suite, run = suites.load_suite(args.suite), registry.find_run(args.run)
    if not server_process.is_alive(run):
        raise UsageError(f"{run.id} has ended", hint="dflash-tui ps lists the servers that run")
    if not processes.is_listening_on(server_process.list_processes(run), run.plan.port):
        raise UsageError(f"{run.id} does not answer on port {run.plan.port} yet", hint="dflash-tui attach shows when")
    scale = run.plan.bench_scale if args.scale is None else args.scale
    sampling = Sampling(scale, args.seed, args.temperature, args.fixed or args.with_vllm)
    asked = Bench(run, suite, sampling, args.rounds, args.concurrency, args.with_vllm, args.json)
    return asyncio.run(_bench(asked))


async def _bench(asked: Bench) -> int:
    """Measure a run, recorded by us if nobody else does, after the first request that a server owes."""
    state, answered = RunState(), asyncio.Event()

    async def follow() -> None:
        async with observer.observe_run(asked.run) as events:
            async for event in events:
                state.apply(event)
                if state.health in {Health.WARM, Health.UNHEALTHY}:
                    answered.set()

    following = asyncio.create_task(follow())
    try:
        await wait_for_first_answer(answered, following)
        await run_bench(asked)
        await asyncio.sleep(2 * recorder.SAMPLE_INTERVAL)  # the last reading is recorded, too
        return 0
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def wait_for_first_answer(answered: asyncio.Event, following: asyncio.Task[None]) -> bool:
    """Wait until the server has answered its first request, or ended; return whether it answered."""
    waiting = asyncio.create_task(answered.wait())
    await asyncio.wait({waiting, following}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    return answered.is_set()


async def run_bench(asked: Bench) -> None:
    """Send and sum up each level, then show the levels beside each other when there are several.

    Raises:
        ServerFailed: no request of a level succeeded.
    """
    levels = []
    for streams in asked.levels:
        if len(asked.levels) > 1 and not asked.as_json:
            print_data(f"\n{streams} at a time")
        if asked.with_vllm:
            await asked.turns(streams)
        else:
            levels.append(await asked.level(streams))
    if len(levels) > 1 and not asked.as_json:
        print_data(f"\n{benchmark_text.tabulate_levels(levels)}")
        if asked.run.plan.synthetic:
            print_data(benchmark_text.format_synthetic_warning(asked.run.plan.synthetic))
