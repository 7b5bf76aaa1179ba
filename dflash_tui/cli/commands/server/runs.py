"""`runs`: list all runs, and remove old ones."""

from __future__ import annotations

import argparse
import time

import msgspec

from dflash_tui.cli.commands.server import servers
from dflash_tui.cli.console import print_json, print_status, print_table
from dflash_tui.common.formatting import format_duration, format_gigabytes, pluralize
from dflash_tui.common.private_files import DiskCount
from dflash_tui.experiments import store
from dflash_tui.experiments.design import BootBegan
from dflash_tui.runs import registry
from dflash_tui.runs.run import Run

_DAY = 86_400


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
    """`runs [list|prune]`."""
    if args.action == "prune":
        return prune(args)
    args.all, args.verbose = True, False
    return servers.ps(args)


def prune(args: argparse.Namespace) -> int:
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
    servers.print_broken_runs(registry.list_broken_runs())
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
