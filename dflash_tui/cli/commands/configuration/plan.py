"""`plan` and `doctor`: what a launch would do, and whether it would work."""

from __future__ import annotations

import argparse
import asyncio
import json
from contextlib import suppress

import msgspec

from dflash_tui.cli.commands.server.peer_programs import plan_over_peers
from dflash_tui.cli.console import print_data, print_json, print_status, terminal_width
from dflash_tui.cli.json_lines import CheckLine
from dflash_tui.cli.requests import read_launch_request
from dflash_tui.common.errors import UsageError
from dflash_tui.common.formatting import format_gib
from dflash_tui.common.ssh_host import name_commands
from dflash_tui.launch.planner import PlannedLaunch, plan_launch_here
from dflash_tui.launch.preflight import runner
from dflash_tui.launch.preflight.check import list_local_files
from dflash_tui.launch.preflight.pair import check_files, check_pair
from dflash_tui.launch.preflight.runner import PreflightReport
from dflash_tui.machine import system
from dflash_tui.peers import cluster_launch
from dflash_tui.planning import serve_flags
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.server_command import format_command
from dflash_tui.presentation.plan_text import describe_plan, format_check, format_verdict, summarize_plan
from dflash_tui.runs import lifecycle


def plan(args: argparse.Namespace) -> int:
    """`plan RECIPE`: print what a launch would do."""
    planned = plan_over_peers(read_launch_request(args), args, with_commands=True)
    if args.json:
        expected = [msgspec.to_builtins(band) for band in planned.plan.expected]
        figures = {"expected": expected, "fit": msgspec.to_builtins(planned.memory)}
        print_data(json.dumps(msgspec.to_builtins(planned.plan) | figures))
    else:
        print_data(_describe(planned, verbose=args.verbose))
        if not args.verbose:
            print_status(
                "--verbose has its patches, startup optimizations, published figures, and what differs from them"
            )
    checks = (*check_pair(planned.resolved, planned.plan, planned.gpus), *check_files(planned.resolved))
    for check in checks:
        print_status(format_check(check, terminal_width()))
    if not planned.plan.relaunch_request.engine:  # else its own parser is asked, which may know more
        for mistake in serve_flags.find_mistakes(planned.plan.vllm, planned.plan.argv[3:]):
            print_status(f"! it would not start: {mistake}")
    _name_taken_port(planned.plan)
    return 0


def _describe(planned: PlannedLaunch, *, verbose: bool) -> str:
    if verbose:
        return describe_plan(planned, terminal_width())
    command = format_command(planned.plan).replace("\n", "\n  ")
    return f"{summarize_plan(planned, terminal_width())}\ncommand\n  {command}"


def _name_taken_port(plan: Plan) -> None:
    """Say who has the plan's port, and which a launch takes instead."""
    with suppress(UsageError):  # where none of the next is free a launch says so
        if (free := lifecycle.find_free_port(plan.port)) != plan.port:
            by_hand = plan.request and plan.request.port
            instead = f"{free} is free: --port {free}" if by_hand else f"a launch takes {free}"
            print_status(f"! port {lifecycle.describe_passed_ports(plan.port, free)}; {instead}")


async def _check_all_hosts(planned: PlannedLaunch) -> PreflightReport:
    """Run the checks of a launch here and on its peers."""
    async with cluster_launch.open_peers(planned.plan.relaunch_request.peers) as peers:
        return await cluster_launch.check_all_hosts(planned, peers, thorough=True)


def doctor(args: argparse.Namespace) -> int:
    """`doctor [RECIPE]`: print every check; the exit code is 4 when one fails."""
    if args.recipe is None:
        args.recipe = "demo-cpu"
        planned = plan_launch_here(read_launch_request(args))
        report = asyncio.run(runner.run_machine_checks(planned.resolved, planned.plan))
    else:
        planned = plan_over_peers(read_launch_request(args), args)
        if args.release_page_cache:
            models = asyncio.run(runner.survey_launch(planned.resolved, planned.plan)).models
            freed = system.release_page_cache(list_local_files(models))
            print_status(f"{format_gib(freed)} of page cache released")
        report = asyncio.run(_check_all_hosts(planned))
    for check in report.checks:
        if args.json:
            print_json(CheckLine.from_check(check))
        else:
            print_data(name_commands(format_check(check, terminal_width())))
    if not args.json:
        print_data(format_verdict(report))
    return 4 if report.failed else 0
