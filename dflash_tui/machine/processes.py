"""Processes: which one a pid is, those of a server, those that outlived theirs; signalled only when they are ours."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import psutil


def read_process_identity(pid: int) -> str:
    """Return `boot:ticks` of a live process, which names it for good, or an empty string for none or a zombie.

    The ticks since boot (proc_pid_stat(5), field 22) are used, since times of day move with the clock.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if stat[0] in {"Z", "X"} else f"{read_boot_id()}:{stat[19]}"


@cache
def read_boot_id() -> str:
    """Return the id of this boot of the machine (random(4)), empty when it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def is_from_another_boot(born: str) -> bool:
    """Whether a process with this identity lived before the machine was booted the last time."""
    then, now = born.partition(":")[0], read_boot_id()
    return bool(then and now) and then != now


def list_session_processes(leader: int, born: str, folder: Path) -> list[psutil.Process]:
    """Return the live processes of the session that `leader`, whose identity was `born`, started; it comes first.

    Once the leader is gone a process counts only if it works in `folder`, since the pid may have been given to
    another session since.
    """
    boot, _, started = born.partition(":")
    present = read_process_identity(leader)
    if present and present != born:  # the kernel gives no number away that a session still has, so that is over
        return []
    leader_lives = present == born
    members = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) != leader:
                continue
            its_boot, _, its_start = read_process_identity(process.pid).partition(":")
            if its_boot != boot or int(its_start) < int(started):
                continue
            if leader_lives or process.cwd() == str(folder.resolve()):
                members.append(process)
        except (psutil.Error, OSError, ValueError):
            continue
    return sorted(members, key=lambda process: (process.pid != leader, process.pid))


def measure_resident_memory(members: Iterable[psutil.Process]) -> int:
    """Return the resident bytes of `members` that still exist."""
    total = 0
    for process in members:
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total


def measure_swapped_memory(members: Iterable[psutil.Process]) -> int:
    """Return the bytes of `members` that the kernel has put on a disk (proc(5), status: VmSwap)."""
    total = 0
    for process in members:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text(errors="replace")
        except OSError:
            continue
        total += int(status.partition("VmSwap:")[2].split(maxsplit=1)[0]) << 10 if "VmSwap:" in status else 0
    return total


def list_listening_ports(process: psutil.Process) -> set[int]:
    """Return the TCP ports on which a process listens, as far as they may be known."""
    try:
        return {s.laddr.port for s in process.net_connections("tcp") if s.status == psutil.CONN_LISTEN}
    except psutil.Error:
        return set()


def is_listening_on(members: Iterable[psutil.Process], port: int) -> bool:
    """Whether one of `members` is the program that answers on TCP `port`."""
    return any(port in list_listening_ports(process) for process in members)


class Listener(NamedTuple):
    """Who listens at a TCP address; the pid is None where it may not be known, as of another user's process."""

    host: str
    port: int
    pid: int | None


def list_listeners() -> list[Listener]:
    """Return who listens on this machine, by port; empty where that may not be known."""
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return []
    return sorted(
        (
            Listener(connection.laddr.ip, connection.laddr.port, connection.pid)
            for connection in connections
            if connection.status == psutil.CONN_LISTEN and connection.laddr
        ),
        key=lambda listener: listener.port,
    )


def find_port_listener(port: int) -> str:
    """Return who listens on TCP `port` as `name (pid 1234)`; empty if none does, or it may not be known."""
    for listener in list_listeners():
        if listener.port == port:
            if listener.pid is None:
                return "a process of another user"
            if name := read_process_name(listener.pid):
                return f"{name} (pid {listener.pid})"
    return ""


def read_process_name(pid: int) -> str:
    """Return the name of a process; empty where there is none, or it may not be known."""
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return ""


def is_running(process: psutil.Process) -> bool:
    """Whether the process that this object was made for still runs."""
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def is_suspended(process: psutil.Process) -> bool:
    """Whether a signal has stopped this process, as SIGSTOP does, until SIGCONT."""
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def is_resource_tracker(process: psutil.Process) -> bool:
    """Whether it is Python's, which removes shared memory once all that use it have ended, and ends then."""
    try:
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    except psutil.Error:
        return False


def list_descendants(pid: int) -> list[psutil.Process]:
    """Return the processes that a process has started, and those that they have; none where it has ended."""
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


def end_processes(members: Iterable[psutil.Process], patience: float) -> list[psutil.Process]:
    """Tell processes to end, and kill those that have not after `patience` seconds; return which run even then."""
    left = list(members)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in left:
            send_signal(process, number)
        psutil.wait_procs(left, timeout=patience)
        left = list(filter(is_running, left))
    return left


def send_signal(process: psutil.Process, number: int) -> None:
    """Send the signal, unless the pid has another process by now."""
    try:
        process.send_signal(number)
    except psutil.Error:
        return


async def end_group(process: asyncio.subprocess.Process, patience: float) -> None:
    """Tell a process that was started in a session of its own to end, with all that it has started; then kill the rest.

    The signals go to the group, so that they reach a process that is being started as well; what runs when the first
    one has ended, or after `patience` seconds, is killed.
    """
    if process.returncode is not None:  # its group may be another's by now
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), patience)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


# How vLLM names the processes that a server starts, by setproctitle; the kernel keeps 15 letters of that. The server
# itself is VLLM::APIServer at most.
_STARTED = ("VLLM::EngineCor", "VLLM::Worker", "VLLM::DPCoordin")


class Orphan(NamedTuple):
    """An engine process whose server is gone: its pid, its name, and the resident bytes of it and its children.

    `born` is its identity (see `processes`), `port` one on which it listens: a forked engine has its server's socket.
    """

    pid: int
    name: str
    resident: int
    born: str = ""
    port: int | None = None


def find_orphans() -> list[Orphan]:
    """Return vLLM's engine and worker processes that outlived who started them.

    Who started one is in the same session. When that ends, init or another reaper (systemd --user, a container's
    init) adopts the process, and that is in a session of its own.
    """
    orphans = []
    for process in psutil.process_iter():
        try:
            title = (process.cmdline() or [""])[0]
            if title.startswith(_STARTED) and _adopted(process):
                family = (process, *process.children(recursive=True))
                born, port = read_process_identity(process.pid), min(list_listening_ports(process), default=None)
                memory = measure_resident_memory(family)
                orphans.append(Orphan(process.pid, title.strip(), memory, born, port))
        except (psutil.Error, OSError):
            continue
    return orphans


def _adopted(process: psutil.Process) -> bool:
    parent = process.parent()
    return parent is None or os.getsid(parent.pid) != os.getsid(process.pid)
