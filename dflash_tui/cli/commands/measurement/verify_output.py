"""`verify-output RECIPE`: whether speculation changes greedy answers by more than rounding."""

from __future__ import annotations

import argparse

from dflash_tui.cli.commands.measurement import ab
from dflash_tui.cli.commands.server.peer_programs import find_cluster
from dflash_tui.cli.datasets import ensure_dataset
from dflash_tui.cli.requests import read_launch_request
from dflash_tui.common.errors import UsageError
from dflash_tui.experiments.builder import ExperimentRequest, build_experiment
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.request import LaunchChanges


def verify_output(args: argparse.Namespace) -> int:
    """Boot the recipe with speculation, then without, which scores the answers; judge nothing else.

    Raises:
        OutputDiffers: an answer parts by more than rounding.
        DflashError: that cannot be known.
    """
    request = read_output_request(args)
    ensure_dataset(request.suite, as_json=args.json)
    return ab.begin_ab(args, *build_experiment(request, cluster=find_cluster(request.launch, args)))


def read_output_request(args: argparse.Namespace) -> ExperimentRequest:
    """Return what the options of `verify-output` ask for.

    Raises:
        UsageError: there is no such recipe, a setting is not of the form KEY=VALUE, or `--exact` is not for the CPU.
    """
    launch = read_launch_request(args)
    if args.exact:
        if not recipe_loader.find_recipe(launch.recipe).for_cpu:
            what = f"--exact is for recipes of the CPU, and {launch.recipe} is for GPUs"
            raise UsageError(what, hint="leave --exact out: rounding is measured then")
        launch = launch.with_changes(LaunchChanges(settings={"dtype": "float32"}))
    return ExperimentRequest(
        launch=launch,
        suite=args.suite,
        prompts=args.prompts,
        scale=args.scale,
        seed=args.seed,
        temperature=0.0,
        checks_output=True,
    )
