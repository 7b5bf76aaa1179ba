"""`history`: how long starts took on this machine, eager against compile, cold against cached."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from dflash_tui.cli.commands.server.servers import print_broken_runs
from dflash_tui.cli.console import print_data, print_json, print_status, print_table
from dflash_tui.common.errors import UsageError
from dflash_tui.common.formatting import UNKNOWN, format_duration, format_number, pluralize
from dflash_tui.monitoring import startup_history
from dflash_tui.monitoring.startup_history import RecordedStart, StartDifference, StartKind
from dflash_tui.presentation.startup_text import format_spread
from dflash_tui.runs import registry


def history(args: argparse.Namespace) -> int:
    """`history [RECIPE]`: print the starts, and their medians by mode and cache."""
    print_broken_runs(registry.list_broken_runs())
    recipes = {run.plan.recipe for run in registry.list_runs()}
    if args.recipe and args.recipe not in recipes:
        do = f"recorded: {', '.join(sorted(recipes))}" if recipes else "dflash-tui up RECIPE starts a server"
        raise UsageError(f"no start of '{args.recipe}' is recorded", hint=do)
    starts = startup_history.list_starts(args.recipe or "")
    if args.json:
        for start in starts:
            print_json(start)
        return 0
    if not starts:
        print_status("no server has started on this machine yet")
        return 0
    _print_starts(starts)
    kinds = startup_history.group_starts(starts)
    print_data("")
    _print_medians(kinds)
    for difference in startup_history.compare_start_kinds(kinds):
        print_data(_describe_difference(difference))
    return 0


def _print_starts(starts: Sequence[RecordedStart]) -> None:
    """Print one row per start, oldest first."""
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
    """Print one row per recipe, engine, mode and cache: medians of the parts of a start, and of how many it is."""
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
    """Return what is ready sooner and by how much, and of how many starts that is said."""
    first, second, seconds = difference
    recipe, setup, engine = first.group
    more = f"{format_duration(abs(seconds))} {'longer' if seconds >= 0 else 'shorter'}"
    ours, theirs = (pluralize(len(kind.times_to_ready), "start") for kind in (first, second))
    sides = f"{first.name} ({ours}) is ready {more} after its launch than {second.name} ({theirs})"
    return f"{recipe} ({setup}) on {engine}: {sides}"
