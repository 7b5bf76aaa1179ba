"""`plan` and `doctor`: what a launch would do, and whether it would work."""

from __future__ import annotations

import argparse
import asyncio
import json

import msgspec

from dflash_tui.cli.console import print_data, print_status
from dflash_tui.cli.requests import read_launch_request
from dflash_tui.common.formatting import format_gib
from dflash_tui.launch.planner import plan_launch_here
from dflash_tui.launch.preflight import runner
from dflash_tui.launch.preflight.check import list_local_files
from dflash_tui.machine import system
from dflash_tui.presentation.plan_text import describe_plan, format_check, format_verdict


def plan(args: argparse.Namespace) -> int:
    """`plan RECIPE`: print what a launch would do."""
    planned = plan_launch_here(read_launch_request(args))
    if args.json:
        expected = [msgspec.to_builtins(band) for band in planned.setup.expected]
        known = {"expected": expected, "fit": msgspec.to_builtins(planned.memory)}
        print_data(json.dumps(msgspec.to_builtins(planned.plan) | known))
    else:
        print_data(describe_plan(planned))
    return 0


def doctor(args: argparse.Namespace) -> int:
    """`doctor [RECIPE]`: print every check; the exit code is 4 when one fails."""
    if args.recipe is None:
        args.recipe = "demo-cpu"
        planned = plan_launch_here(read_launch_request(args))
        report = asyncio.run(runner.run_machine_checks(planned.setup, planned.plan))
    else:
        planned = plan_launch_here(read_launch_request(args))
        if args.release_page_cache:
            models = asyncio.run(runner.survey_launch(planned.setup, planned.plan)).models
            freed = system.release_page_cache(list_local_files(models))
            print_status(f"{format_gib(freed)} of page cache given back")
        report = asyncio.run(runner.run_preflight(planned.setup, planned.plan, thorough=True))
    for check in report.checks:
        print_data(msgspec.json.encode(check).decode() if args.json else format_check(check))
    if not args.json:
        print_data(format_verdict(report))
    return 4 if report.failed else 0
