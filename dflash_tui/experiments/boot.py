"""One boot of an experiment: prepare, launch, warm up, measure, stop, wait for its memory."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from dflash_tui.benchmark import client
from dflash_tui.benchmark.client import MOST_POSITIONS, AnswerSink, TokenScorer, measure_gaps, measure_shifts
from dflash_tui.benchmark.load import Load, LoadRecord, MeasuredWindow
from dflash_tui.benchmark.prompts import Prompt, Sampling, Suite, name_kind
from dflash_tui.benchmark.server import Server
from dflash_tui.benchmark.sse import Answer, ArrivalMark
from dflash_tui.common import bounded_http
from dflash_tui.common.errors import DflashError, MemoryTaken
from dflash_tui.common.sanitizer import escape_control_characters
from dflash_tui.diagnosis import postmortem
from dflash_tui.engines import environments
from dflash_tui.events import FILLER, WARM_UP, Event, Health, Preparing, RankState, RequestDone, Step
from dflash_tui.experiments import boot_server, store
from dflash_tui.experiments.analysis.answers import PromptKey, locate_difference
from dflash_tui.experiments.boot_server import BootServer
from dflash_tui.experiments.design import (
    AnswerCheck,
    Boot,
    BootBegan,
    Design,
    KeptAnswer,
    RequestMeasured,
    RunningServer,
)
from dflash_tui.launch import session
from dflash_tui.machine import nvml
from dflash_tui.monitoring import observer, server_identity
from dflash_tui.monitoring.startup_history import MedianSeconds, summarize_steps
from dflash_tui.planning.plan import ArmCache
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.planning.startup_optimizations import FORK
from dflash_tui.run_state import alarms
from dflash_tui.run_state.state import RunState
from dflash_tui.runs.run import Run
from dflash_tui.vllm_output.metrics import subtract

# Longer than any published start, even with a slow disk and a cold cache.
READY_TIMEOUT = 5400.0
# The recorder checks the server's health once a second, and reports it unhealthy after two failures.
_DYING_SECONDS = 5.0
# The longest start in a tune: this share of its budget, but at least these seconds.
_START_SHARE, _LEAST_START = 1 / 3, 300.0
# The keeper records another host every 5 s, and considers it lost after 5 s of silence.
_RANK_SECONDS = 30.0
_POLL_INTERVAL = 0.05
# The status of a request that the server always rejects, such as a prompt longer than its context.
_BAD_REQUEST = 400
_NO_TIME = MedianSeconds(0.0, 0)
EventSink = Callable[[Event], None]
# Enough to load every kernel used in decoding, and few compared with the measured tokens.
_WARM_UP_TOKENS = 64
# Logits of this many times as many positions fit the memory of a CPU.
_ON_CPU = 4
# Log-probabilities are float32, so smaller differences mean nothing.
_DIGITS = 4


def prepare_cache(design: Design, arm: int, *, first: bool) -> Path | None:
    """Return the compile cache folder of an arm, if it has its own; emptied before a first or cold boot."""
    if not design.own_cache:
        return None
    cache = store.experiment_folder(design.id) / "cache" / str(arm)
    if first or design.cold:
        shutil.rmtree(cache, ignore_errors=True)
    return cache


async def run_boot(
    design: Design, number: int, attempt: int, resolved: ResolvedRecipe, tell: EventSink, *, first: bool
) -> Boot:
    """Return the measurements of a boot, or the boot with `error`; its server is stopped in any case.

    `first` is true until a boot of its arm was up. Raise DflashError if the server rejects a prompt, UserStepNeeded if
    it does not fit beside a running server that is an arm.
    """
    place = design.order[number]
    cache = prepare_cache(design, place, first=first)
    plan = boot_server.tag_plan(design.arms[place], design.id, cache)
    boot = Boot(number, place, "", attempt, began=time.time())
    free = await asyncio.to_thread(boot_server.measure_free_memory, plan)
    server, began = BootServer(), time.monotonic()
    try:
        try:
            far_cache = ArmCache(place, first or design.cold) if cache else None
            run = await server.launch(resolved, plan, _log_preparing, far_cache)
        except DflashError as error:
            if isinstance(error, MemoryTaken) and (near := [other.url for other in design.servers if other.is_here]):
                why = f"{design.arms[place].name} does not fit beside it: {error.evidence}"
                raise UserStepNeeded(f"stop the server at {' and at '.join(near)}", evidence=why) from None
            return replace(boot, error=str(error), prepared=time.monotonic() - began)
        launched = time.monotonic()
        start = "filling" if first and not design.cold else "measured"
        boot = replace(
            boot,
            prepared=launched - began,
            hosts=server.hosts,
            run=run.id,
            began=run.started_at,
            start=start if design.measures_start else "",
            inspected=summarize_steps([run.prepared]).get(Step.INSPECT, _NO_TIME).seconds,
        )
        try:
            tell(BootBegan(run.started_at, number, place, run.id, attempt))
            boot = await asyncio.to_thread(boot_server.with_environment, boot, run, cache)
            async with observer.fold_run(run) as (state, over):
                boot = await _Watch(design, Server.from_run(run), state, over, tell).measure(boot, run)
        except _BootFailed as error:
            boot = replace(boot, error=str(error))
    finally:
        for left in await server.stop():
            write_driver_log(f"left: {left}")
    hosts = [] if await boot_server.wait_for_memory_release(plan, free) else ["this machine"]
    for host in [*hosts, *await server.wait_for_far_memory()]:
        write_driver_log(f"the server's memory was not released within a minute on {host}")
    took = time.monotonic() - launched
    write_driver_log(f"boot {number + 1}: prepared in {launched - began:.1f} s, {took:.1f} s in all")
    return replace(boot, took=took)


async def measure_running_server(
    design: Design, server: RunningServer, number: int, attempt: int, tell: EventSink
) -> Boot:
    """Return the measurements of a turn at a running server, or the turn with `error`.

    Raise UserStepNeeded if it does not answer, or DflashError if it rejects a prompt.
    """
    began, place = time.time(), design.order[number]
    try:
        found = await server_identity.find_server(server.url, server.model, design.key_env)
    except DflashError as error:
        raise UserStepNeeded(f"start the server at {server.url} again, as it was", evidence=str(error)) from None
    told = found.facts
    boot = Boot(
        number, place, f"turn-{number + 1}", attempt, began=began, engine=f"{told.engine} {told.version}".strip(),
        versions={"model": told.answers_as or found.model} | told.settings,
        process=await asyncio.to_thread(server_identity.read_server_process, server.url),
    )  # fmt: skip
    tell(BootBegan(began, number, place, boot.run, attempt))
    # As it answered when the experiment was designed, so that another model is an error.
    expected = replace(found, facts=replace(told, answers_as=server.facts.answers_as))
    try:
        boot = await _Watch(design, expected, RunState(), None, tell).measure_requests(boot)
    except _BootFailed as error:
        boot = replace(boot, error=str(error))
    return replace(boot, took=time.time() - began)


class UserStepNeeded(DflashError):
    """The experiment goes on after the user has done the step in `what`."""


class _BootFailed(Exception):
    """The server cannot be measured; the text says why."""


class _Watch(NamedTuple):
    """A boot under observation; `state` is folded from log and samples, `over` ends with the last event.

    For a running server, which has no run, `state` is empty and `over` None.
    """

    design: Design
    server: Server
    state: RunState
    over: asyncio.Task[None] | None
    tell: EventSink

    async def measure(self, boot: Boot, run: Run) -> Boot:
        """Return the boot with its start and requests measured; raise _BootFailed if the server fails."""
        state, now = self.state, time.time()
        worked = await asyncio.to_thread(boot_server.read_processor_times, run)
        await self._wait_until_warm()
        doubt = alarms.check_first_answer(state, time.time())
        boot = replace(
            boot,
            cache=state.startup.cache,
            up=state.time_to_up,
            ready=state.time_to_ready,
            phases={span.phase.value: span.seconds for span in state.spans(time.time())},
            doubt=f"{doubt.what}: {doubt.evidence}" if doubt else "",
        )
        if not self.design.measures_start:
            return await self.measure_requests(boot)
        others = await self._count_foreign_processors(worked)
        reading = boot_server.measure_conditions(run, state, now)
        return replace(boot, generated=0.0, others=others, before=reading, after=reading)

    async def _count_foreign_processors(self, worked: boot_server.ProcessorTimes | None) -> float | None:
        if not (worked and self.server.run):
            return None
        now = await asyncio.to_thread(boot_server.read_processor_times, self.server.run)
        return boot_server.count_foreign_processors(worked, now)

    async def _take(self, number: int, stage: str, requests: AsyncIterator[RequestDone]) -> list[RequestDone]:
        return [request async for request in requests if await self._record(number, stage, request)]

    async def _record(self, number: int, stage: str, request: RequestDone) -> bool:
        """Record a request of a stage; return whether it is not a filler."""
        is_filler = request.kind == FILLER
        if run := self.server.run:
            run.record(request if is_filler or stage == "round" else replace(request, kind=WARM_UP))
        if is_filler:
            return False
        # In a thread: writing to disk may take a second, and other answers are being timed.
        await asyncio.to_thread(self.tell, RequestMeasured(time.time(), number, stage, request))
        if request.status == _BAD_REQUEST:
            raise DflashError(
                f"{self.design.arms[self.design.order[number]].name}: the server rejected the prompt {request.kind}",
                evidence=request.error,
                hint="start a new A/B: choose other prompts with --suite, or allow longer ones with max-model-len",
            )
        if request.error and run:  # it may be the first sign of a dying server
            deadline = time.monotonic() + _DYING_SECONDS
            while time.monotonic() < deadline:
                await self._pause()
        return True

    async def _pause(self) -> None:
        over, run = self.over, self.server.run
        if over and run and (over.done() or self.state.exit or self.state.health is Health.UNHEALTHY):
            await asyncio.wait({over}, timeout=10)  # so that the log and the system can show the cause
            raise _BootFailed(_describe_failure(run, self.state))
        await asyncio.sleep(_POLL_INTERVAL)

    async def _wait_until_warm(self) -> None:
        tuning, state = self.design.tuning, self.state
        timeout = min(READY_TIMEOUT, max(_LEAST_START, tuning.budget * _START_SHARE)) if tuning else READY_TIMEOUT
        deadline = time.monotonic() + timeout
        while state.health is not Health.WARM or state.ready_at is None:
            await self._pause()
            if (run := self.server.run) and (why := session.explain_failed_fork(run, state, time.time())):
                environments.remember_failed_measure(Path(run.plan.unpatched_folder), FORK, why)
                raise _BootFailed(why)
            if time.monotonic() > deadline:
                raise _BootFailed(f"the server was not ready after {timeout / 60:.0f} minutes")

    async def require_far_ranks(self) -> None:
        """Wait until every other rank works; rank 0 notices a lost rank only at the next request."""
        asked_at, deadline = time.time(), time.monotonic() + _RANK_SECONDS
        far_ranks = self.server.run.far_ranks if self.server.run else ()
        ranks = self.state.far_ranks

        def works(rank: int) -> bool:
            return rank in ranks and ranks[rank].at >= asked_at and ranks[rank].state is RankState.RUNNING

        while unseen := [far for far in far_ranks if not works(far.rank)]:
            if time.monotonic() > deadline:
                sample = ranks.get(unseen[0].rank)
                how = f"{sample.state.value}, {sample.why}" if sample and sample.why else "unknown"
                raise _BootFailed(f"rank {unseen[0].rank} on {unseen[0].host} did no work during the rounds: {how}")
            await self._pause()

    async def measure_requests(self, boot: Boot) -> Boot:
        """Return the boot with its requests measured; the first is cold only of a server that was just launched."""
        design, server, state, number = self.design, self.server, self.state, boot.number
        suite, sampling = store.load_experiment_suite(design), choose_sampling(design, state.startup.samplers)
        suite, token_variety = await client.vary_tokens(server, suite)
        run, cold = server.run, None
        send = partial(client.send_suite, server)
        plain = sampling._replace(tokens=False)
        if run:  # the first prompt, sent alone, is the server's first real request
            cold = await client.send_prompt(server, suite.prompts[0], plain)
            await self._record(number, "cold", cold)
        for streams, short in list_warm_ups(design, suite):
            warm_up = send(short, plain._replace(scale=1.0, fixed=True), streams=streams)
            await self._take(number, "warm-up", warm_up)
        since, before = time.time(), await client.read_counters(server)
        conditions_before = boot_server.measure_conditions(run, state, since)
        worked = await asyncio.to_thread(boot_server.read_processor_times, run) if run else None
        keep, meter = _build_keeper(design, boot.run), partial(nvml.read_energy, run.metered_gpus if run else ())
        windows, requests = list[MeasuredWindow](), list[RequestDone]()
        for streams, part in product(design.concurrency, suite.split_kinds() if design.by_kind else (suite,)):
            record, rounds = LoadRecord(Load(streams), meter), part.rounds(design.rounds, streams)
            measured = send(part, sampling, rounds=rounds, keep=keep, record=record)
            requests += await self._take(number, "round", measured)
            kind = name_kind(part.prompts[0].kind) if design.by_kind else ""
            windows.append(replace(record.measure_window(), kind=kind))
        others = await self._count_foreign_processors(worked)
        after = await client.read_counters(server)
        if all(request.error for request in requests):
            raise _BootFailed(requests[-1].error)
        await self.require_far_ranks()
        scored = run if run and design.checks_output and not run.plan.num_speculative_tokens else None
        sampler = sampling.name_sampler(state.startup.samplers) if run or sampling.temperature == 0 else "unknown"
        boot = replace(
            boot,
            checks=await _check_kept_answers(design, boot.arm, scored) if scored else (),
            sampler=sampler,
            token_variety=token_variety,
            cold_request=cold,
            requests=tuple(requests),
            windows=tuple(windows),
            others=others,
            before=conditions_before,
            after=boot_server.measure_conditions(run, state, since),
            hosts=tuple(
                replace(host, network=sample.network) if (sample := state.far_ranks.get(rank)) else host
                for rank, host in enumerate(boot.hosts, 1)
            ),
        )
        if not (before and after):
            return boot
        return replace(
            boot,
            generated=max(0.0, after.generated - before.generated),
            preemptions=max(0.0, subtract(after.preemptions, before.preemptions) or 0.0),
            prefix_queries=max(0.0, after.prefix_queries - before.prefix_queries),
            prefix_hits=max(0.0, after.prefix_hits - before.prefix_hits),
        )


def _describe_failure(run: Run, state: RunState) -> str:
    if failure := postmortem.build_postmortem(run, state):
        diagnosis = failure.diagnosis
        return "\n  ".join([f"{diagnosis.what}: {diagnosis.cause}", *diagnosis.evidence[:1]])
    if state.exit:
        return "the server was stopped from outside the experiment" if state.stopping else "the server exited"
    return state.health_detail or "the server no longer responds"


def _build_keeper(design: Design, run: str) -> AnswerSink | None:
    folder, full = store.experiment_folder(design.id), False

    def keep(request: RequestDone, answer: Answer, arrivals: tuple[ArrivalMark, ...]) -> None:
        nonlocal full
        line = KeptAnswer(run, request.kind, request.streams, request.round, answer, arrivals)
        if not full and (full := not store.append_answer(folder, line)):
            write_driver_log(f"no more answers are kept: they take {store.MOST_ANSWERS >> 20} MiB")

    return keep if design.keep_answers else None


def _log_preparing(event: Preparing) -> None:
    if event.done:
        write_driver_log(f"{event.step.value}: {event.text}")


def write_driver_log(line: str) -> None:
    """Write a line to the driver's log (its stdout), ignoring a full disk."""
    with contextlib.suppress(OSError):
        print(f"{time.strftime('%H:%M:%S')} {escape_control_characters(line)}", flush=True)  # noqa: T201


def choose_sampling(design: Design, samplers: Sequence[str] = ()) -> Sampling:
    """Return the sampling of measured prompts, for a server that logged these samplers."""
    sampling = Sampling(design.scale, design.seed, design.temperature, design.fixed, top_p=design.top_p)
    return sampling._replace(tokens=design.checks_output).suit_to(samplers)


def count_most_tokens(design: Design) -> int:
    """Return the most tokens that one boot with one stream can generate; 0 if its suite is missing."""
    try:
        suite = store.load_experiment_suite(design)
    except DflashError:
        return 0
    lengths = [client.answer_length(prompt, design.scale) for prompt in suite.prompts]
    measured = sum(length * prompt.repeat for length, prompt in zip(lengths, suite.prompts, strict=True))
    return lengths[0] + sum(_short(design, prompt) for prompt in suite.prompts) + design.rounds * measured


def list_warm_ups(design: Design, suite: Suite) -> list[tuple[int, Suite]]:
    """Return a warm-up suite per number of streams, with short answers to every prompt."""
    levels = []
    for streams in dict.fromkeys((1, max(design.concurrency)) if design.by_kind else (1, *design.concurrency)):
        times = -(-streams // len(suite.prompts))
        short = [replace(prompt, max_tokens=_short(design, prompt), repeat=times) for prompt in suite.prompts]
        levels.append((streams, replace(suite, prompts=tuple(short))))
    return levels


def _short(design: Design, prompt: Prompt) -> int:
    return min(prompt.max_tokens, client.answer_length(prompt, design.scale), _WARM_UP_TOKENS)


async def _check_kept_answers(design: Design, arm: int, run: Run) -> tuple[AnswerCheck, ...]:
    """Return a check of each kept answer of other arms against that of `run`, a server of `arm`."""
    folder = store.experiment_folder(design.id)
    others = {boot.run for boot in store.read_progress(folder).boots if boot.arm != arm and not boot.error}
    keyed = [(PromptKey(line.kind, line.streams, line.round), line) for line in store.read_answers(folder)]
    ours = {key: line for key, line in keyed if line.run == run.id}
    theirs = {key: line for key, line in keyed if line.run in others}
    most = MOST_POSITIONS * (_ON_CPU if run.plan.on_cpu else 1)
    async with TokenScorer(run.url, run.plan.served_name, run.api_key) as scorer:
        return tuple([await _check_answer(scorer, theirs[key], ours[key], most) for key in ours if key in theirs])


async def _check_answer(scorer: TokenScorer, theirs: KeptAnswer, ours: KeptAnswer, most: int) -> AnswerCheck:
    check = AnswerCheck(theirs.kind, theirs.streams, theirs.round)
    prompt, ours_tokens, theirs_tokens = theirs.answer.prompt, ours.answer.tokens, theirs.answer.tokens
    if not (prompt and ours_tokens and theirs_tokens) or prompt != ours.answer.prompt:
        return replace(check, error="the server did not name the tokens")
    if (room := most - len(prompt)) < 1:
        return replace(check, error=f"the prompt has more than {most} tokens")
    scored = theirs_tokens[:room]
    try:
        tokens, decoded = await scorer.decode(prompt, len(ours_tokens[:room]))
        read = await scorer.read(prompt, tokens)
        gaps = measure_gaps(scored, read if tokens == [*scored] else await scorer.read(prompt, scored))
    except bounded_http.list_failures(bounded_http.BadResponse) as error:
        return replace(check, error=bounded_http.describe_failure(error))
    shifts, place = measure_shifts(tokens, decoded, read), locate_difference(ours_tokens, theirs_tokens)
    if place is not None and place >= room:
        return replace(check, error=f"the answers diverge after {most} tokens")
    worst = max(range(len(gaps)), key=gaps.__getitem__)
    return replace(
        check,
        tokens=len(gaps),
        parted=None if place is None else place + 1,
        ends_early=place is not None and place >= min(len(ours_tokens), len(theirs_tokens)),
        loses_words=place is None and theirs.answer.text != ours.answer.text,
        gap=round(gaps[worst], _DIGITS),
        place=worst + 1,
        rounding=round(max(shifts, default=0.0), _DIGITS),
        positions=len(shifts),
    )
