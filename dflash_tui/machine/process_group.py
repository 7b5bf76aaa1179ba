"""A process that leads a session of its own, ended with all that it has started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

import psutil

from dflash_tui.machine import processes


async def end_group(process: asyncio.subprocess.Process, patience: float) -> None:
    """Tell a process that was started in a session of its own to end, with all that it has started; then kill the rest.

    They are told by their group, which a process that is being started at this moment is in already; those that do not
    listen are killed after `patience` seconds. Of one that has ended nothing is told: its group may be another's.
    """
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    others = [member for member in psutil.process_iter() if _read_group(member) == process.pid != member.pid]
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), patience)
    # Before the leader is waited for without a limit: whoever of them has its pipes open keeps that wait from ending.
    await asyncio.to_thread(processes.end_processes, others, patience)
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _read_group(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except OSError:
        return None
