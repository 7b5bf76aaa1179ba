"""`ps`: list the servers."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping

from dflash_tui.cli.console import print_json, print_status, print_table
from dflash_tui.common import paths
from dflash_tui.common.formatting import UNKNOWN, format_duration, format_gib
from dflash_tui.presentation.client_text import Endpoint, format_endpoint
from dflash_tui.runs import rank_records, registry, reservation, server_process
from dflash_tui.runs.run import Run
from dflash_tui.vllm_output.log_facts import describe_network


def ps(args: argparse.Namespace) -> int:
    """`ps`: print the servers, newest last."""
    rows = []
    runs, broken = registry.load_runs()
    for run in runs:
        living = server_process.is_alive(run)
        if not living and not args.all and not rank_records.list_left(run):
            continue
        status = _read_status(run)
        memory = _measure_memory(run) if living else None
        age = server_process.measure_age(run, time.time())
        if args.json:
            fields = {"run": run.id, "recipe": run.plan.recipe, "status": status, "port": run.plan.port}
            figures = {"pid": run.pid, "age_s": round(age, 1), "memory_bytes": memory, "synthetic": run.plan.synthetic}
            figures |= {"restarted_from": run.restarted_from} if run.restarted_from else {}
            endpoint = Endpoint.from_run(run)
            reached = {
                "url": "" if run.plan.rank else endpoint.url,
                "model": endpoint.model,
                "key_variable": endpoint.key_variable,
            }
            print_json(fields | figures | reached)
        rows.append(
            (
                run.id,
                status,
                UNKNOWN if run.plan.rank else str(run.plan.port),
                str(run.pid),
                format_duration(age),
                format_gib(memory),
                *((_describe_endpoint(run),) if args.verbose else ()),
                _remark(run, verbose=args.verbose),
            )
        )
    print_broken_runs(broken)
    if args.json:
        return 0
    claims = reservation.list_reservations()
    if rows:
        more = ("ENDPOINT",) if args.verbose else ()
        header = ("RUN", "STATUS", "PORT", "PID", "AGE", "MEMORY", *more, "")
        print_table(header, rows, right=(2, 3, 4, 5))
    elif not claims:
        print_status("no server runs; `dflash-tui up RECIPE` starts one, `ps --all` lists those that ended")
    for claim in claims:
        ports = " and ".join(str(port) for port in dict.fromkeys(plan.port for plan in claim.plans))
        print_status(f"· {claim.holder} is under way, for port {ports}")
    return 0


def print_broken_runs(broken: Mapping[str, str]) -> None:
    """Name the runs whose record cannot be used, and say why."""
    for name, why in broken.items():
        print_status(f"! ignoring {paths.runs_folder() / name}: {why}; if its server still runs, stop it by hand")


def _measure_memory(run: Run) -> int:
    from dflash_tui.machine import processes

    return processes.measure_resident_memory(server_process.list_processes(run))


def _describe_endpoint(run: Run) -> str:
    return UNKNOWN if run.plan.rank else format_endpoint(Endpoint.from_run(run))


def _read_status(run: Run) -> str:
    from dflash_tui.monitoring import observer

    return observer.replay_run(run).status


def _remark(run: Run, *, verbose: bool) -> str:
    remarks = [f"({run.plan.synthetic})"] if run.plan.synthetic else []
    remarks += [f"restarted after {run.restarted_from} failed"] if run.restarted_from else []
    remarks += [f"rank {run.plan.rank} of a server of another host"] if run.plan.rank else []
    record = rank_records.read_kept(run)
    there = run.far_ranks and (server_process.is_alive(run) or rank_records.list_left(run))
    if there and not rank_records.is_kept(run):
        states = "; ".join(f"{rank}, when that was last known" for rank in record.ranks) if record else ""
        remarks.append(f"the process that keeps its ranks together has exited; {states}".removesuffix("; "))
    else:
        remarks += map(str, record.ranks) if record else ()
    if verbose and record:
        remarks += [f"NCCL uses {describe_network(r.network)} on {r.host}" for r in record.ranks if r.network]
    return " ".join(remarks)
