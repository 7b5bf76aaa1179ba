"""The command line's grammar: every command and option."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection
from typing import Any

from dflash_tui import __version__
from dflash_tui.cli.options import (
    add_json_option,
    add_option,
    add_plan_options,
    add_recipe_argument,
    add_run_argument,
    add_trust_option,
    add_watch_options,
    parse_boots,
    parse_positive,
    parse_reason,
    parse_scale,
    parse_seconds,
    parse_seed,
    parse_speed,
    parse_streams,
    parse_temperature,
    read_switch,
)
from dflash_tui.common.errors import EXIT_CODES

_DESCRIPTION = """\
Launch, watch and measure DFlash speculative decoding on vLLM.

Without a command: the panel, on a terminal. With --recipe NAME: the same engine without a screen (as `up NAME`).
Narration goes to stderr, data to stdout. A server outlives the program that launched it."""


class _Program(argparse.ArgumentParser):
    """The program: options before a command belong to that, and `--recipe NAME` is another way to write `up NAME`."""

    commands: Collection[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as the base does, with the command first; options without one are an error."""
        words = _put_command_first(sys.argv[1:] if args is None else [*args], self.commands)
        parsed, unknown = super().parse_known_args(words, namespace)
        if parsed.command is None and unknown:
            self.error(f"{' '.join(unknown)}: options need --recipe NAME or a command")
        return parsed, unknown


def _put_command_first(words: list[str], commands: Collection[str]) -> list[str]:
    """Return `--json ps` as `ps --json`, and `--json --recipe NAME` as `up NAME --json`."""
    if words and not words[0].startswith("-"):
        return words
    for place, word in enumerate(words):
        option, equals, recipe = word.partition("=")
        if option == "--recipe" and (equals or words[place + 1 :]):
            before, after = words[:place], words[place + 1 :]
            return ["up", recipe, *before, *after] if equals else ["up", after[0], *before, *after[1:]]
        if word in commands:
            return [*words[place:], *words[:place]]
    recipe = os.environ.get("DFLASH_TUI_RECIPE", "")
    return ["up", recipe, *words] if recipe and not {"-h", "--help", "--version"} & {*words} else words


class _Command(argparse.ArgumentParser):
    """A command whose action `unnamed` is meant when the first word after it names none."""

    unnamed = ""
    actions: tuple[str, ...] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as the base does."""
        if self.unnamed and args and args[0] not in {*self.actions, "-h", "--help"}:
            args = [self.unnamed, *args]
        return super().parse_known_args(args, namespace)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line; each option's default comes from its variable, if set."""
    parser = _Program(
        prog="dflash-tui",
        description=_DESCRIPTION,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"dflash-tui {__version__}")
    add_option(parser, "--recipe", metavar="NAME", help="launch this recipe without a screen")
    parser.set_defaults(json=read_switch("DFLASH_TUI_JSON"))  # for the errors of commands that print no JSON
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=_Command)
    parser.commands = commands.choices

    up = commands.add_parser("up", help="launch a recipe and watch it")
    add_recipe_argument(up)
    _add_launch_options(up)

    attach = commands.add_parser("attach", help="watch a server that runs, in the panel or as lines")
    foreign = "; or http(s)://HOST:PORT of one that is not ours (metrics only; a key comes from DFLASH_TUI_API_KEY)"
    add_run_argument(attach, foreign)
    add_option(attach, "--plain", action="store_true", help="lines instead of the panel")
    add_watch_options(attach)
    attach.set_defaults(foreground=False, detach=False)

    _add_bench(commands)

    _add_ab(commands.add_parser("ab", help="compare a recipe with one thing varied: eager or compile, and so on"))

    _replay_commands(commands)

    _run_commands(commands)

    _service(commands.add_parser("service", help="a unit of systemd --user that runs a recipe"))

    plan = commands.add_parser("plan", help="show what launching a recipe would do")
    add_recipe_argument(plan)
    add_plan_options(plan)
    add_json_option(plan)

    doctor = commands.add_parser("doctor", help="check the machine, and a recipe's launch on it")
    doctor.add_argument("recipe", metavar="RECIPE", nargs="?", help="a recipe's name, or the path of a recipe file")
    release = "give the page cache of the models' files back to the system"
    add_option(doctor, "--release-page-cache", action="store_true", help=release)
    add_plan_options(doctor)
    add_json_option(doctor)

    gpus = commands.add_parser("gpus", help="show the GPUs")
    add_json_option(gpus)

    _recipe_commands(commands.add_parser("recipes", help="list, check, show or begin recipes"))
    _patch_commands(
        commands.add_parser("patch", help="the changes of vLLM's files: status, diff, apply, revert, verify")
    )
    _engine_commands(commands.add_parser("engine", help="list, install, inspect, adopt or remove vLLM environments"))
    return parser


def _run_commands(commands: Any) -> None:
    ps = commands.add_parser("ps", help="list the servers")
    add_option(ps, "--all", action="store_true", help="the ended ones, too")
    add_json_option(ps)

    logs = commands.add_parser("logs", help="print a server's log")
    add_run_argument(logs)
    add_option(logs, "-f", "--follow", action="store_true", help="go on until the server ends")

    why = commands.add_parser("why", help="say why a server failed, and what may help")
    failed = "a run, the start of its name, or a recipe (default: the newest that failed)"
    why.add_argument("run", metavar="RUN", nargs="?", help=failed)
    add_option(why, "--report", action="store_true", help="a text for vLLM's issue tracker instead, without secrets")
    add_json_option(why)

    stop = commands.add_parser("stop", help="end a server and all its processes")
    add_run_argument(stop)

    orphans = commands.add_parser("orphans", help="engine processes that outlived their server; end one of them")
    orphans.add_argument("pid", metavar="PID", nargs="?", type=int, help="end this one, after asking")
    orphans.add_argument("--yes", action="store_true", help="end it without asking")
    add_json_option(orphans)

    past = commands.add_parser("history", help="how long starts took here: eager and compile, cold and cached")
    past.add_argument("recipe", metavar="RECIPE", nargs="?", help="only this recipe's starts")
    add_json_option(past)

    _add_report(commands)


def _service(service: argparse.ArgumentParser) -> None:
    add_recipe_argument(service)
    add_option(service, "--write", action="store_true", help="put it where systemd looks, instead of on stdout")
    add_option(service, "--replace", action="store_true", help="put it there also when another one is")
    every = "seconds between two lines in the journal (default 60)"
    add_option(service, "--every", type=parse_positive, default=60, metavar="SECONDS", help=every)
    force = "let it launch although a check fails, and record why"
    add_option(service, "--force", type=parse_reason, metavar="REASON", help=force)
    add_plan_options(service)
    add_trust_option(service)


def _replay_commands(commands: Any) -> None:
    replay = commands.add_parser("replay", help="play a recorded run again, with its own clock")
    what = "`sample` (shipped, from a real H200), a file of `export`, or a run as in `ps --all`"
    replay.add_argument("recording", metavar="RUN|FILE", help=what)
    pace = "times as fast (default: 4 in the panel, at once as lines)"
    add_option(replay, "--speed", type=parse_speed, metavar="N", help=pace)
    add_option(
        replay, "--at", type=parse_seconds, default=0.0, metavar="SECONDS", help="begin so long after the launch"
    )
    add_option(replay, "--plain", action="store_true", help="lines instead of the panel, as `attach --plain` gives")
    add_watch_options(replay)
    export = commands.add_parser("export", help="write a run into one file that `replay` reads")
    add_run_argument(export)
    add_option(export, "-o", "--output", metavar="FILE", help="the file to write (default: RUN.zip here)")
    prompts = "keep the prompts and answers that the log may quote; access tokens are always left out"
    add_option(export, "--with-prompts", action="store_true", help=prompts)


def _recipe_commands(recipes: argparse.ArgumentParser) -> None:
    add_json_option(recipes)
    actions = recipes.add_subparsers(dest="action", metavar="ACTION", title="actions (default: list)")
    check = actions.add_parser("check", help="read recipe files and say what is wrong with them")
    check.add_argument("files", metavar="FILE", nargs="*", help="names or files (default: all recipes)")
    add_json_option(check, default=argparse.SUPPRESS)  # it may stand before the action, too
    show = actions.add_parser("show", help="print a recipe's file and where it is")
    add_recipe_argument(show)
    new = actions.add_parser("new", help="begin a recipe of your own")
    new.add_argument("name", metavar="NAME", help="its name: lower case, digits, . _ -")
    add_option(new, "--like", metavar="RECIPE", help="copy this recipe instead of the template")
    actions.add_parser("schema", help="print the JSON Schema of recipe files, for editors")


def _engine_commands(engine: argparse.ArgumentParser) -> None:
    actions = engine.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    add_json_option(actions.add_parser("list", help="the engines of this machine"))
    install = actions.add_parser("install", help="build the engine that a recipe needs, without launching")
    add_recipe_argument(install)
    add_plan_options(install)
    add_trust_option(install)
    add_json_option(install)
    for name, text in (("inspect", "what is in it, and how its patches stand"), ("remove", "delete it")):
        action = actions.add_parser(name, help=text)
        action.add_argument("engine", metavar="ENGINE", help="its folder, the folder's name, or the start of that")
        add_json_option(action)
    adopt = actions.add_parser("adopt", help="use an environment that you made yourself")
    adopt.add_argument("folder", metavar="FOLDER", help="the environment's folder, with bin/vllm in it")
    add_option(adopt, "--patch", action="store_true", help="recipes may patch its vLLM")
    add_json_option(adopt)


def _patch_commands(patch: argparse.ArgumentParser) -> None:
    actions = patch.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    about = {
        "status": "how each patch stands",
        "diff": "what they change, as a unified diff",
        "apply": "apply what the engine needs",
        "revert": "revert what dflash-tui applied, byte for byte",
        "verify": "compare the files with our record and the wheel's; exit code 5 when one differs",
    }
    for name, text in about.items():
        action = actions.add_parser(name, help=text)
        which = "its patches and its engine (default: all patches, in --engine)"
        action.add_argument("recipe", metavar="RECIPE", nargs="?", help=which)
        only = "this patch only; may be repeated"
        action.add_argument("--only", metavar="PATCH", action="append", default=[], help=only)
        if name in {"apply", "revert"}:
            add_option(action, "--dry-run", action="store_true", help="say what it would do, and change nothing")
        add_plan_options(action)
        add_json_option(action)


def _add_launch_options(parser: argparse.ArgumentParser) -> None:
    add_plan_options(parser)
    add_trust_option(parser)
    detach = "return as soon as the server is launched (with --bench: measured)"
    add_option(parser, "--detach", action="store_true", help=detach)
    wait = "return when the server is ready; exit code 6 when it fails before"
    add_option(parser, "--wait", action="store_true", help=wait)
    foreground = "end the server with this command, as a service does (default: it goes on)"
    add_option(parser, "--foreground", action="store_true", help=foreground)
    bench = "send the five prompt kinds once the server answers"
    add_option(parser, "--bench", action="store_true", help=bench)
    force = "launch although a check fails, and record why"
    add_option(parser, "--force", type=parse_reason, metavar="REASON", help=force)
    add_watch_options(parser)


def _add_report(commands: Any) -> None:
    """Add `report`."""
    command = commands.add_parser("report", help="a run or an A/B as Markdown, JSON or a picture; two side by side")
    what = "an A/B, a run, or a report's JSON file (default: the newest A/B); or: compare ONE OTHER"
    command.add_argument("names", metavar="RUN|AB", nargs="*", help=what)
    add_option(command, "--format", choices=("md", "json", "svg"), default="md", help="md (default), json or svg")
    add_option(command, "-o", "--output", metavar="FILE", help="the file to write instead of stdout")
    add_json_option(command)


def _add_ab(parser: Any) -> None:
    """Add the actions of `ab`, of which the recipe alone stands for `run`."""
    parser.unnamed, parser.actions = "run", ("run", "list", "attach", "stop", "resume", "remove")
    parser.usage = (
        "dflash-tui ab RECIPE [--vary KEY=VALUE,VALUE] [--honest] [options of `ab run`]\n       dflash-tui ab ACTION"
    )
    about = "actions (`ab RECIPE` is short for `ab run RECIPE`)"
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title=about, required=True, prog="dflash-tui ab")
    _add_ab_run(actions.add_parser("run", help="launch each arm in turn, measure, and say which is faster"))
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
            add_option(action, "--detach", action="store_true", help="return at once; it continues in the background")
            add_trust_option(action)
        add_json_option(action)


def _add_ab_run(run: argparse.ArgumentParser) -> None:
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
    add_option(run, "--detach", action="store_true", help="return at once; it continues in the background")
    add_plan_options(run)
    add_trust_option(run)
    add_json_option(run)


def _add_bench(commands: Any) -> None:
    """Add `bench`."""
    command = commands.add_parser("bench", help="send a suite of prompts to a server and measure each request")
    add_run_argument(command)
    suite = (
        "the prompts: quick (default), field, contexts, seed-q1q2, space-invaders, mt-bench, one of your own, or a file"
    )
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
    add_json_option(command)
