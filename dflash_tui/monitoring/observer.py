"""Read the events of a run from its files for as long as the server runs.

All events come from `server.log`, which the server writes, and `samples.jsonl`, which the recorder writes, so that
attaching late shows the same as watching from the start, to any number of observers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dflash_tui.events import AnyEvent, Autopsy, Exited, Stopping
from dflash_tui.monitoring import kernel_log
from dflash_tui.monitoring.run_reader import EventSource, infer_exit, list_launch_events
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import server_process
from dflash_tui.runs.run import Run

LOG_INTERVAL = 0.25
_Queue = asyncio.Queue[list[AnyEvent] | BaseException | None]


@asynccontextmanager
async def observe_run(run: Run) -> AsyncIterator[AsyncIterator[AnyEvent]]:
    """Yield the events of `run` from its launch on, until `Exited`, and `Autopsy` when nobody asked for the exit.

    Leaving the context stops observing, never the server.
    """
    async with observe_batches(run) as read:
        yield (event async for batch in read for event in batch)


@asynccontextmanager
async def fold_run(run: Run) -> AsyncIterator[tuple[RunState, asyncio.Task[None]]]:
    """Fold the events of `run` into a state while the block runs; the task is done when the server has exited."""
    state = RunState()

    async def follow() -> None:
        async with observe_run(run) as events:
            async for event in events:
                state.apply(event)

    task = asyncio.create_task(follow())
    try:
        yield state, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def observe_batches(run: Run) -> AsyncIterator[AsyncIterator[list[AnyEvent]]]:
    """Yield the events of `run` like `observe_run`, in lists of those that were read at once."""
    from dflash_tui.monitoring import recorder

    queue: _Queue = asyncio.Queue()

    async def events() -> AsyncIterator[list[AnyEvent]]:
        while (item := await queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            if item:
                yield item

    # Not a TaskGroup: it would wrap every error of the caller's own block into a group.
    recording = recorder.record_when_free(run, lambda line: queue.put_nowait([line]))
    tasks = [asyncio.create_task(work) for work in (_follow_files(run, queue), recording)]
    for task in tasks:
        task.add_done_callback(lambda finished: _forward_error(finished, queue))
    try:
        yield events()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _forward_error(task: asyncio.Task[None], queue: _Queue) -> None:
    """Forward the error of a finished task to the reader of the events."""
    if not task.cancelled() and (error := task.exception()):
        queue.put_nowait(error)


async def _follow_files(run: Run, queue: _Queue) -> None:
    queue.put_nowait(list(list_launch_events(run)))
    source, event_types, was_alive, kills = (
        EventSource(run),
        set[type[AnyEvent]](),
        False,
        kernel_log.count_oom_kills(),
    )
    while True:
        running = server_process.is_alive(run)
        more = True
        while more:
            events, more = source.read()
            event_types.update(map(type, events))
            queue.put_nowait(events)
            await asyncio.sleep(0)
        if not running:
            break
        was_alive = True
        await asyncio.sleep(LOG_INTERVAL)
    exit_events: list[Exited | Autopsy] = []
    if Exited not in event_types:
        code = await asyncio.to_thread(server_process.read_exit_code, run)
        exit_events.append(Exited(time.time(), code) if was_alive else infer_exit(run))
    lost = any(
        isinstance(event, Exited) and event.lost for event in exit_events
    )  # the kernel of this boot knows nothing about it
    if not lost and not event_types & {Autopsy, Stopping}:
        exit_events.append(await asyncio.to_thread(kernel_log.read_autopsy, run, kills if was_alive else None))
    for event in exit_events:
        if was_alive:  # an exit that nobody observed is inferred anew each time, never recorded as a fact
            run.record(event)
        queue.put_nowait([event])
    queue.put_nowait(None)
