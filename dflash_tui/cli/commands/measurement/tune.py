"""Tunes on the command line: `tune RECIPE`, `tune attach`, `tune stop`, `tune resume`, `tune keep`."""

from __future__ import annotations

import argparse

from dflash_tui.cli.commands.measurement import ab
from dflash_tui.cli.commands.server.peer_programs import find_cluster
from dflash_tui.cli.console import print_status
from dflash_tui.cli.datasets import ensure_dataset
from dflash_tui.cli.json_lines import print_written_file
from dflash_tui.cli.requests import read_launch_request
from dflash_tui.common.errors import UsageError
from dflash_tui.experiments import store
from dflash_tui.experiments.builder import ExperimentRequest
from dflash_tui.experiments.design import Design
from dflash_tui.experiments.tuning import schedule, tuner
from dflash_tui.experiments.tuning.tuner import BuiltTune
from dflash_tui.presentation import experiment_text


def tune(args: argparse.Namespace) -> int:
    """`tune …`: begin a tune, or do something with one."""
    if args.action in {"attach", "stop", "resume"}:
        args.experiment = find_tune(args.experiment).id
    actions = {"run": start, "attach": ab.attach, "stop": ab.stop, "resume": ab.resume, "keep": keep}
    return actions[args.action](args)


def start(args: argparse.Namespace) -> int:
    """`tune RECIPE`: say what will be tried, do it in a process of its own, and follow that."""
    ensure_dataset(args.suite or None, as_json=args.json)
    built = build_requested_tune(args)

    def describe(stopped: list[str]) -> str:
        rows = experiment_text.list_tune_rows(built.design, built.boot, stopped)
        return "\n".join(f"{label:<8} {text}" for label, text in rows)

    return ab.begin(args, built.design, [built.resolved], describe)


def build_requested_tune(args: argparse.Namespace) -> BuiltTune:
    """Return the tune that the options of `tune run` ask for.

    Raises:
        UsageError: there is no such recipe, a setting is not of the form KEY=VALUE, or a combination is wrong.
    """
    request = ExperimentRequest(
        launch=read_launch_request(args),
        suite=args.suite or None,
        rounds=args.rounds,
        scale=args.scale,
        seed=args.seed,
        temperature=args.temperature,
        concurrency=tuple(args.concurrency),
        fixed=args.fixed,
    )
    cluster = find_cluster(request.launch, args)
    return tuner.build_tune(request, budget=args.budget, axes=args.vary, name=args.name, cluster=cluster)


def keep(args: argparse.Namespace) -> int:
    """`tune keep [ID]`: write the best setting so far as a recipe."""
    design = find_tune(args.experiment)
    progress = store.read_progress(store.experiment_folder(design.id))
    best = schedule.judge_tune(progress)
    if design.tuning is None or not best.best:
        raise UsageError(
            f"{design.id}: {experiment_text.format_best(progress.design, best)}", hint="there is nothing to keep"
        )
    path = tuner.keep_best(progress, best, args.name or design.tuning.save_as, overwrite=args.overwrite)
    print_status(experiment_text.format_best(progress.design, best))
    print_written_file(path, as_json=args.json)
    return 0


def find_tune(name: str | None) -> Design:
    """Return the tune that `name` means, as for A/Bs; without it the one that runs, or the newest.

    Raises:
        UsageError: none fits, or it is an A/B.
    """
    if name is not None:
        design = store.find_experiment(name)
        if design.tuning is None:
            raise UsageError(f"{design.id} is an A/B, not a tune", hint=f"dflash-tui ab attach {design.id}")
        return design
    tunes = [design for design in store.list_experiments() if design.tuning]
    if not tunes:
        raise UsageError("no tune yet", hint="dflash-tui tune RECIPE begins one")
    driven = (tune for tune in reversed(tunes) if store.find_driver(store.experiment_folder(tune.id)))
    return next(driven, tunes[-1])
