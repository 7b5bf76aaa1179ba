"""`orphans`: list engine processes that outlived their server, or stop one after asking."""

from __future__ import annotations

import argparse
import asyncio
import sys

import msgspec
import psutil

from dflash_tui.cli.console import ask_yes, print_data, print_status, print_table
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.formatting import UNKNOWN, format_gib
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.machine import processes
from dflash_tui.machine.processes import Orphan, find_orphans
from dflash_tui.peers.connection import OrphansFound, open_connection

_STOP_TIMEOUT = 5.0
_LIST_TIMEOUT = 60.0


def orphans(args: argparse.Namespace) -> int:
    """`orphans [PID]`: list them, or stop the one with this pid."""
    if args.peer and args.pid is not None:
        raise UsageError(
            "--peer HOST only lists processes", hint=f"ssh {clean_line(args.peer)} dflash-tui orphans {args.pid}"
        )
    orphan_list = asyncio.run(_list_far_orphans(args.peer)) if args.peer else find_orphans()
    if args.pid is not None:
        return _end_orphan(args.pid, orphan_list, sure=args.yes)
    if args.json:
        for orphan in orphan_list:
            print_data(
                msgspec.json.encode(
                    {
                        "pid": orphan.pid,
                        "name": orphan.name,
                        "resident_bytes": orphan.resident,
                        "port": orphan.port,
                    }
                ).decode()
            )
    elif orphan_list:
        rows = [
            (str(orphan.pid), clean_line(orphan.name), format_gib(orphan.resident), str(orphan.port or UNKNOWN))
            for orphan in orphan_list
        ]
        print_table(("PID", "NAME", "MEMORY", "PORT"), rows, right=(0, 2, 3))
        print_status("dflash-tui orphans PID stops one of them; dflash-tui gpus shows what they hold on a GPU")
    else:
        print_status("no engine process outlived its server")
    return 0


async def _list_far_orphans(host: str) -> list[Orphan]:
    async with open_connection(host) as peer:
        return [*(await peer.ask("orphans", OrphansFound, _LIST_TIMEOUT)).orphans]


def _end_orphan(pid: int, orphan_list: list[Orphan], *, sure: bool) -> int:
    """Stop one orphan and its child processes, after asking unless `sure`.

    Raises:
        UsageError: it is not an orphan, or there is no terminal to ask at.
        DflashError: it belongs to another user, or survived SIGKILL.
    """
    orphan = next((candidate for candidate in orphan_list if candidate.pid == pid), None)
    if orphan is None:
        raise UsageError(f"pid {pid} is not an orphaned engine process", hint="dflash-tui orphans lists them")
    try:
        process = psutil.Process(pid)  # it holds the start time: another process with this pid is never signalled
    except psutil.NoSuchProcess:
        return _report_exited(pid)
    what = f"{clean_line(orphan.name)} (pid {pid}), which holds {format_gib(orphan.resident)}"
    if not sure:
        if not sys.stdin.isatty():
            raise UsageError("cannot ask for confirmation without a terminal", hint=f"dflash-tui orphans {pid} --yes")
        if not ask_yes(f"Stop {what}?"):
            print_status("not stopped")
            return 0
    if processes.read_process_identity(pid) != orphan.born:
        return _report_exited(pid)
    if processes.end_processes([process, *processes.list_descendants(pid)], _STOP_TIMEOUT):
        hint = "it may belong to another user, or be blocked in the kernel; see dmesg"
        raise DflashError(f"cannot stop {what}", hint=hint)
    print_status(f"stopped {what}")
    return 0


def _report_exited(pid: int) -> int:
    print_status(f"pid {pid} has already exited")
    return 0
