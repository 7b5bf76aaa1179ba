"""Stop a server and wait until its GPU memory is free: the driver releases it only after the processes exit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from dflash_tui.common.formatting import format_gib
from dflash_tui.machine import gpus, nvml
from dflash_tui.runs import lifecycle, server_process
from dflash_tui.runs.run import Run

RELEASE_TIMEOUT = 30.0
_INTERVAL = 0.5
# A smaller share is noise of other programs.
_RELEASED_SHARE = 0.05


class _HeldMemory(NamedTuple):
    """A server's processes, and the bytes of GPU memory held by them (`ours`) and by all processes (`all`)."""

    pids: frozenset[int]
    ours: int
    all: int


async def stop_and_release_memory(run: Run, report: Callable[[str], None]) -> tuple[float, str]:
    """Stop a server, wait for its GPU memory, and return the stop's seconds and a sentence about unreleased memory.

    The sentence is empty if all was released. `report` is called with a line while memory is being released. There is
    no wait if the driver does not answer, or does not know the server's memory.
    """
    before = None if run.plan.on_cpu else await asyncio.to_thread(_measure_held_memory, run)
    seconds = await lifecycle.stop_server(run)
    if before is None:
        return seconds, ""
    deadline, line = time.monotonic() + RELEASE_TIMEOUT, ""
    while (unreleased := await asyncio.to_thread(_unreleased_memory, before)) > before.ours * _RELEASED_SHARE:
        if line != (line := f"releasing {format_gib(unreleased)}"):
            report(line)
        if time.monotonic() >= deadline:
            missing = f"{format_gib(unreleased)} of {format_gib(before.ours)} of GPU memory"
            what = f"{missing} not released after {RELEASE_TIMEOUT:.0f} s"
            hint = "dflash-tui gpus shows which processes hold it, dflash-tui stop --orphans lists leftovers"
            return seconds, f"{what}; {hint}"
        await asyncio.sleep(_INTERVAL)
    return seconds, ""


def _measure_held_memory(run: Run) -> _HeldMemory | None:
    pids = frozenset(process.pid for process in server_process.list_processes(run))
    cards = nvml.probe_gpus().gpus
    ours = _memory_of(cards, pids)
    return _HeldMemory(pids, ours, _memory_used(cards)) if ours else None


def _unreleased_memory(before: _HeldMemory) -> int:
    """Return the unreleased bytes: still listed as ours, or missing from the decrease of all memory in use."""
    cards = nvml.probe_gpus().gpus
    if not cards:  # the driver does not answer, or was unloaded
        return 0
    return max(_memory_of(cards, before.pids), before.ours - (before.all - _memory_used(cards)))


def _memory_of(cards: tuple[gpus.Gpu, ...], pids: frozenset[int]) -> int:
    return sum(holder.memory or 0 for card in cards for holder in card.processes or () if holder.pid in pids)


def _memory_used(cards: tuple[gpus.Gpu, ...]) -> int:
    return sum(card.memory_used or 0 for card in cards)
