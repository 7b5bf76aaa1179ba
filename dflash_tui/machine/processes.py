"""The processes of a server: found by their session, signalled only when they are ours."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path

import psutil

from dflash_tui.common.sanitizer import clean_line
from dflash_tui.machine.process_identity import read_process_identity


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


def is_listening_on(members: Iterable[psutil.Process], port: int) -> bool:
    """Whether one of `members` is the program that answers on TCP `port`."""
    for process in members:
        try:
            sockets = process.net_connections("tcp")
        except psutil.Error:
            continue
        if any(s.status == psutil.CONN_LISTEN and s.laddr.port == port for s in sockets):
            return True
    return False


def find_listening_port(process: psutil.Process) -> int | None:
    """Return the first TCP port on which a process listens; None where it is none, or may not be known."""
    try:
        sockets = process.net_connections("tcp")
    except psutil.Error:
        return None
    return min((s.laddr.port for s in sockets if s.status == psutil.CONN_LISTEN), default=None)


def find_port_listener(port: int) -> str:
    """Return who listens on TCP `port` as `name (pid 1234)`; empty when nobody does or it may not be known."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                if connection.pid is None:
                    return "a process of another user"
                return f"{clean_line(psutil.Process(connection.pid).name())} (pid {connection.pid})"
    except (psutil.Error, OSError):
        return ""
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
