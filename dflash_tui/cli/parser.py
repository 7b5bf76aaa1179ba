"""The command line's grammar: every command and option."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from dflash_tui import __version__
from dflash_tui.cli.command_parser import HOST_OPTION, CommandParser, ProgramParser
from dflash_tui.cli.measurement_parser import add_ab, add_bench, add_report, add_verify, add_verify_output
from dflash_tui.cli.options import (
    add_install_peers_option,
    add_json_option,
    add_method_option,
    add_option,
    add_pair_options,
    add_plan_options,
    add_recipe_argument,
    add_run_argument,
    add_trust_option,
    add_watch_options,
    parse_positive,
    parse_recorded_text,
    parse_seconds,
    parse_speed,
    parse_temperature,
    parse_time,
    read_switch,
)
from dflash_tui.cli.tune_options import add_tune
from dflash_tui.common.errors import EXIT_CODES

_DESCRIPTION = """\
Launch, watch and measure DFlash speculative decoding on vLLM.

Without a command: the panel, on a terminal. With --recipe NAME: the same engine without a screen (as `up NAME`).
With --host HOST before it: the same on another machine, over ssh.
Narration goes to stderr, data to stdout. A server outlives the program that launched it."""


def build_parser(command: str | None = None) -> ProgramParser:
    """Return the parser of one command, of none where its name is empty, or of the whole command line.

    Each option's default comes from its variable, if set.
    """
    parser = ProgramParser(
        prog="dflash-tui",
        description=_DESCRIPTION,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "-v", "--version", action="version", version=f"dflash-tui {__version__}")
    add_option(parser, "--recipe", metavar="NAME", help="launch this recipe without a screen")
    host = "run the panel, or the command that follows, on this host as ssh calls it; what is typed after it goes there"
    parser.add_argument(HOST_OPTION, metavar="HOST", help=host)
    add_install_peers_option(parser, "a --host")
    parser.set_defaults(json=read_switch("DFLASH_TUI_JSON"))  # for the errors of commands that print no JSON
    parser.commands = COMMANDS
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=CommandParser)
    names = [command] if command in COMMANDS else COMMANDS
    for name in names if command != "" else ():
        about, add_options = COMMANDS[name]
        add_options(commands.add_parser(name, help=about))
    return parser


def _add_up(up: argparse.ArgumentParser) -> None:
    add_recipe_argument(up, optional=True)
    add_plan_options(up)
    add_install_peers_option(up)
    add_trust_option(up)
    detach = "return as soon as the server is launched (with --bench: measured)"
    add_option(up, "--detach", action="store_true", help=detach)
    wait = "return when the server is ready (with --bench: measured); exit code 6 when it fails before"
    add_option(up, "--wait", action="store_true", help=wait)
    foreground = "stop the server when this command ends, as a service does (default: it keeps running)"
    add_option(up, "--foreground", action="store_true", help=foreground)
    bench = "send the five prompt kinds once the server answers"
    add_option(up, "--bench", action="store_true", help=bench)
    force = "launch although a check fails, and record why"
    add_option(up, "--force", type=parse_recorded_text, metavar="REASON", help=force)
    add_watch_options(up)


def _add_attach(attach: argparse.ArgumentParser) -> None:
    foreign = "; or http(s)://HOST:PORT of a foreign vLLM (metrics only; a key comes from DFLASH_TUI_API_KEY)"
    add_run_argument(attach, foreign)
    add_option(attach, "--plain", action="store_true", help="lines instead of the panel")
    add_watch_options(attach)
    attach.set_defaults(foreground=False, detach=False)


def _add_plan(plan: argparse.ArgumentParser) -> None:
    add_recipe_argument(plan, optional=True)
    add_plan_options(plan)
    add_install_peers_option(plan)
    add_option(plan, "-v", "--verbose", action="store_true", help="all that is known of it, not only what decides")
    add_json_option(plan)


def _add_doctor(doctor: argparse.ArgumentParser) -> None:
    doctor.add_argument("recipe", metavar="RECIPE", nargs="?", help="a recipe's name, or the path of a recipe file")
    release = "give the page cache of the models' files back to the system"
    add_option(doctor, "--release-page-cache", action="store_true", help=release)
    add_plan_options(doctor)
    add_install_peers_option(doctor)
    add_json_option(doctor)


def _add_completion(shells: argparse.ArgumentParser) -> None:
    shells.add_argument("shell", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")


def _add_ps(ps: argparse.ArgumentParser) -> None:
    add_option(ps, "-a", "--all", action="store_true", help="also those that have ended")
    add_option(ps, "-v", "--verbose", action="store_true", help="URL, model and the key's variable, too")
    add_json_option(ps)


def _add_logs(logs: argparse.ArgumentParser) -> None:
    add_run_argument(logs)
    add_option(logs, "-f", "--follow", action="store_true", help="go on until the server ends")
    rank = "the log of this rank of a server over several hosts, as far as it was copied here"
    add_option(logs, "--rank", type=parse_positive, metavar="N", help=rank)
    lines = "only the last N lines"
    add_option(logs, "-n", "--tail", type=parse_positive, metavar="N", help=lines)
    add_json_option(logs)


def _add_why(why: argparse.ArgumentParser) -> None:
    failed = (
        "a run, the start of its name, or a recipe (default: the newest that failed); or any vLLM's log: a file, or -"
    )
    why.add_argument("run", metavar="RUN|FILE|-", nargs="?", help=failed)
    add_option(why, "--report", action="store_true", help="a text for vLLM's issue tracker instead, without secrets")
    add_json_option(why)


def _add_client(client: argparse.ArgumentParser) -> None:
    add_run_argument(client)
    programs = ("opencode", "continue", "open-webui", "curl", "python")
    form = "the configuration or command of this program (default: URL, model and the key's variable)"
    add_option(
        client, "--for", dest="program", choices=programs, metavar="PROGRAM", help=f"{form}: {', '.join(programs)}"
    )
    add_json_option(client)


def _add_chat(chat: argparse.ArgumentParser) -> None:
    add_run_argument(chat)
    add_option(chat, "--system", metavar="TEXT", help="the system prompt")
    heat = "sampling temperature (default: the model's)"
    add_option(chat, "--temperature", type=parse_temperature, metavar="T", help=heat)
    add_json_option(chat)


def _add_stop(stop: argparse.ArgumentParser) -> None:
    add_run_argument(stop)
    stop.add_argument("-a", "--all", action="store_true", help="end every server of this user")
    add_json_option(stop)


def _add_orphans(orphans: argparse.ArgumentParser) -> None:
    orphans.add_argument("pid", metavar="PID", nargs="?", type=int, help="end this one, after asking")
    orphans.add_argument("--yes", action="store_true", help="end it without asking")
    orphans.add_argument("--peer", metavar="HOST", help="list those of another host, as ssh calls it")
    add_json_option(orphans)


def _add_history(past: argparse.ArgumentParser) -> None:
    past.add_argument("recipe", metavar="RECIPE", nargs="?", help="only this recipe's starts")
    add_json_option(past)


def _add_runs(runs: argparse.ArgumentParser) -> None:
    add_json_option(runs)
    actions = runs.add_subparsers(dest="action", metavar="ACTION", title="actions (default: list)")
    add_json_option(actions.add_parser("list", help="as `ps --all`"), default=argparse.SUPPRESS)
    prune = actions.add_parser("prune", help="list the runs that ended long ago, with --yes remove them")
    age = "only those that were written to no later than that long ago, such as 12h (default: 30d)"
    add_option(prune, "--older-than", type=parse_time, default=30 * 86_400.0, metavar="TIME", help=age)
    sure = prune.add_mutually_exclusive_group()
    sure.add_argument("--yes", action="store_true", help="remove them")
    sure.add_argument("--dry-run", action="store_true", help="only list them (as without --yes)")
    add_json_option(prune, default=argparse.SUPPRESS)


def _add_service(service: argparse.ArgumentParser) -> None:
    add_recipe_argument(service)
    every = "seconds between two lines in the journal (default 60)"
    add_option(service, "--every", type=parse_positive, default=60, metavar="SECONDS", help=every)
    force = "let it launch although a check fails, and record why"
    add_option(service, "--force", type=parse_recorded_text, metavar="REASON", help=force)
    add_plan_options(service)
    add_trust_option(service)
    add_json_option(service)


def _add_replay(replay: argparse.ArgumentParser) -> None:
    what = "`sample` (shipped, from a real H200), a file of `export`, or a run as in `ps --all`"
    replay.add_argument("recording", metavar="RUN|FILE", help=what)
    pace = "times as fast (default: 4 in the panel, at once as lines)"
    add_option(replay, "--speed", type=parse_speed, metavar="N", help=pace)
    at = "begin so long after the launch (default: in the panel shortly before it is up, or ends; as lines 0)"
    add_option(replay, "--at", type=parse_seconds, metavar="SECONDS", help=at)
    add_option(replay, "--plain", action="store_true", help="lines instead of the panel, as `attach --plain` gives")
    add_watch_options(replay)


def _add_export(export: argparse.ArgumentParser) -> None:
    add_run_argument(export)
    add_option(export, "-o", "--output", metavar="FILE", help="the file to write (default: RUN.zip here)")
    prompts = "keep the prompts and answers that the log may quote; access tokens are always left out"
    add_option(export, "--with-prompts", action="store_true", help=prompts)
    add_json_option(export)


def _add_recipes(recipes: argparse.ArgumentParser) -> None:
    add_json_option(recipes)
    actions = recipes.add_subparsers(dest="action", metavar="ACTION", title="actions (default: list)")
    add_json_option(actions.add_parser("list", help="what there is, and for which machines"), default=argparse.SUPPRESS)
    check = actions.add_parser("check", help="read recipe files and say what is wrong with them")
    check.add_argument("files", metavar="FILE", nargs="*", help="names or files (default: all recipes)")
    add_json_option(check, default=argparse.SUPPRESS)  # it may stand before the action, too
    show = actions.add_parser("show", help="print a recipe's file and where it is")
    add_recipe_argument(show)
    add_json_option(show, default=argparse.SUPPRESS)
    new = actions.add_parser("new", help="begin a recipe of your own")
    new.add_argument("name", metavar="NAME", help="its name: lower case, digits, . _ -")
    add_option(new, "--like", metavar="RECIPE", help="copy this recipe instead of the template")
    add_pair_options(new, "derive it from this model's config.json: a hub repository or a folder")
    add_method_option(new)
    add_json_option(new, default=argparse.SUPPRESS)
    actions.add_parser("schema", help="print the JSON Schema of recipe files, for editors")
    _catalogue_command(actions.add_parser("catalogue", help="pairs that others published, also without a recipe"))
    _sharing_commands(actions)


def _sharing_commands(actions: Any) -> None:
    """Add what brings in recipes, commands and catalogues of others."""
    add = actions.add_parser("add", help="check a recipe of others and put it among your own; nothing of it is run")
    add.add_argument("source", metavar="FILE|URL", help="its path, or its https address")
    _add_naming(add)
    take = actions.add_parser("import", help="make a recipe of a command: import -- vllm serve MODEL …")
    take.add_argument(
        "words",
        metavar="WORD",
        nargs="+",
        help="the command behind --, or all of it in quotes",
    )
    _add_naming(take)
    update = actions.add_parser("update", help="put a newer catalogue in place of the one here, after it was checked")
    update.add_argument("source", metavar="FILE|URL", help="its path, or its https address")
    add_json_option(update, default=argparse.SUPPRESS)


def _add_naming(action: argparse.ArgumentParser) -> None:
    action.add_argument("--name", metavar="NAME", help="the recipe's name (default: that of the file or model)")
    action.add_argument("--replace", action="store_true", help="write over a recipe of yours of that name")
    add_json_option(action, default=argparse.SUPPRESS)


def _catalogue_command(catalogue: argparse.ArgumentParser) -> None:
    catalogue.add_argument("pair", metavar="PAIR", nargs="?", help="what is known of this one, with the sources")
    add_option(catalogue, "--fits", action="store_true", help="only those that fit into the memory")
    catalogue.add_argument("--unknown", action="store_true", help="only those that may fit: nobody knows their size")
    add_method_option(catalogue)
    add_option(catalogue, "--gpu", metavar="CLASS", help="the machine, such as gb10 (default: the GPU here)")
    add_json_option(catalogue, default=argparse.SUPPRESS)


def _add_engine(engine: argparse.ArgumentParser) -> None:
    actions = engine.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    add_json_option(actions.add_parser("list", help="the engines of this machine"))
    install = actions.add_parser("install", help="build the engine that a recipe needs, without launching")
    add_recipe_argument(install)
    add_plan_options(install)
    add_trust_option(install)
    add_json_option(install)
    for name, text in (("inspect", "what is in it, and the status of its patches"), ("remove", "delete it")):
        action = actions.add_parser(name, help=text)
        action.add_argument("engine", metavar="ENGINE", help="its folder, the folder's name, or the start of that")
        add_json_option(action)
    adopt = actions.add_parser("adopt", help="use an environment that you made yourself")
    adopt.add_argument("folder", metavar="FOLDER", help="the environment's folder, with bin/vllm in it")
    add_json_option(adopt)


def _add_patch(patch: argparse.ArgumentParser) -> None:
    actions = patch.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    about = {
        "status": "the status of each patch",
        "diff": "what they change, as a unified diff",
        "apply": "make an engine with what it needs",
        "revert": "nothing to undo: name the engine without patches, which is still there",
        "verify": "compare the files with those that were installed; exit code 5 when one differs",
    }
    for name, text in about.items():
        action = actions.add_parser(name, help=text)
        which = "its patches and its engine (default: all patches, in --engine)"
        action.add_argument("recipe", metavar="RECIPE", nargs="?", help=which)
        only = "this patch only; may be repeated"
        action.add_argument("--only", metavar="PATCH", action="append", default=[], help=only)
        if name == "apply":
            add_option(action, "--dry-run", action="store_true", help="say what it would do, and make nothing")
            add_trust_option(action)
        add_plan_options(action)
        add_json_option(action)


COMMANDS: dict[str, tuple[str, Callable[[CommandParser], None]]] = {
    "up": ("launch a recipe and watch it", _add_up),
    "attach": ("watch a server that runs, in the panel or as lines", _add_attach),
    "bench": ("send a suite of prompts to a server and measure each request", add_bench),
    "ab": ("compare a recipe with one thing varied: eager or compile, and so on", add_ab),
    "verify-output": (
        "check that answers are the same with and without speculation; exit code 7 when not",
        add_verify_output,
    ),
    "verify": (
        "check that a pair answers, streams, calls tools, separates thinking, reads long prompts, accepts drafts",
        add_verify,
    ),
    "tune": ("find the fastest setting of a recipe on this machine", add_tune),
    "replay": ("play a recorded run again, with its own clock", _add_replay),
    "export": ("write a run into one file that `replay` reads", _add_export),
    "ps": ("list the servers", _add_ps),
    "logs": ("print a server's log", _add_logs),
    "why": ("say why a server failed, and what may help", _add_why),
    "client": ("print how other programs reach a server; never the key itself", _add_client),
    "chat": ("talk with a server, a line at a time; also in a pipe", _add_chat),
    "stop": ("end a server and all its processes", _add_stop),
    "runs": ("list all runs, or remove old ones", _add_runs),
    "orphans": ("engine processes that outlived their server; end one of them", _add_orphans),
    "agent": ("what another dflash-tui runs here over ssh, for a server over several hosts", lambda _: None),
    "history": ("how long starts took here: eager and compile, cold and cached", _add_history),
    "report": ("a run or an A/B as Markdown, JSON or a picture; two side by side", add_report),
    "service": ("print a unit of systemd --user that runs a recipe", _add_service),
    "plan": ("show what launching a recipe would do", _add_plan),
    "doctor": ("check the machine, and a recipe's launch on it", _add_doctor),
    "disk": ("what engines, models, caches and runs take, and how each is removed", add_json_option),
    "completion": ("print a script by which a shell completes commands", _add_completion),
    "gpus": ("show the GPUs", add_json_option),
    "recipes": ("list, check, show or begin recipes", _add_recipes),
    "patch": ("the changes of vLLM's files: status, diff, apply, revert, verify", _add_patch),
    "engine": ("list, install, inspect, adopt or remove vLLM environments", _add_engine),
}
