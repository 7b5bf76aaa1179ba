"""`orphans`: list engine processes that outlived their server, or stop one after asking."""

from __future__ import annotations

import argparse
import signal
import sys

import msgspec
import psutil

from dflash_tui.cli.console import print_data, print_status
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.formatting import format_gib, format_table
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.machine import processes, system
from dflash_tui.machine.system import Orphan

_STOP_TIMEOUT = 5.0


def orphans(args: argparse.Namespace) -> int:
    """`orphans [PID]`: list them, or stop the one with this pid."""
    orphan_list = system.find_orphans()
    if args.pid is not None:
        return _end_orphan(args.pid, orphan_list, sure=args.yes)
    if args.json:
        for orphan in orphan_list:
            print_data(
                msgspec.json.encode(
                    {"pid": orphan.pid, "name": orphan.name, "resident_bytes": orphan.resident}
                ).decode()
            )
    elif orphan_list:
        rows = [(str(orphan.pid), clean_line(orphan.name), format_gib(orphan.resident)) for orphan in orphan_list]
        print_data(format_table(("PID", "NAME", "MEMORY"), rows, right=(0, 2)))
        print_status("dflash-tui orphans PID stops one of them; dflash-tui gpus shows what they hold on a GPU")
    else:
        print_status("no engine process outlived its server")
    return 0


def _end_orphan(pid: int, orphan_list: list[Orphan], *, sure: bool) -> int:
    """Stop one orphan and its child processes, after asking unless `sure`.

    Raises:
        UsageError: it is not an orphan, or there is no terminal to ask at.
        DflashError: it belongs to another user, or survived SIGKILL.
    """
    orphan = next((each for each in orphan_list if each.pid == pid), None)
    if orphan is None:
        raise UsageError(f"pid {pid} is not an orphaned engine process", hint="dflash-tui orphans lists them")
    process = psutil.Process(pid)  # it holds the start time, so that another process with this pid is never signalled
    what = f"{clean_line(orphan.name)} (pid {pid}), which holds {format_gib(orphan.resident)}"
    if not sure:
        if not sys.stdin.isatty():
            raise UsageError("cannot ask for confirmation without a terminal", hint=f"dflash-tui orphans {pid} --yes")
        sys.stderr.write(f"Stop {what}? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            print_status("not stopped")
            return 0
    if processes.read_process_identity(pid) != orphan.born:
        print_status(f"pid {pid} has already exited")
        return 0
    family = [process, *process.children(recursive=True)]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for each in family:
            processes.send_signal(each, number)
        psutil.wait_procs(family, timeout=_STOP_TIMEOUT)
        if not any(map(processes.is_running, family)):
            print_status(f"stopped {what}")
            return 0
    raise DflashError(
        f"cannot stop {what}", hint="it may belong to another user, or be blocked in the kernel; see dmesg"
    )
