"""`stop`: end servers."""

from __future__ import annotations

import argparse
import asyncio

from dflash_tui.cli.console import print_json, print_status
from dflash_tui.cli.json_lines import StoppedServer
from dflash_tui.common.errors import UsageError
from dflash_tui.common.formatting import pluralize
from dflash_tui.launch import restarts, shutdown
from dflash_tui.machine.processes import find_orphans
from dflash_tui.peers import keeper
from dflash_tui.runs import rank_records, registry, server_process
from dflash_tui.runs.run import Run


def stop(args: argparse.Namespace) -> int:
    """`stop [RUN]`: stop a server; without RUN the only one, with --all each."""
    if args.all and args.run:
        raise UsageError("--all cannot be combined with a run", hint="give one of them")
    living = registry.list_living_servers()
    if args.all and not living:
        print_status(_describe_none())
        return 0
    if args.run is None and len(living) != 1 and not args.all:
        names = ", ".join(run.id for run in living)
        what = f"{len(living)} servers run, name one: {names}; or --all" if living else _describe_none()
        raise UsageError(what)
    for run in [registry.find_run(args.run)] if args.run else living:
        stopped = _stop_run(run)
        if args.json:
            print_json(stopped)
    return 0


def _describe_none() -> str:
    """Return that no server runs, and what is left of those that were killed, which no `stop` knows."""
    if orphans := find_orphans():
        return f"no server runs, but {pluralize(len(orphans), 'engine process')} outlived one: dflash-tui orphans"
    return "no server runs"


def _stop_run(run: Run) -> StoppedServer:
    if not server_process.is_alive(run) and not server_process.list_processes(run):
        if run.plan.restart.times:
            restarts.cancel_restarts(run)
        print_status(f"{run.id} has already ended")
        if rank_records.list_left(run):
            _stop_far_ranks(run)
        return StoppedServer(run.id, 0, ran=False)
    seconds, unreleased = asyncio.run(shutdown.stop_and_release_memory(run, print_status))
    print_status(f"{run.id} stopped in {seconds:.1f} s, no process of it is left")
    if unreleased:
        print_status(f"! {unreleased}")
    if run.far_ranks:
        _stop_far_ranks(run)
    return StoppedServer(run.id, seconds, ran=True, unreleased=unreleased)


def _stop_far_ranks(run: Run) -> None:
    """Wait until the other hosts of a server have none of it any more; what is left is said, and shown by `ps`."""
    for rank in asyncio.run(keeper.wait_until_stopped(run, keeper.PATIENCE)):
        print_status(f"{'! ' if rank.state in rank_records.THERE else ''}{rank}")
