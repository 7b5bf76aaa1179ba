"""Processes: identify them, list a server's, find orphans, and signal only those that are ours."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:  # importing psutil takes 10 ms, which the first frame of the panel saves
    import psutil

T = TypeVar("T")


def read_process_identity(pid: int) -> str:
    """Return `boot:ticks`, which identifies a live process for good; empty if there is none or it is a zombie.

    The ticks are its start time since boot (proc_pid_stat(5), field 22), since times of day move with the clock.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if stat[0] in {"Z", "X"} else f"{read_boot_id()}:{stat[19]}"


@cache
def read_boot_id() -> str:
    """Return the id of this boot of the machine (random(4)); empty if it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def is_from_another_boot(born: str) -> bool:
    """Whether the process with the identity `born` ran before the last boot of the machine."""
    then, now = born.partition(":")[0], read_boot_id()
    return bool(then and now) and then != now


def list_session_processes(leader: int, born: str, folder: Path) -> list[psutil.Process]:
    """Return the live processes of the session that `leader` started, the leader first.

    `born` is the leader's identity. Once the leader has ended, a process counts only if it works in `folder`, since
    another session may have the pid by now.
    """
    import psutil

    boot, _, started = born.partition(":")
    present = read_process_identity(leader)
    if present and present != born:  # the kernel reuses the pid only once the session is over
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


def _ask(query: Callable[[], T]) -> T | None:
    import psutil

    try:
        return query()
    except psutil.Error:
        return None


def measure_resident_memory(members: Iterable[psutil.Process]) -> int:
    """Return the resident bytes of those of `members` that still exist."""
    return sum(usage.rss for process in members if (usage := _ask(process.memory_info)))


def measure_swapped_memory(members: Iterable[psutil.Process]) -> int:
    """Return the bytes of `members` in swap (proc(5), status: VmSwap)."""
    total = 0
    for process in members:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text(errors="replace")
        except OSError:
            continue
        total += int(status.partition("VmSwap:")[2].split(maxsplit=1)[0]) << 10 if "VmSwap:" in status else 0
    return total


def list_listening_ports(process: psutil.Process) -> set[int]:
    """Return the TCP ports on which a process listens; empty if they cannot be read."""
    return {s.laddr.port for s in _ask(lambda: process.net_connections("tcp")) or () if s.status == "LISTEN"}


def is_listening_on(members: Iterable[psutil.Process], port: int) -> bool:
    """Whether one of `members` listens on TCP `port`."""
    return any(port in list_listening_ports(process) for process in members)


class Listener(NamedTuple):
    """A listening TCP socket; the pid is None if it is hidden, as for another user's process."""

    host: str
    port: int
    pid: int | None


def list_listeners() -> list[Listener]:
    """Return the listening TCP sockets of this machine, sorted by port; empty if they cannot be read."""
    import psutil

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
    """Return the process that listens on TCP `port` as `name (pid 1234)`; empty if there is none or it is unknown."""
    for listener in list_listeners():
        if listener.port == port:
            if listener.pid is None:
                return "a process of another user"
            if name := read_process_name(listener.pid):
                return f"{name} (pid {listener.pid})"
    return ""


def read_process_name(pid: int) -> str:
    """Return the name of a process; empty if there is none or it cannot be read."""
    import psutil

    return _ask(lambda: psutil.Process(pid).name()) or ""


def is_running(process: psutil.Process) -> bool:
    """Whether the process still runs; False for a zombie or another process with its pid."""
    return bool(_ask(lambda: process.is_running() and process.status() != "zombie"))


def is_suspended(process: psutil.Process) -> bool:
    """Whether a signal such as SIGSTOP has suspended the process."""
    return _ask(process.status) == "stopped"


def is_resource_tracker(process: psutil.Process) -> bool:
    """Whether it is Python's resource tracker, which removes shared memory once all its users have ended."""
    return any("multiprocessing.resource_tracker" in word for word in _ask(process.cmdline) or ())


def list_descendants(pid: int) -> list[psutil.Process]:
    """Return all descendants of a process; empty if it has ended."""
    import psutil

    return _ask(lambda: psutil.Process(pid).children(recursive=True)) or []


def end_processes(members: Iterable[psutil.Process], patience: float) -> list[psutil.Process]:
    """Send SIGTERM and, after `patience` seconds, SIGKILL; return the processes that still run."""
    import psutil

    left = list(members)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in left:
            send_signal(process, number)
        psutil.wait_procs(left, timeout=patience)
        left = list(filter(is_running, left))
    return left


def send_signal(process: psutil.Process, number: int) -> None:
    """Send a signal, unless the process has ended or another one has its pid."""
    _ask(lambda: process.send_signal(number))


async def end_group(process: asyncio.subprocess.Process, patience: float) -> None:
    """Send SIGTERM to the group of a process, and SIGKILL once the process has ended or after `patience` seconds.

    The process was started in a session of its own. Signals go to its group, so that they also reach processes that are
    just being started.
    """
    if process.returncode is not None:  # another group may have its id by now
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), patience)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


# Titles of the processes that a vLLM server starts (setproctitle), cut to the kernel's 15 characters. The server itself
# is at most VLLM::APIServer.
_STARTED = ("VLLM::EngineCor", "VLLM::Worker", "VLLM::DPCoordin")


class Orphan(NamedTuple):
    """An engine process whose server has ended: its pid, its name, and the resident bytes of it and its children.

    `born` is its identity (`read_process_identity`). `port` is one on which it listens: a forked engine inherits its
    server's socket.
    """

    pid: int
    name: str
    resident: int
    born: str = ""
    port: int | None = None


def find_orphans() -> list[Orphan]:
    """Return vLLM's engine and worker processes whose parent has ended.

    A living parent is in the same session. Once it ends, init or another reaper (systemd --user, a container's init)
    adopts the process, and the reaper is in another session.
    """
    import psutil

    orphans = []
    for process in psutil.process_iter():
        try:
            title = (process.cmdline() or [""])[0]
            if not title.startswith(_STARTED):
                continue
            parent = process.parent()
            if parent is None or os.getsid(parent.pid) != os.getsid(process.pid):
                family = (process, *process.children(recursive=True))
                born, port = read_process_identity(process.pid), min(list_listening_ports(process), default=None)
                memory = measure_resident_memory(family)
                orphans.append(Orphan(process.pid, title.strip(), memory, born, port))
        except (psutil.Error, OSError):
            continue
    return orphans
