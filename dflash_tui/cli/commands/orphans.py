"""`orphans`: engine processes that outlived their server, listed, and ended one by one after asking."""

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
    """`orphans [PID]`: print them, or end the one with this pid."""
    found = system.find_orphans()
    if args.pid is not None:
        return _end_orphan(args.pid, found, sure=args.yes)
    if args.json:
        for orphan in found:
            print_data(
                msgspec.json.encode(
                    {"pid": orphan.pid, "name": orphan.name, "resident_bytes": orphan.resident}
                ).decode()
            )
    elif found:
        rows = [(str(orphan.pid), clean_line(orphan.name), format_gib(orphan.resident)) for orphan in found]
        print_data(format_table(("PID", "NAME", "MEMORY"), rows, right=(0, 2)))
        print_status("dflash-tui orphans PID ends one of them; `dflash-tui gpus` shows what they hold on a GPU")
    else:
        print_status("no engine process without its server")
    return 0


def _end_orphan(pid: int, found: list[Orphan], *, sure: bool) -> int:
    """End one orphan and what it started, if that is what somebody wants.

    Raises:
        UsageError: it is no orphan, or nobody can be asked.
        DflashError: it is not ours to end, or survived SIGKILL.
    """
    orphan = next((each for each in found if each.pid == pid), None)
    if orphan is None:
        raise UsageError(f"pid {pid} is no engine without its server", hint="dflash-tui orphans lists them")
    process = psutil.Process(pid)  # knows its create time, so that another with this pid is never signalled
    what = f"{clean_line(orphan.name)} (pid {pid}), which holds {format_gib(orphan.resident)}"
    if not sure:
        if not sys.stdin.isatty():
            raise UsageError("nobody can be asked here", hint=f"dflash-tui orphans {pid} --yes ends it unasked")
        sys.stderr.write(f"End {what}? Whatever still uses it is lost. [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            print_status("it is left as it is")
            return 0
    if processes.read_process_identity(pid) != orphan.born:
        print_status(f"pid {pid} has ended meanwhile")
        return 0
    family = [process, *process.children(recursive=True)]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for each in family:
            processes.send_signal(each, number)
        psutil.wait_procs(family, timeout=_STOP_TIMEOUT)
        if not any(map(processes.is_running, family)):
            print_status(f"{what}, has ended")
            return 0
    raise DflashError(f"{what}, did not end", hint="it may be another user's, or wait in the kernel; see dmesg")
