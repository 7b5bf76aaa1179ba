"""List and end servers, runs and leftover engine processes: `ps`, `runs` and `stop`."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from ipaddress import ip_address, ip_interface
from typing import Any

import msgspec
import psutil

from dflash_tui.cli.console import ask_yes, can_ask, print_items, print_result, print_status, print_table, print_text
from dflash_tui.cli.json_lines import StoppedServer
from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.formatting import (
    UNKNOWN,
    format_duration,
    format_gib,
    format_gigabytes,
    format_host_and_port,
    format_number,
    pluralize,
    read_called_name,
)
from dflash_tui.common.private_files import DiskCount
from dflash_tui.experiments import store
from dflash_tui.experiments.design import BootBegan
from dflash_tui.launch import session, shutdown
from dflash_tui.machine import network, processes
from dflash_tui.machine.processes import Orphan, find_orphans
from dflash_tui.monitoring import observer, startup_history
from dflash_tui.monitoring.foreign_server import FoundServer, find_foreign_servers
from dflash_tui.monitoring.startup_history import RecordedStart, StartDifference, StartKind
from dflash_tui.peers import keeper
from dflash_tui.presentation.client_text import (
    PLACES,
    ClientProgram,
    Endpoint,
    describe_boot,
    format_endpoint,
    format_tunnel,
    format_wiring,
)
from dflash_tui.presentation.startup_text import format_spread
from dflash_tui.runs import registry, reservation, server_process
from dflash_tui.runs.run import Run
from dflash_tui.vllm_output.log_facts import describe_network

_DAY = 86_400
_STOP_TIMEOUT = 5.0
_MOST_URLS = 4
# Interfaces of containers and virtual machines, which other machines cannot reach.
_OF_CONTAINERS = ("docker", "br-", "veth", "virbr", "cni", "podman")


def ps(args: argparse.Namespace) -> int:
    """`ps [RUN]`: print the servers, newest last; with --for print how a program reaches one."""
    if args.program:
        return _print_wiring(registry.find_run(args.run), ClientProgram(args.program))
    runs, broken = registry.load_runs()
    if args.run:
        listed = [registry.find_run(args.run)]
    else:
        listed = [run for run in runs if args.all or server_process.is_alive(run) or server_process.list_left(run)]
    print_broken_runs(broken)
    foreign = [] if args.command == "runs" or args.run else asyncio.run(find_foreign_servers())
    if args.json:
        print_items((*map(_build_line, listed), *foreign))
        return 0
    _print_servers(listed, foreign, verbose=args.verbose)
    claims = [] if args.run else reservation.list_reservations()
    if not listed and not claims:
        print_status("no server is running; `dflash-tui up RECIPE` starts one, `ps --all` lists ended ones")
    for claim in claims:
        ports = " and ".join(str(port) for port in dict.fromkeys(plan.port for plan in claim.plans))
        print_status(f"· {claim.holder} is under way, for port {ports}")
    for run in listed if args.verbose else ():
        if args.run or server_process.is_alive(run):
            _print_reach(run)
    return 0


def _build_line(run: Run) -> dict[str, Any]:
    endpoint = Endpoint.from_run(run)
    fields = {
        "run": run.id,
        "recipe": run.plan.recipe,
        "status": observer.replay_run(run).status,
        "port": run.plan.port,
        "pid": run.pid,
        "age_s": round(server_process.measure_age(run, time.time()), 1),
        "memory_bytes": _measure_memory(run),
        "synthetic": run.plan.synthetic,
    }
    fields |= {"restarted_from": run.restarted_from} if run.restarted_from else {}
    url = "" if run.plan.rank else endpoint.url
    return fields | {"url": url, "model": endpoint.model, "key_variable": endpoint.key_variable}


def _measure_memory(run: Run) -> int | None:
    members = server_process.list_processes(run) if server_process.is_alive(run) else []
    return processes.measure_resident_memory(members) if members else None


def _print_servers(runs: Sequence[Run], foreign: Sequence[FoundServer], *, verbose: bool) -> None:
    rows = [
        (
            run.id,
            observer.replay_run(run).status,
            UNKNOWN if run.plan.rank else str(run.plan.port),
            str(run.pid),
            format_duration(server_process.measure_age(run, time.time())),
            format_gib(_measure_memory(run)),
            *((UNKNOWN if run.plan.rank else format_endpoint(Endpoint.from_run(run)),) if verbose else ()),
            _describe_state(run, verbose=verbose),
        )
        for run in runs
    ]
    more = ("ENDPOINT",) if verbose else ()
    print_table(("RUN", "STATUS", "PORT", "PID", "AGE", "MEMORY", *more, ""), rows, right=(2, 3, 4, 5))
    watch = [
        (server.model or UNKNOWN, str(server.port), str(server.pid or UNKNOWN), f"dflash-tui attach {server.url}")
        for server in foreign
    ]
    print_table(("NOT STARTED BY DFLASH-TUI", "PORT", "PID", "WATCH WITH"), watch, right=(1, 2))


def _print_wiring(run: Run, program: ClientProgram) -> int:
    endpoint = Endpoint.from_run(run)
    _print_reach(run)
    wiring = format_wiring(endpoint, program)
    place = "~/.continue/.env" if program is ClientProgram.CONTINUE else "its environment"
    key = f"; the key comes from {endpoint.key_variable} in {place}" if endpoint.key_variable else ""
    print_status(f"for {PLACES[program]}{key}")
    facts = {"run": run.id, **msgspec.structs.asdict(endpoint), "program": program.value, "wiring": wiring}
    print_result(facts, wiring)
    return 0


def _print_reach(run: Run) -> None:
    if not server_process.is_alive(run):
        print_status(f"! {run.id} has ended; this is how it was reached")
    elif boot := describe_boot(run):
        print_status(f"! {boot}")
    if host := read_called_name():
        print_status(f"on your machine first: {format_tunnel(Endpoint.from_run(run), host)}")
    if urls := _list_urls_elsewhere(run):
        print_status(f"{run.id} from other machines: {' or '.join(urls)}")


def _list_urls_elsewhere(run: Run) -> list[str]:
    if not ip_address(run.plan.host).is_unspecified:
        return []
    interfaces = [port for port in network.read_network().interfaces if not port.name.startswith(_OF_CONTAINERS)]
    addresses = [ip_interface(text).ip for port in interfaces for text in port.addresses]
    hosts = [str(address) for address in addresses if not address.is_link_local]
    return [f"http://{format_host_and_port(host, run.plan.port)}/v1" for host in hosts[:_MOST_URLS]]


def print_broken_runs(broken: Mapping[str, str]) -> None:
    """Print the runs whose record cannot be used, and why."""
    for name, why in broken.items():
        print_status(f"! ignoring {paths.runs_folder() / name}: {why}; if its server still runs, stop it by hand")


def _describe_state(run: Run, *, verbose: bool) -> str:
    remarks = [f"({run.plan.synthetic})"] if run.plan.synthetic else []
    remarks += [f"restarted after {run.restarted_from} failed"] if run.restarted_from else []
    remarks += [f"rank {run.plan.rank} of a server on another host"] if run.plan.rank else []
    record = server_process.read_kept(run)
    there = run.far_ranks and (server_process.is_alive(run) or server_process.list_left(run))
    if there and not server_process.is_kept(run):
        states = "; ".join(f"{rank} (last known state)" for rank in record.ranks) if record else ""
        remarks.append(f"the keeper of its ranks has exited; {states}".removesuffix("; "))
    else:
        remarks += map(str, record.ranks) if record else ()
    if verbose and record:
        remarks += [f"NCCL uses {describe_network(r.network)} on {r.host}" for r in record.ranks if r.network]
    return " ".join(remarks)


class PrunedRun(msgspec.Struct, frozen=True):
    """A run that `runs prune` removes, or lists without --yes."""

    run: str
    """Its id."""
    recipe: str
    """The recipe that it served."""
    age_s: float
    """Seconds since its files were last written."""
    bytes: int
    """The disk usage of its folder."""
    removed: bool
    """Whether it was removed; without --yes it is only listed."""


def runs(args: argparse.Namespace) -> int:
    """`runs`: list all runs."""
    args.all, args.verbose, args.run, args.program = True, False, None, None
    return ps(args)


def runs_prune(args: argparse.Namespace) -> int:
    """`runs prune`: list runs that ended long ago; with --yes remove them; runs of A/Bs are kept."""
    runs_of_experiments = _list_runs_of_experiments()
    over = [run for run in registry.list_runs() if registry.is_over(run)]
    now, count = time.time(), DiskCount()
    old = [(run, age) for run in over if (age := now - registry.find_last_change(run)) >= args.older_than]
    pruned = [_prune(run, age, count, remove=args.yes) for run, age in old if run.id not in runs_of_experiments]
    print_items(pruned)
    rows = [(each.run, _format_age(each.age_s), format_gigabytes(each.bytes)) for each in pruned]
    print_table(("RUN", "AGE", "SIZE"), rows, right=(1, 2))
    print_broken_runs(registry.list_broken_runs())
    staying = sum(run.id in runs_of_experiments for run, _ in old)
    if staying:
        print_status(f"{pluralize(staying, 'run')} of A/Bs are kept: dflash-tui ab remove ID, then prune again")
    total = f"{pluralize(len(pruned), 'run')}, {format_gigabytes(sum(pruned_run.bytes for pruned_run in pruned))}"
    if not pruned:
        print_status(f"no run ended more than {_format_age(args.older_than)} ago")
    else:
        print_status(f"removed {total}" if args.yes else f"{total}: --yes removes them and their start estimates")
    return 0


def _prune(run: Run, age: float, count: DiskCount, *, remove: bool) -> PrunedRun:
    size = count.measure_folder(run.folder)
    if remove:
        registry.remove_run(run)
    return PrunedRun(run.id, run.plan.recipe, age, size, remove)


def _format_age(seconds: float) -> str:
    return f"{seconds / _DAY:.0f} d" if seconds >= 2 * _DAY else format_duration(seconds)


def _list_runs_of_experiments() -> set[str]:
    designs = store.list_experiments()
    events = (event for design in designs for event in store.read_events(store.experiment_folder(design.id)))
    return {event.run for event in events if isinstance(event, BootBegan)}


def runs_history(args: argparse.Namespace) -> int:
    """`runs history [RECIPE]`: print the starts, and their medians by mode and cache."""
    print_broken_runs(registry.list_broken_runs())
    recipes = {run.plan.recipe for run in registry.list_runs()}
    if args.recipe and args.recipe not in recipes:
        do = f"recorded: {', '.join(sorted(recipes))}" if recipes else "dflash-tui up RECIPE starts a server"
        raise UsageError(f"no start of '{args.recipe}' is recorded", hint=do)
    starts = startup_history.list_starts(args.recipe or "")
    print_items(starts)
    if not starts:
        print_status("no server has started on this machine yet")
        return 0
    _print_starts(starts)
    kinds = startup_history.group_starts(starts)
    print_text("")
    _print_medians(kinds)
    for difference in startup_history.compare_start_kinds(kinds):
        print_text(_describe_difference(difference))
    return 0


def _print_starts(starts: Sequence[RecordedStart]) -> None:
    header = ("RUN", "WHEN", "MODE", "CACHE", "UP", "FIRST REQUEST", "READY")
    rows = [
        (
            start.run,
            time.strftime("%Y-%m-%d %H:%M", time.localtime(start.at)),
            start.mode,
            start.cache or UNKNOWN,
            format_duration(start.up),
            format_number(start.first_request, 1, "s"),
            format_duration(start.ready),
        )
        for start in starts
    ]
    print_table(header, rows, right=(4, 5, 6))


def _print_medians(kinds: Sequence[StartKind]) -> None:
    parts = [name.upper() for name, _ in startup_history.STARTUP_PARTS]
    header = ("MEDIANS", "SETUP", "ENGINE", "MODE", "CACHE", "STARTS", *parts, "FIRST", "READY", "FROM TO")
    rows = []
    for kind in kinds:
        seconds = [format_duration(kind.median_seconds(phases)) for _, phases in startup_history.STARTUP_PARTS]
        times = (
            *seconds,
            format_number(kind.first_request, 1, "s"),
            format_duration(kind.ready),
            format_spread(kind),
        )
        rows.append((*kind.group, kind.mode, kind.cache or UNKNOWN, str(len(kind.starts)), *times))
    print_table(header, rows, right=tuple(range(5, len(header))))


def _describe_difference(difference: StartDifference) -> str:
    first, second, seconds = difference
    recipe, setup, engine = first.group
    more = f"{format_duration(abs(seconds))} {'longer' if seconds >= 0 else 'shorter'}"
    ours, theirs = (pluralize(len(kind.times_to_ready), "start") for kind in (first, second))
    sides = f"{first.name} ({ours}) is ready {more} after its launch than {second.name} ({theirs})"
    return f"{recipe} ({setup}) on {engine}: {sides}"


def stop(args: argparse.Namespace) -> int:
    """`stop [RUN]`: stop a server; without RUN the only one, with --all every one."""
    if args.orphans:
        return _stop_orphans(args)
    if args.all and args.run:
        raise UsageError("--all cannot be combined with a run", hint="use only one of them")
    living = registry.list_living_servers()
    if args.all and not living:
        print_status(_describe_none())
        return 0
    if args.run is None and len(living) != 1 and not args.all:
        names = ", ".join(run.id for run in living)
        what = f"{len(living)} servers run, name one: {names}; or --all" if living else _describe_none()
        raise UsageError(what)
    for run in [registry.find_run(args.run)] if args.run else living:
        print_items([_stop_run(run)])
    return 0


def _describe_none() -> str:
    if orphans := find_orphans():
        outlived = f"{pluralize(len(orphans), 'engine process')} outlived one: dflash-tui stop --orphans"
        return f"no server is running, but {outlived}"
    return "no server is running"


def _stop_run(run: Run) -> StoppedServer:
    if not server_process.is_alive(run) and not server_process.list_processes(run):
        if run.plan.restart.times:
            session.cancel_restarts(run)
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
    for far in asyncio.run(keeper.wait_until_stopped(run)):
        print_status(f"{'! ' if far.state in server_process.THERE else ''}{far}")


def _stop_orphans(args: argparse.Namespace) -> int:
    """List the orphaned engine processes, and end them after asking; `args.run` is the pid of one."""
    orphans = [orphan for orphan in find_orphans() if args.run in {None, str(orphan.pid)}]
    if args.run and not orphans:
        what = f"pid {args.run} is not an orphaned engine process"
        raise UsageError(what, hint="dflash-tui stop --orphans lists them")
    if not orphans:
        print_status("no engine process outlived its server")
        return 0
    for orphan in orphans:
        fields = {"pid": orphan.pid, "name": orphan.name, "resident_bytes": orphan.resident, "port": orphan.port}
        print_items([fields])
    rows = [
        (str(orphan.pid), orphan.name, format_gib(orphan.resident), str(orphan.port or UNKNOWN)) for orphan in orphans
    ]
    print_table(("PID", "NAME", "MEMORY", "PORT"), rows, right=(0, 2, 3))
    if not args.yes:
        if args.run and not can_ask():
            hint = f"dflash-tui stop --orphans {args.run} --yes"
            raise UsageError("cannot ask for confirmation without a terminal", hint=hint)
        if args.json or not can_ask():
            print_status("--yes stops them all, a PID only that one; dflash-tui gpus shows their GPU memory")
            return 0
        if not ask_yes(f"Stop {pluralize(len(orphans), 'process')}?"):
            print_status("not stopped")
            return 0
    for orphan in orphans:
        _end_orphan(orphan)
    return 0


def _end_orphan(orphan: Orphan) -> None:
    what = f"{orphan.name} (pid {orphan.pid}), which holds {format_gib(orphan.resident)}"
    try:
        process = psutil.Process(orphan.pid)  # by its start time: a later process with this pid gets no signal
    except psutil.NoSuchProcess:
        process = None
    if process is None or processes.read_process_identity(orphan.pid) != orphan.born:
        print_status(f"pid {orphan.pid} has already exited")
    elif processes.end_processes([process, *processes.list_descendants(orphan.pid)], _STOP_TIMEOUT):
        hint = "it may belong to another user, or be blocked in the kernel; see dmesg"
        raise DflashError(f"cannot stop {what}", hint=hint)
    else:
        print_status(f"stopped {what}")
