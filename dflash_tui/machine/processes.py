"""The processes of a server: told apart for good, found by their session, signalled only when they are ours."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

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


def read_boot_id() -> str:
    """Return the id of this boot of the machine (random(4)), empty when it is not told."""
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


def send_signal(process: psutil.Process, number: int) -> None:
    """Send the signal, unless the pid has another process by now."""
    try:
        process.send_signal(number)
    except psutil.Error:
        return
