"""`ps`, `logs` and `stop`: list the servers, print a log, stop a server."""

from __future__ import annotations

import argparse
import asyncio
import time

from dflash_tui.cli.console import print_data, print_json, print_status
from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.formatting import (
    format_duration,
    format_gib,
    format_table,
)
from dflash_tui.common.line_buffer import LineBuffer
from dflash_tui.common.own_secrets import own_secrets
from dflash_tui.common.sanitizer import clean_line, clean_text
from dflash_tui.machine import processes
from dflash_tui.monitoring import observer
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import Run

_LONGEST_LINE = 1 << 20


def ps(args: argparse.Namespace) -> int:
    """`ps`: print the servers, newest last."""
    rows = []
    for run in registry.list_runs():
        living = server_process.is_alive(run)
        if not living and not args.all:
            continue
        state = observer.replay_run(run)
        memory = processes.measure_resident_memory(server_process.list_processes(run)) if living else None
        age = server_process.measure_age(run, time.time())
        if args.json:
            fields = {"run": run.id, "recipe": run.plan.recipe, "status": state.status, "port": run.plan.port}
            figures = {"pid": run.pid, "age_s": age, "memory_bytes": memory, "synthetic": run.plan.synthetic}
            figures |= {"restarted_from": run.restarted_from} if run.restarted_from else {}
            print_json(fields | figures)
        rows.append(
            (
                run.id,
                state.status,
                str(run.plan.port),
                str(run.pid),
                format_duration(age),
                format_gib(memory),
                _remark(run),
            )
        )
    print_broken_runs()
    if not args.json:
        if rows:
            print_data(format_table(("RUN", "STATUS", "PORT", "PID", "AGE", "MEMORY", ""), rows, right=(2, 3, 4, 5)))
        else:
            print_status("no server runs; `dflash-tui up RECIPE` starts one, `ps --all` lists those that ended")
    return 0


def print_broken_runs() -> None:
    """Name the runs whose record cannot be used, and say why."""
    for name, why in registry.list_broken_runs().items():
        print_status(f"! ignoring {paths.runs_folder() / name}: {why}; if its server still runs, stop it by hand")


def _remark(run: Run) -> str:
    remarks = [f"({run.plan.synthetic})"] if run.plan.synthetic else []
    remarks += [f"restarted after {run.restarted_from} failed"] if run.restarted_from else []
    return " ".join(remarks)


def logs(args: argparse.Namespace) -> int:
    """`logs [RUN] [-f]`: print the log, free of control characters and of secrets in our environment."""
    run = registry.find_run(args.run)
    if not run.log.exists():
        raise DflashError(f"the log of {run.id} is gone", evidence=str(run.log))
    buffer = LineBuffer(_LONGEST_LINE, keep_end=True)
    with private_files.open_file(run.log) as file:
        while True:
            ended = not server_process.is_alive(run)
            while data := file.read(1 << 20):
                for line in buffer.feed(data):
                    print_data(_clean_end(line))
            if ended or not args.follow:
                break
            time.sleep(observer.LOG_INTERVAL)
    if rest := buffer.rest:
        print_data(_clean_end(rest))
    return 0


def _clean_end(line: bytes) -> str:
    """Return what a terminal would show of a line in the end; one as long as the buffer has lost its beginning."""
    text = line.rsplit(b"\r", 1)[-1].decode(errors="replace")
    if len(line) < _LONGEST_LINE:
        return clean_line(text)
    return clean_line(own_secrets().hide_cut(clean_text(text), start=True))


def stop(args: argparse.Namespace) -> int:
    """`stop [RUN]`: stop a server; without RUN the only one."""
    living = [run for run in registry.list_runs() if server_process.is_alive(run)]
    if args.run is None and len(living) != 1:
        names = ", ".join(run.id for run in living)
        raise UsageError(*((f"{len(living)} servers run, name one: {names}",) if living else ("no server runs",)))
    from dflash_tui.launch import restart_policy, shutdown

    run = registry.find_run(args.run) if args.run else living[0]
    if not server_process.is_alive(run) and not server_process.list_processes(run):
        if run.plan.restart.times:
            restart_policy.cancel_restarts(run)
        print_status(f"{run.id} has already ended")
        return 0
    seconds, unreleased = asyncio.run(shutdown.stop_and_release_memory(run, print_status))
    print_status(f"{run.id} stopped in {seconds:.1f} s, no process of it is left")
    if unreleased:
        print_status(f"! {unreleased}")
    return 0
