"""The grammar of what measures: `ab`, `bench` and `report`."""

from __future__ import annotations

import argparse
from typing import Any

from dflash_tui.cli.options import (
    add_json_option,
    add_option,
    add_plan_options,
    add_recipe_argument,
    add_run_argument,
    parse_boots,
    parse_positive,
    parse_scale,
    parse_seed,
    parse_streams,
    parse_temperature,
)


def add_report(commands: Any) -> None:
    """Add `report`."""
    command = commands.add_parser("report", help="a run or an A/B as Markdown, JSON or a picture; two side by side")
    what = "an A/B, a run, or a report's JSON file (default: the newest A/B); or: compare ONE OTHER"
    command.add_argument("names", metavar="RUN|AB", nargs="*", help=what)
    add_option(command, "--format", choices=("md", "json", "svg"), default="md", help="md (default), json or svg")
    add_option(command, "-o", "--output", metavar="FILE", help="the file to write instead of stdout")
    add_json_option(command, inherit=True)


def add_ab(parser: Any) -> None:
    """Add the actions of `ab`, of which the recipe alone stands for `run`."""
    parser.unnamed, parser.actions = "run", ("run", "list", "attach", "stop", "resume", "remove")
    parser.usage = (
        "dflash-tui ab RECIPE [--vary KEY=VALUE,VALUE] [--honest] [options of `ab run`]\n       dflash-tui ab ACTION"
    )
    add_json_option(parser, inherit=True)
    about = "actions (`ab RECIPE` is short for `ab run RECIPE`)"
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title=about, required=True, prog="dflash-tui ab")
    _ab_run(actions.add_parser("run", help="launch each arm in turn, measure, and say which is faster"))
    for name, help_ in (
        ("list", "the experiments of this machine"),
        ("attach", "follow an experiment, or show its report"),
        ("stop", "end an experiment and its server; it can be resumed"),
        ("resume", "go on where an experiment ended early"),
        ("remove", "delete an experiment; its runs stay"),
    ):
        action = actions.add_parser(name, help=help_)
        if name != "list":
            which = "its id, the start of it, or a recipe (default: the one that runs, or the newest)"
            action.add_argument("experiment", metavar="ID", nargs=None if name == "remove" else "?", help=which)
        if name == "resume":
            add_option(
                action, "--detach", inherit=True, action="store_true", help="return at once; it goes on by itself"
            )
        add_json_option(action, inherit=True)


def _ab_run(run: argparse.ArgumentParser) -> None:
    add_recipe_argument(run)
    vary = (
        "what is varied: mode, spec=on,off, n, profile, variant, vllm, engine, patch.NAME=on,off, env.NAME, "
        "speculation.KEY or a flag of vllm serve, but not of the prefix cache: each prompt is made unique so that no "
        "cache answers (default: mode=eager,compile)"
    )
    add_option(run, "--vary", default="mode=eager,compile", metavar="KEY=V,V", help=vary)
    honest = "at least two boots per arm, in mirrored order: without it a verdict is only suggestive"
    add_option(run, "--honest", action="store_true", help=honest)
    add_option(run, "--boots", type=parse_boots, metavar="N", help="boots per arm (default: 2 with --honest, else 1)")
    add_option(run, "--rounds", type=parse_positive, default=1, metavar="N", help="how often a boot sends each prompt")
    suite = "the prompts: a suite's name or file (default: field, or quick where the server takes no long context)"
    add_option(run, "--suite", metavar="SUITE", help=suite)
    add_option(
        run, "--scale", type=parse_scale, metavar="X", help="lengthen or shorten the answers (default: the recipe's)"
    )
    add_option(run, "--seed", type=parse_seed, default=0, metavar="N", help="shuffles the order of the prompts")
    heat = "sampling temperature (default: 0, or the model's own where what is drafted or accepted is varied)"
    add_option(run, "--temperature", type=parse_temperature, metavar="T", help=heat)
    levels = "requests at a time, one level after the other; each sends enough for that (default: 1)"
    add_option(run, "--concurrency", type=parse_streams, default=(1,), metavar="N,N", help=levels)
    cache = "use your own compile cache; without it each arm begins with an empty one of its own"
    add_option(run, "--keep-cache", action="store_true", help=cache)
    add_option(run, "--stop-running", action="store_true", help="stop servers of yours that would be in the way")
    add_option(run, "--yes", action="store_true", help="begin without asking")
    add_option(run, "--detach", inherit=True, action="store_true", help="return at once; it goes on by itself")
    add_plan_options(run, inherit=True)
    add_json_option(run, inherit=True)


def add_bench(commands: Any) -> None:
    """Add `bench`."""
    command = commands.add_parser("bench", help="send a suite of prompts to a server and measure each request")
    add_run_argument(command)
    suite = "the prompts: quick (default), field, seed-q1q2, space-invaders, mt-bench, one of your own, or a file"
    add_option(command, "--suite", default="quick", metavar="NAME|FILE", help=suite)
    add_option(command, "--rounds", type=parse_positive, default=1, metavar="N", help="how often to send them")
    add_option(
        command,
        "--scale",
        type=parse_scale,
        metavar="X",
        help="lengthen or shorten the answers (default: the recipe's)",
    )
    add_option(
        command,
        "--temperature",
        type=parse_temperature,
        metavar="T",
        help="sampling temperature (default: the model's)",
    )
    add_option(
        command,
        "--seed",
        type=parse_seed,
        default=0,
        metavar="N",
        help="of the order, the texts' tags and the sampling",
    )
    add_option(command, "--fixed", action="store_true", help="answers of full length, past the model's own end")
    levels = "requests under way at a time, one level after the other, such as 1,2,4,8; each sends enough for that"
    add_option(command, "--concurrency", type=parse_streams, default=(1,), metavar="N,...", help=levels)
    theirs = "take turns with the engine's own `vllm bench serve`, a round each, and compare (implies --fixed)"
    add_option(command, "--with-vllm", action="store_true", help=theirs)
    add_json_option(command, inherit=True)
