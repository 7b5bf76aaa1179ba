"""One boot of an experiment: prepare, launch, wait until it answers, measure, stop, wait until its memory is back."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from dflash_tui.common.errors import DflashError
from dflash_tui.common.sanitizer import escape_control_characters
from dflash_tui.diagnosis import postmortem
from dflash_tui.events import WARM_UP, Event, Health, Preparing, RequestDone
from dflash_tui.experiments import (
    boot_requests,
    boot_snapshot,
    conditions,
    store,
)
from dflash_tui.experiments.design import Boot, BootBegan, Design, RequestMeasured
from dflash_tui.launch import preparation
from dflash_tui.launch.preflight import runner
from dflash_tui.monitoring import observer, recorder
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.resolution import ResolvedRecipe
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import (
    lifecycle,
    run_files,
)
from dflash_tui.runs.run import Run

# A start that takes longer than any published one, with a slow disk and a cold cache, hangs.
READY_TIMEOUT = 5400.0
# The recorder asks once a second how the server is.
_DYING_SECONDS = 2.5
_POLL_INTERVAL = 0.05
# How a server answers to what it takes for wrong, such as a prompt longer than its context: it does so every time.
_BAD_REQUEST = 400
EventSink = Callable[[Event], None]


class PreparedBoot(NamedTuple):
    """A boot that is about to be: which one, what it launches, and the folder that its arm compiles into, if own."""

    design: Design
    number: int
    attempt: int
    setup: ResolvedRecipe
    plan: Plan
    cache: Path | None

    @property
    def arm(self) -> int:
        """The arm that it is a boot of."""
        return self.design.order[self.number]


def prepare_boot(design: Design, number: int, attempt: int, setup: ResolvedRecipe, *, first: bool) -> PreparedBoot:
    """Return what a boot launches.

    Args:
        design: the experiment.
        number: the place of the boot in its order.
        attempt: which attempt it is.
        setup: the resolved recipe of its arm.
        first: whether no boot of the arm came up before; a cache of the arm's own is emptied then.
    """
    place = design.order[number]
    arm = design.arms[place]
    cache = store.experiment_folder(design.id) / "cache" / str(place) if design.own_cache else None
    if cache and first:
        shutil.rmtree(cache, ignore_errors=True)
    return PreparedBoot(design, number, attempt, setup, boot_snapshot.tag_plan(arm.plan, arm, design.id, cache), cache)


async def run_boot(prepared: PreparedBoot, tell: EventSink) -> Boot:
    """Return all that the boot measured, or with `error` why it measured nothing; its server has ended.

    Raises:
        OSError: what happens cannot be written down.
        DflashError: the server takes a prompt for wrong, as that of every other boot will.
    """
    boot = Boot(prepared.number, prepared.arm, "", prepared.attempt, began=time.time())
    free = await asyncio.to_thread(conditions.measure_free_memory, prepared.plan)
    began = time.monotonic()
    try:
        (await runner.run_preflight(prepared.setup, prepared.plan)).raise_failed(forcible=False)
        run = await preparation.prepare_and_launch(prepared.setup, prepared.plan, log_preparing)
    except DflashError as error:
        return replace(boot, error=str(error))
    launched, boot = time.monotonic(), replace(boot, run=run.id, began=run.started_at)
    try:
        tell(BootBegan(run.started_at, prepared.number, prepared.arm, run.id, prepared.attempt))
        boot = await asyncio.to_thread(boot_snapshot.with_environment, boot, run, prepared.cache)
        boot = await _measure(prepared, boot, run, tell)
    except _BootFailed as error:
        boot = replace(boot, error=str(error))
    finally:
        await lifecycle.stop_server(run)
    if not await conditions.wait_for_memory_release(prepared.plan, free):
        write_driver_log("the server's memory was not released within a minute")
    write_driver_log(
        f"boot {prepared.number + 1}: prepared in {launched - began:.1f} s, {time.monotonic() - launched:.1f} s in all"
    )
    return replace(boot, took=time.monotonic() - launched)


class _BootFailed(Exception):
    """The server does not do what is measured; the text says why."""


async def _measure(prepared: PreparedBoot, boot: Boot, run: Run, tell: EventSink) -> Boot:
    async with observer.fold_run(run) as (state, over):
        await _wait_until_warm(run, state, over)
        design, suite = prepared.design, store.load_experiment_suite(prepared.design)
        boot = replace(
            boot,
            cache=state.startup.cache,
            up=state.time_to_up,
            ready=state.time_to_ready,
            phases={span.phase.value: span.seconds for span in state.spans(time.time())},
        )

        async def take(stage: str, requests: AsyncIterator[RequestDone]) -> tuple[RequestDone, ...]:
            taken = []
            async for request in requests:
                run_files.record_event(run, request if stage == "round" else replace(request, kind=WARM_UP))
                tell(RequestMeasured(time.time(), prepared.number, stage, request))
                taken.append(request)
                if request.status == _BAD_REQUEST:
                    raise _build_rejected_error(prepared, request)
                if request.error:
                    await _raise_unless_alive(run, state, over)
            return tuple(taken)

        cold = await take("cold", boot_requests.send_cold_request(design, suite, run))
        await take("warm-up", boot_requests.send_warm_up(design, suite, run))
        since, before = time.time(), await recorder.read_counters(run)
        boot = replace(boot, cold_request=cold[0], before=conditions.measure_conditions(run, state, since))
        worked = await asyncio.to_thread(conditions.read_processor_times, run)
        requests = await take("round", boot_requests.send_measured_rounds(design, suite, run))
        others = conditions.count_foreign_processors(
            worked, await asyncio.to_thread(conditions.read_processor_times, run)
        )
        after = await recorder.read_counters(run)
        boot = replace(boot, requests=requests, others=others, after=conditions.measure_conditions(run, state, since))
        if all(request.error for request in requests):
            raise _BootFailed(requests[-1].error)
    if before and after:
        boot = replace(
            boot,
            generated=max(0.0, after.generated - before.generated),
            preemptions=max(0.0, after.preemptions - before.preemptions),
            prefix_queries=max(0.0, after.prefix_queries - before.prefix_queries),
            prefix_hits=max(0.0, after.prefix_hits - before.prefix_hits),
        )
    return boot


def _build_rejected_error(prepared: PreparedBoot, request: RequestDone) -> DflashError:
    name = prepared.design.arms[prepared.arm].name
    do = "begin a new A/B: choose other prompts with --suite, or allow longer ones with max-model-len"
    return DflashError(f"{name}: the server rejected the prompt {request.kind}", evidence=request.error, hint=do)


async def _wait_until_warm(run: Run, state: RunState, over: asyncio.Task[None]) -> None:
    """Wait for the first answer.

    Raises:
        _BootFailed: the server ended, cannot generate, or took too long.
    """
    deadline = time.monotonic() + READY_TIMEOUT
    while state.health is not Health.WARM or state.ready_at is None:
        if over.done() or state.exit or state.health is Health.UNHEALTHY:
            await _wait_for_autopsy(over)
            raise _BootFailed(_describe_failure(run, state))
        if time.monotonic() > deadline:
            raise _BootFailed(f"the server was not ready after {READY_TIMEOUT / 60:.0f} minutes")
        await asyncio.sleep(_POLL_INTERVAL)


async def _raise_unless_alive(run: Run, state: RunState, over: asyncio.Task[None]) -> None:
    """Return when a request failed and the server lives on: one that is dying answers badly first.

    Raises:
        _BootFailed: it dies.
    """
    deadline = time.monotonic() + _DYING_SECONDS
    while time.monotonic() < deadline:
        if over.done() or state.exit or state.health is Health.UNHEALTHY:
            await _wait_for_autopsy(over)
            raise _BootFailed(_describe_failure(run, state))
        await asyncio.sleep(_POLL_INTERVAL)


async def _wait_for_autopsy(over: asyncio.Task[None]) -> None:
    """Give a dying server the seconds in which its log and the system say why."""
    await asyncio.wait({over}, timeout=10)


def _describe_failure(run: Run, state: RunState) -> str:
    """Return why a server fails, with the line that shows it."""
    if failure := postmortem.build_postmortem(run, state):
        diagnosis = failure.diagnosis
        return "\n  ".join([f"{diagnosis.what}: {diagnosis.cause}", *diagnosis.evidence[:1]])
    if state.exit:
        return "the server was stopped from outside the experiment" if state.stopping else "the server exited"
    return state.health_detail or "the server no longer responds"


def log_preparing(event: Preparing) -> None:
    """Write what was prepared into the driver's log."""
    if event.done:
        write_driver_log(f"{event.step.value}: {event.text}")


def write_driver_log(line: str) -> None:
    """Write a line into the driver's log, which its output is; a full disk costs the line and nothing else."""
    with contextlib.suppress(OSError):
        print(f"{time.strftime('%H:%M:%S')} {escape_control_characters(line)}", flush=True)  # noqa: T201
