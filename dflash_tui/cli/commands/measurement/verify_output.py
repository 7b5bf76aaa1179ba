"""`verify-output RECIPE`: whether a server answers the same with and without speculation."""

from __future__ import annotations

import argparse

from dflash_tui.cli.commands.measurement import ab
from dflash_tui.cli.commands.server.peer_programs import find_cluster
from dflash_tui.cli.datasets import ensure_dataset
from dflash_tui.cli.requests import read_launch_request
from dflash_tui.common.errors import UsageError
from dflash_tui.experiments.builder import ExperimentRequest, build_experiment


def verify_output(args: argparse.Namespace) -> int:
    """Boot the recipe without and with speculation, and judge nothing but the answers.

    Raises:
        OutputDiffers: they differ beyond what boots of one arm differ by.
        DflashError: that cannot be known.
    """
    request = read_output_request(args)
    ensure_dataset(request.suite, as_json=args.json)
    return ab.begin_ab(args, *build_experiment(request, cluster=find_cluster(request.launch, args)))


def read_output_request(args: argparse.Namespace) -> ExperimentRequest:
    """Return what the options of `verify-output` ask for.

    Raises:
        UsageError: there is no such recipe, a setting is not of the form KEY=VALUE, or one boot is all.
    """
    if args.boots < 2:
        raise UsageError(
            "--boots 1: takes two boots of each arm, to see how far boots of one arm differ", hint="--boots 2 or more"
        )
    return ExperimentRequest(
        launch=read_launch_request(args),
        boots=args.boots,
        suite=args.suite,
        prompts=args.prompts,
        scale=args.scale,
        seed=args.seed,
        temperature=0.0,
        checks_output=True,
    )
