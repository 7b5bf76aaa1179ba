"""The command line's grammar: every command and option."""

from __future__ import annotations

import argparse
from typing import Any

from dflash_tui import __version__
from dflash_tui.cli import measuring_parser
from dflash_tui.cli.options import (
    add_json_option,
    add_option,
    add_plan_options,
    add_recipe_argument,
    add_run_argument,
    add_watch_options,
    parse_positive,
    parse_seconds,
    parse_speed,
)
from dflash_tui.common.errors import EXIT_CODES

_DESCRIPTION = """\
Launch, watch and measure DFlash speculative decoding on vLLM.

Without a command: the panel, on a terminal. With --recipe NAME: the same engine without a screen (as `up NAME`).
Narration goes to stderr, data to stdout. A server outlives the program that launched it."""


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
    parser = argparse.ArgumentParser(
        prog="dflash-tui",
        description=_DESCRIPTION,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"dflash-tui {__version__}")
    add_option(parser, "--recipe", metavar="NAME", help="launch this recipe without a screen")
    _launch_options(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=_Command)

    up = commands.add_parser("up", help="launch a recipe and watch it")
    add_recipe_argument(up)
    _launch_options(up, inherit=True)

    attach = commands.add_parser("attach", help="watch a server that runs, in the panel or as lines")
    foreign = "; or http(s)://HOST:PORT of one that is not ours (metrics only; a key comes from DFLASH_TUI_API_KEY)"
    add_run_argument(attach, foreign)
    add_option(attach, "--plain", action="store_true", help="lines instead of the panel")
    add_watch_options(attach, inherit=True)

    measuring_parser.add_bench(commands)

    measuring_parser.add_ab(
        commands.add_parser("ab", help="compare a recipe with one thing varied: eager or compile, and so on")
    )

    _replay_commands(commands)

    _run_commands(commands)

    _service(commands.add_parser("service", help="a unit of systemd --user that runs a recipe"))

    plan = commands.add_parser("plan", help="show what launching a recipe would do")
    add_recipe_argument(plan)
    add_plan_options(plan, inherit=True)
    add_json_option(plan, inherit=True)

    doctor = commands.add_parser("doctor", help="check the machine, and a recipe's launch on it")
    doctor.add_argument("recipe", metavar="RECIPE", nargs="?", help="a recipe's name, or the path of a recipe file")
    release = "give the page cache of the models' files back to the system"
    add_option(doctor, "--release-page-cache", action="store_true", help=release)
    add_plan_options(doctor, inherit=True)
    add_json_option(doctor, inherit=True)

    gpus = commands.add_parser("gpus", help="show the GPUs")
    add_json_option(gpus, inherit=True)

    _recipe_commands(commands.add_parser("recipes", help="list, check, show or begin recipes"))
    _patch_commands(
        commands.add_parser("patch", help="the changes of vLLM's files: status, diff, apply, revert, verify")
    )
    _engine_commands(commands.add_parser("engine", help="list, install, inspect, adopt or remove vLLM environments"))
    return parser


def _run_commands(commands: Any) -> None:
    ps = commands.add_parser("ps", help="list the servers")
    add_option(ps, "--all", action="store_true", help="the ended ones, too")
    add_json_option(ps, inherit=True)

    logs = commands.add_parser("logs", help="print a server's log")
    add_run_argument(logs)
    add_option(logs, "-f", "--follow", action="store_true", help="go on until the server ends")

    why = commands.add_parser("why", help="say why a server failed, and what may help")
    failed = "a run, the start of its name, or a recipe (default: the newest that failed)"
    why.add_argument("run", metavar="RUN", nargs="?", help=failed)
    add_option(why, "--report", action="store_true", help="a text for vLLM's issue tracker instead, without secrets")
    add_json_option(why, inherit=True)

    stop = commands.add_parser("stop", help="end a server and all its processes")
    add_run_argument(stop)

    orphans = commands.add_parser("orphans", help="engine processes that outlived their server; end one of them")
    orphans.add_argument("pid", metavar="PID", nargs="?", type=int, help="end this one, after asking")
    orphans.add_argument("--yes", action="store_true", help="end it without asking")
    add_json_option(orphans, inherit=True)

    past = commands.add_parser("history", help="how long starts took here: eager and compile, cold and cached")
    past.add_argument("recipe", metavar="RECIPE", nargs="?", help="only this recipe's starts")
    add_json_option(past, inherit=True)

    measuring_parser.add_report(commands)


def _service(service: argparse.ArgumentParser) -> None:
    add_recipe_argument(service)
    add_option(service, "--write", action="store_true", help="put it where systemd looks, instead of on stdout")
    add_option(service, "--replace", action="store_true", help="put it there also when another one is")
    every = "seconds between two lines in the journal (default 60)"
    add_option(service, "--every", type=parse_positive, default=60, metavar="SECONDS", help=every)
    force = "let it launch although a check fails, and record why"
    add_option(service, "--force", inherit=True, metavar="REASON", help=force)
    add_plan_options(service, inherit=True)


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
    add_watch_options(replay, inherit=True)
    export = commands.add_parser("export", help="write a run into one file that `replay` reads")
    add_run_argument(export)
    add_option(export, "-o", "--output", metavar="FILE", help="the file to write (default: RUN.zip here)")
    prompts = "keep the prompts and answers that the log may quote; access tokens are always left out"
    add_option(export, "--with-prompts", action="store_true", help=prompts)


def _recipe_commands(recipes: argparse.ArgumentParser) -> None:
    add_json_option(recipes, inherit=True)
    actions = recipes.add_subparsers(dest="action", metavar="ACTION", title="actions (default: list)")
    check = actions.add_parser("check", help="read recipe files and say what is wrong with them")
    check.add_argument("files", metavar="FILE", nargs="*", help="names or files (default: all recipes)")
    add_json_option(check, inherit=True)
    show = actions.add_parser("show", help="print a recipe's file and where it is")
    add_recipe_argument(show)
    new = actions.add_parser("new", help="begin a recipe of your own")
    new.add_argument("name", metavar="NAME", help="its name: lower case, digits, . _ -")
    add_option(new, "--like", metavar="RECIPE", help="copy this recipe instead of the template")
    actions.add_parser("schema", help="print the JSON Schema of recipe files, for editors")


def _engine_commands(engine: argparse.ArgumentParser) -> None:
    actions = engine.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    add_json_option(actions.add_parser("list", help="the engines of this machine"), inherit=True)
    install = actions.add_parser("install", help="build the engine that a recipe needs, without launching")
    add_recipe_argument(install)
    add_plan_options(install, inherit=True)
    add_json_option(install, inherit=True)
    for name, text in (("inspect", "what is in it, and how its patches stand"), ("remove", "delete it")):
        action = actions.add_parser(name, help=text)
        action.add_argument("engine", metavar="ENGINE", help="its folder, the folder's name, or the start of that")
        add_json_option(action, inherit=True)
    adopt = actions.add_parser("adopt", help="use an environment that you made yourself")
    adopt.add_argument("folder", metavar="FOLDER", help="the environment's folder, with bin/vllm in it")
    add_option(adopt, "--patch", action="store_true", help="recipes may patch its vLLM")
    add_json_option(adopt, inherit=True)


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
        add_plan_options(action, inherit=True)
        add_json_option(action, inherit=True)


def _launch_options(parser: argparse.ArgumentParser, *, inherit: bool = False) -> None:
    add_plan_options(parser, inherit=inherit)
    detach = "return as soon as the server is launched (with --bench: measured)"
    add_option(parser, "--detach", inherit=inherit, action="store_true", help=detach)
    foreground = "end the server with this command, as a service does (default: it goes on)"
    add_option(parser, "--foreground", inherit=inherit, action="store_true", help=foreground)
    bench = "send the five prompt kinds once the server answers"
    add_option(parser, "--bench", inherit=inherit, action="store_true", help=bench)
    force = "launch although a check fails, and record why"
    add_option(parser, "--force", inherit=inherit, metavar="REASON", help=force)
    add_watch_options(parser, inherit=inherit)
