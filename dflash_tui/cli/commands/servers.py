"""List and end servers, runs and leftover engine processes: `ps`, `runs`, `stop` and `orphans`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping

import msgspec
import psutil

from dflash_tui.cli.console import ask_yes, print_json, print_status, print_table
from dflash_tui.cli.json_lines import StoppedServer
from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.formatting import UNKNOWN, format_duration, format_gib, format_gigabytes, pluralize
from dflash_tui.common.private_files import DiskCount
from dflash_tui.experiments import store
from dflash_tui.experiments.design import BootBegan
from dflash_tui.launch import restarts, shutdown
from dflash_tui.machine import processes
from dflash_tui.machine.processes import Orphan, find_orphans
from dflash_tui.monitoring import observer
from dflash_tui.monitoring.foreign_server import find_foreign_servers
from dflash_tui.peers import keeper
from dflash_tui.peers.connection import OrphansFound, open_connection
from dflash_tui.presentation.client_text import Endpoint, format_endpoint
from dflash_tui.runs import registry, reservation, server_process
from dflash_tui.runs.run import Run
from dflash_tui.vllm_output.log_facts import describe_network

_DAY = 86_400
_STOP_TIMEOUT = 5.0
_LIST_TIMEOUT = 60.0


def ps(args: argparse.Namespace) -> int:
    """`ps`: print the servers, newest last."""
    rows = []
    runs, broken = registry.load_runs()
    for run in runs:
        living = server_process.is_alive(run)
        if not living and not args.all and not server_process.list_left(run):
            continue
        status, endpoint = observer.replay_run(run).status, Endpoint.from_run(run)
        memory = processes.measure_resident_memory(server_process.list_processes(run)) if living else None
        age = server_process.measure_age(run, time.time())
        if args.json:
            fields = {"run": run.id, "recipe": run.plan.recipe, "status": status, "port": run.plan.port}
            figures = {"pid": run.pid, "age_s": round(age, 1), "memory_bytes": memory, "synthetic": run.plan.synthetic}
            figures |= {"restarted_from": run.restarted_from} if run.restarted_from else {}
            url = "" if run.plan.rank else endpoint.url
            reached = {"url": url, "model": endpoint.model, "key_variable": endpoint.key_variable}
            print_json(fields | figures | reached)
        reach = UNKNOWN if run.plan.rank else format_endpoint(endpoint)
        rows.append(
            (
                run.id,
                status,
                UNKNOWN if run.plan.rank else str(run.plan.port),
                str(run.pid),
                format_duration(age),
                format_gib(memory),
                *((reach,) if args.verbose else ()),
                _remark(run, verbose=args.verbose),
            )
        )
    print_broken_runs(broken)
    foreign = [] if args.command == "runs" else asyncio.run(find_foreign_servers())
    if args.json:
        for server in foreign:
            print_json(server)
        return 0
    claims = reservation.list_reservations()
    if rows:
        more = ("ENDPOINT",) if args.verbose else ()
        header = ("RUN", "STATUS", "PORT", "PID", "AGE", "MEMORY", *more, "")
        print_table(header, rows, right=(2, 3, 4, 5))
    elif not claims:
        print_status("no server runs; `dflash-tui up RECIPE` starts one, `ps --all` lists those that ended")
    if foreign:
        columns = ("NOT STARTED BY DFLASH-TUI", "PORT", "PID", "WATCH WITH")
        watch = [
            (server.model or UNKNOWN, str(server.port), str(server.pid or UNKNOWN), f"dflash-tui attach {server.url}")
            for server in foreign
        ]
        print_table(columns, watch, right=(1, 2))
    for claim in claims:
        ports = " and ".join(str(port) for port in dict.fromkeys(plan.port for plan in claim.plans))
        print_status(f"· {claim.holder} is under way, for port {ports}")
    return 0


def print_broken_runs(broken: Mapping[str, str]) -> None:
    """Name the runs whose record cannot be used, and say why."""
    for name, why in broken.items():
        print_status(f"! ignoring {paths.runs_folder() / name}: {why}; if its server still runs, stop it by hand")


def _remark(run: Run, *, verbose: bool) -> str:
    remarks = [f"({run.plan.synthetic})"] if run.plan.synthetic else []
    remarks += [f"restarted after {run.restarted_from} failed"] if run.restarted_from else []
    remarks += [f"rank {run.plan.rank} of a server of another host"] if run.plan.rank else []
    record = server_process.read_kept(run)
    there = run.far_ranks and (server_process.is_alive(run) or server_process.list_left(run))
    if there and not server_process.is_kept(run):
        states = "; ".join(f"{rank}, when that was last known" for rank in record.ranks) if record else ""
        remarks.append(f"the process that keeps its ranks together has exited; {states}".removesuffix("; "))
    else:
        remarks += map(str, record.ranks) if record else ()
    if verbose and record:
        remarks += [f"NCCL uses {describe_network(r.network)} on {r.host}" for r in record.ranks if r.network]
    return " ".join(remarks)


class PrunedRun(msgspec.Struct, frozen=True):
    """A run that `runs prune` removes, or would."""

    run: str
    """Its id."""
    recipe: str
    """What it served."""
    age_s: float
    """Seconds since something of it was written."""
    bytes: int
    """What its folder takes on the disk."""
    removed: bool
    """Whether it is gone now; without --yes it is only listed."""


def runs(args: argparse.Namespace) -> int:
    """`runs`: list all runs."""
    args.all, args.verbose = True, False
    return ps(args)


def runs_prune(args: argparse.Namespace) -> int:
    """`runs prune`: list the runs that ended long ago, and with --yes remove them; those of an A/B stay with it."""
    runs_of_experiments = _list_runs_of_experiments()
    over = [run for run in registry.list_runs() if registry.is_over(run)]
    now, count = time.time(), DiskCount()
    old = [(run, age) for run in over if (age := _find_age(run, now)) is not None and age >= args.older_than]
    standalone = [(run, age) for run, age in old if run.id not in runs_of_experiments]
    pruned = [pruned_run for run, age in standalone if (pruned_run := _prune(run, age, count, remove=args.yes))]
    if args.json:
        for pruned_run in pruned:
            print_json(pruned_run)
    elif pruned:
        rows = [
            (pruned_run.run, _format_age(pruned_run.age_s), format_gigabytes(pruned_run.bytes)) for pruned_run in pruned
        ]
        print_table(("RUN", "AGE", "SIZE"), rows, right=(1, 2))
    print_broken_runs(registry.list_broken_runs())
    staying = sum(run.id in runs_of_experiments for run, _ in old)
    if staying:
        print_status(f"{pluralize(staying, 'run')} of A/Bs stay: dflash-tui ab remove ID, then prune again")
    total = f"{pluralize(len(pruned), 'run')}, {format_gigabytes(sum(pruned_run.bytes for pruned_run in pruned))}"
    if not pruned:
        print_status(f"no run ended more than {_format_age(args.older_than)} ago")
    else:
        print_status(f"removed {total}" if args.yes else f"{total}: --yes removes them, estimates of starts with them")
    return 0


def _find_age(run: Run, now: float) -> float | None:
    """Return the seconds since the run was last written; None where somebody else has removed it meanwhile."""
    try:
        return now - registry.find_last_change(run)
    except FileNotFoundError:
        return None


def _prune(run: Run, age: float, count: DiskCount, *, remove: bool) -> PrunedRun | None:
    """Count a run and remove it if asked to; return None where somebody else has removed it meanwhile."""
    try:
        size = count.measure_folder(run.folder)
        if remove:
            registry.remove_run(run)
    except FileNotFoundError:
        return None
    return PrunedRun(run.id, run.plan.recipe, age, size, remove)


def _format_age(seconds: float) -> str:
    return f"{seconds / _DAY:.0f} d" if seconds >= 2 * _DAY else format_duration(seconds)


def _list_runs_of_experiments() -> set[str]:
    designs = store.list_experiments()
    events = (event for design in designs for event in store.read_events(store.experiment_folder(design.id)))
    return {event.run for event in events if isinstance(event, BootBegan)}


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
        if server_process.list_left(run):
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
        print_status(f"{'! ' if rank.state in server_process.THERE else ''}{rank}")


def orphans(args: argparse.Namespace) -> int:
    """`orphans [PID]`: list them, or stop the one with this pid."""
    if args.peer and args.pid is not None:
        raise UsageError("--peer HOST only lists processes", hint=f"ssh {args.peer} dflash-tui orphans {args.pid}")
    orphan_list = asyncio.run(_list_far_orphans(args.peer)) if args.peer else find_orphans()
    if args.pid is not None:
        return _end_orphan(args.pid, orphan_list, sure=args.yes)
    if args.json:
        for orphan in orphan_list:
            fields = {"pid": orphan.pid, "name": orphan.name, "resident_bytes": orphan.resident, "port": orphan.port}
            print_json(fields)
    elif orphan_list:
        rows = [
            (str(orphan.pid), orphan.name, format_gib(orphan.resident), str(orphan.port or UNKNOWN))
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
    """Stop one orphan and its child processes, after asking unless `sure`."""
    orphan = next((candidate for candidate in orphan_list if candidate.pid == pid), None)
    if orphan is None:
        raise UsageError(f"pid {pid} is not an orphaned engine process", hint="dflash-tui orphans lists them")
    try:
        process = psutil.Process(pid)  # it holds the start time: another process with this pid is never signalled
    except psutil.NoSuchProcess:
        return _report_exited(pid)
    what = f"{orphan.name} (pid {pid}), which holds {format_gib(orphan.resident)}"
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
