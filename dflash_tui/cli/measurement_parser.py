"""The grammar of what measures: `bench`, `ab`, `verify-output` and `report`."""

from __future__ import annotations

import argparse
from typing import Any

from dflash_tui.cli.options import (
    add_begin_options,
    add_detach_option,
    add_experiment_argument,
    add_json_option,
    add_option,
    add_plan_options,
    add_recipe_argument,
    add_run_argument,
    add_suite_option,
    add_trust_option,
    parse_boots,
    parse_positive,
    parse_ramp,
    parse_rate,
    parse_scale,
    parse_seed,
    parse_streams,
    parse_temperature,
    parse_top_p,
)

_DETAILS = "print the statistics, boots and latencies behind the verdict, too"
_NUCLEUS = "draw from the likeliest tokens that have this share of the probability (default: the model's)"


def add_report(command: argparse.ArgumentParser) -> None:
    """Add the options of `report`."""
    what = "an A/B, a run, or a report's JSON file (default: the newest A/B); or: compare ONE OTHER"
    command.add_argument("names", metavar="RUN|AB", nargs="*", help=what)
    formats = ("md", "json", "svg", "vllm-bench")
    form = "md (default), json, svg; or vllm-bench: the JSON of `vllm bench serve`"
    add_option(command, "--format", choices=formats, default="md", metavar="FORMAT", help=form)
    add_option(command, "-o", "--output", metavar="FILE", help="the file to write instead of stdout")
    add_json_option(command)


def add_ab(parser: Any) -> None:
    """Add the actions of `ab`, of which the recipe alone stands for `run`."""
    parser.unnamed, parser.actions = "run", ("run", "list", "attach", "play", "stop", "resume", "extend", "remove")
    parser.usage = (
        "dflash-tui ab RECIPE [--vary KEY=VALUE,VALUE] [--honest] [options of `ab run`]\n       dflash-tui ab ACTION"
    )
    about = "actions (`ab RECIPE` is short for `ab run RECIPE`)"
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title=about, required=True, prog="dflash-tui ab")
    _add_ab_run(actions.add_parser("run", help="launch each arm in turn, measure, and say which is faster"))
    for name, help_ in (
        ("list", "the experiments of this machine"),
        ("attach", "follow an experiment, or show its report"),
        ("play", "show two arms that write the same answer as fast as they did, in the panel or as a file"),
        ("stop", "end an experiment and its server; it can be resumed"),
        ("resume", "go on where an experiment ended early"),
        ("extend", "add boots to an experiment that is over, and judge it anew"),
        ("remove", "delete an experiment; its runs stay"),
    ):
        action = actions.add_parser(name, help=help_)
        if name != "list":
            add_experiment_argument(action, optional=name != "remove")
        if name in {"attach", "resume", "extend"}:
            add_option(action, "--details", action="store_true", help=_DETAILS)
        if name == "extend":
            more = "boots that are added to each arm (default: 2)"
            add_option(action, "--boots", type=parse_boots, default=2, metavar="N", help=more)
        if name == "play":
            _add_play_options(action)
        if name in {"resume", "extend"}:
            add_detach_option(action)
            add_trust_option(action)
        add_json_option(action)


def _add_play_options(play: argparse.ArgumentParser) -> None:
    arm = "the arm that is played beside the first one, by its value (default: the second)"
    add_option(play, "--arm", metavar="VALUE", help=arm)
    kind = "the prompt that is answered (default: the one whose ratio is the median)"
    add_option(play, "--prompt", metavar="KIND", help=kind)
    add_option(play, "--svg", metavar="FILE", help="write a picture of the moment at which the faster arm is done")


def _add_ab_run(run: argparse.ArgumentParser) -> None:
    add_recipe_argument(run, optional=True)
    vary = (
        "what is varied: stock,ours (the published command alone against this launch, or what its plan offers), "
        "mode, spec=on,off, n, profile, variant, vllm, engine, patch.NAME=on,off, start.NAME=on,off, env.NAME, "
        "speculation.KEY or a flag of vllm serve; those of the prefix cache with --dataset repeat alone, since other "
        "prompts are made unique so that no cache answers (default: mode=eager,compile)"
    )
    add_option(run, "--vary", default="mode=eager,compile", metavar="KEY=V,V", help=vary)
    honest = "at least two boots per arm, in mirrored order: without it a verdict is only suggestive"
    add_option(run, "--honest", action="store_true", help=honest)
    add_option(run, "--boots", type=parse_boots, metavar="N", help="boots per arm (default: 2 with --honest, else 1)")
    add_option(run, "--rounds", type=parse_positive, default=1, metavar="N", help="how often a boot sends each prompt")
    add_suite_option(run, None, words="field, or quick where the server takes no long context")
    add_option(
        run, "--scale", type=parse_scale, metavar="X", help="lengthen or shorten the answers (default: the recipe's)"
    )
    ends = "answers of full length, past the model's own end; or not (default: for random weights alone)"
    run.add_argument("--fixed", action=argparse.BooleanOptionalAction, help=ends)
    add_option(run, "--seed", type=parse_seed, default=0, metavar="N", help="shuffles the order of the prompts")
    heat = "sampling temperature (default: 0, or the model's own where what is drafted or accepted is varied)"
    add_option(run, "--temperature", type=parse_temperature, metavar="T", help=heat)
    add_option(run, "--top-p", type=parse_top_p, metavar="P", help=_NUCLEUS)
    levels = "requests at a time, one level after the other; each sends enough for that (default: 1)"
    add_option(run, "--concurrency", type=parse_streams, default=(1,), metavar="N,N", help=levels)
    cache = "use your own compile cache; without it each arm begins with an empty one of its own"
    add_option(run, "--keep-cache", action="store_true", help=cache)
    what = "what is judged: speed, or start, the seconds until a server is ready; then nothing else is sent"
    add_option(run, "--measure", choices=("speed", "start"), default="speed", help=what)
    cold = "with --measure start: empty the caches of an arm before each boot (default: its first boot fills them)"
    add_option(run, "--cold", action="store_true", help=cold)
    answers = "keep no text of the answers (default: kept in the experiment's folder, without secrets)"
    add_option(run, "--no-answers", action="store_true", help=answers)
    add_option(run, "--details", action="store_true", help=_DETAILS)
    add_begin_options(run)


def add_verify_output(command: argparse.ArgumentParser) -> None:
    """Add the options of `verify-output`."""
    add_recipe_argument(command)
    count = "how many prompts each boot answers, at temperature 0 (default: 20)"
    add_option(command, "--prompts", type=parse_positive, default=20, metavar="N", help=count)
    add_suite_option(command, "quick")
    length = "lengthen or shorten the answers (default: 0.25, which is 16 to 512 tokens in quick)"
    add_option(command, "--scale", type=parse_scale, default=0.25, metavar="X", help=length)
    add_option(command, "--seed", type=parse_seed, default=0, metavar="N", help="shuffles the order of the prompts")
    exact = "on the CPU: run both servers in float32, whose rounding is too small to change an answer"
    add_option(command, "--exact", action="store_true", help=exact)
    add_begin_options(command)


def add_verify(command: argparse.ArgumentParser) -> None:
    """Add the options of `verify`."""
    which = "a recipe, which is launched and stopped again unless a server of it runs; or a run"
    command.add_argument("recipe", metavar="RECIPE|RUN", help=which)
    less = "leave out whether speculation changes the answers, which takes two boots more"
    add_option(command, "--without-output", action="store_true", help=less)
    add_plan_options(command)
    add_trust_option(command)
    add_json_option(command)
    # What a launch and `verify-output` ask for beside that.
    command.set_defaults(detach=False, wait=True, foreground=False, bench=False, force="", every=100_000)
    command.set_defaults(stop_running=False, yes=True, prompts=20, suite="quick", scale=0.25, seed=0, exact=False)


def add_bench(command: argparse.ArgumentParser) -> None:
    """Add the options of `bench`."""
    add_run_argument(command)
    add_suite_option(command, "quick")
    add_option(command, "--rounds", type=parse_positive, default=1, metavar="N", help="how often to send them")
    warm = "how often to send them before that, one at a time, which does not count (default: 0)"
    add_option(command, "--warm-up", type=parse_positive, default=0, metavar="N", help=warm)
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
        help="sampling temperature (default: that of the requests published for this launch, else the model's)",
    )
    add_option(command, "--top-p", type=parse_top_p, metavar="P", help=_NUCLEUS)
    likeliest = "draw from so many tokens, the likeliest (default: as the temperature)"
    add_option(command, "--top-k", type=parse_positive, metavar="K", help=likeliest)
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
    rate = "send so many requests per second at random times (Poisson) instead of so many at a time"
    add_option(command, "--rate", type=parse_rate, default=0.0, metavar="N", help=rate)
    ramp = "seconds over which the load rises; requests that begin meanwhile do not count (default: 0)"
    add_option(command, "--ramp", type=parse_ramp, default=0.0, metavar="S", help=ramp)
    slo = "say how many requests are within these seconds (goodput): ttft=S,tpot=S,e2e=S, or some of them"
    add_option(command, "--slo", default="", metavar="KEY=S,...", help=slo)
    add_json_option(command)
