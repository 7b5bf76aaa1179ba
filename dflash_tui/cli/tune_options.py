"""The grammar of `tune`."""

from __future__ import annotations

import argparse
from typing import Any

from dflash_tui.cli.options import (
    add_begin_options,
    add_detach_option,
    add_experiment_argument,
    add_json_option,
    add_option,
    add_recipe_argument,
    add_suite_option,
    add_trust_option,
    parse_budget,
    parse_positive,
    parse_scale,
    parse_seed,
    parse_streams,
    parse_temperature,
)


def add_tune(parser: Any) -> None:
    """Add the actions of `tune`, of which the recipe alone stands for `run`."""
    parser.unnamed, parser.actions = "run", ("run", "attach", "stop", "resume", "keep")
    parser.usage = "dflash-tui tune RECIPE [--budget 30m] [options of `tune run`]\n       dflash-tui tune ACTION"
    about = "actions (`tune RECIPE` is short for `tune run RECIPE`; `ab list` and `ab remove` know tunes, too)"
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title=about, required=True, prog="dflash-tui tune")
    _add_run(actions.add_parser("run", help="try one setting after another, keep what is faster, and say by how much"))
    for name, help_ in (
        ("attach", "follow a tune, or show what it has found"),
        ("stop", "end a tune and its server; it can be resumed"),
        ("resume", "go on where a tune ended early"),
        ("keep", "write the best setting as a recipe of yours, also while the tune runs or after it was stopped"),
    ):
        action = actions.add_parser(name, help=help_)
        add_experiment_argument(action)
        if name == "resume":
            add_detach_option(action)
            add_trust_option(action)
        if name == "keep":
            action.add_argument(
                "--name", metavar="NAME", help="the recipe's name (default: as chosen when the tune began)"
            )
            action.add_argument("--overwrite", action="store_true", help="replace a recipe of that name")
        add_json_option(action)


def _add_run(run: Any) -> None:
    add_recipe_argument(run)
    budget = "how long all boots together may take, such as 45m or 2h (default: 30m)"
    add_option(run, "--budget", type=parse_budget, default=1800.0, metavar="TIME", help=budget)
    vary = "try these values instead of all that may matter; as for `ab`, may be repeated"
    run.add_argument("--vary", action="append", default=[], metavar="KEY=V,V", help=vary)
    run.add_argument("--name", default="", metavar="NAME", help="the recipe that is written (default: RECIPE-tuned)")
    add_option(run, "--rounds", type=parse_positive, default=1, metavar="N", help="how often a boot sends each prompt")
    add_suite_option(run, None, words="field, or quick where the server takes no long context")
    scale = "lengthen or shorten the answers (default: the recipe's)"
    add_option(run, "--scale", type=parse_scale, metavar="X", help=scale)
    ends = "answers of full length, past the model's own end; or not (default: for random weights alone)"
    run.add_argument("--fixed", action=argparse.BooleanOptionalAction, help=ends)
    add_option(run, "--seed", type=parse_seed, default=0, metavar="N", help="shuffles the order of the prompts")
    heat = "sampling temperature (default: 0); above 0 the methods of sampling are tried, too"
    add_option(run, "--temperature", type=parse_temperature, default=0.0, metavar="T", help=heat)
    levels = "requests at a time, one level after the other in the same start (default: 1)"
    add_option(run, "--concurrency", type=parse_streams, default=(1,), metavar="N,N", help=levels)
    add_begin_options(run)
