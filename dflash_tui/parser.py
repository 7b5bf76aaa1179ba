"""The command line's grammar: every command and option, with defaults from DFLASH_TUI_ variables."""

from __future__ import annotations

import argparse
import math
import os
from typing import Any

from dflash_tui import __version__
from dflash_tui.errors import EXIT_CODES

_DESCRIPTION = """\
Launch, watch and measure DFlash speculative decoding on vLLM.

Without a command: the panel, on a terminal. With --recipe NAME: the same engine without a screen (as `up NAME`).
Narration goes to stderr, data to stdout. A server outlives the program that launched it."""
_ON = {"1", "true", "yes", "on"}


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
    _option(parser, "--recipe", metavar="NAME", help="launch this recipe without a screen")
    _launch_options(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=_Command)

    up = commands.add_parser("up", help="launch a recipe and watch it")
    _recipe_argument(up)
    _launch_options(up, inherit=True)

    attach = commands.add_parser("attach", help="watch a server that runs, in the panel or as lines")
    foreign = "; or http(s)://HOST:PORT of one that is not ours (metrics only; a key comes from DFLASH_TUI_API_KEY)"
    _run_argument(attach, foreign)
    _option(attach, "--plain", action="store_true", help="lines instead of the panel")
    _watch_options(attach, inherit=True)

    _bench_command(commands)

    _ab_commands(commands.add_parser("ab", help="compare a recipe with one thing varied: eager or compile, and so on"))

    _replay_commands(commands)

    _run_commands(commands)

    plan = commands.add_parser("plan", help="show what launching a recipe would do")
    _recipe_argument(plan)
    _plan_options(plan, inherit=True)
    _json(plan, inherit=True)

    doctor = commands.add_parser("doctor", help="check the machine, and a recipe's launch on it")
    doctor.add_argument("recipe", metavar="RECIPE", nargs="?", help="a recipe's name, or the path of a recipe file")
    release = "give the page cache of the models' files back to the system"
    _option(doctor, "--release-page-cache", action="store_true", help=release)
    _plan_options(doctor, inherit=True)
    _json(doctor, inherit=True)

    gpus = commands.add_parser("gpus", help="show the GPUs")
    _json(gpus, inherit=True)

    _recipe_commands(commands.add_parser("recipes", help="list, check, show or begin recipes"))
    _patch_commands(
        commands.add_parser("patch", help="the changes of vLLM's files: status, diff, apply, revert, verify")
    )
    _engine_commands(commands.add_parser("engine", help="list, install, inspect, adopt or remove vLLM environments"))
    return parser


def _run_commands(commands: Any) -> None:
    ps = commands.add_parser("ps", help="list the servers")
    _option(ps, "--all", action="store_true", help="the ended ones, too")
    _json(ps, inherit=True)

    logs = commands.add_parser("logs", help="print a server's log")
    _run_argument(logs)
    _option(logs, "-f", "--follow", action="store_true", help="go on until the server ends")

    why = commands.add_parser("why", help="say why a server failed, and what may help")
    failed = "a run, the start of its name, or a recipe (default: the newest that failed)"
    why.add_argument("run", metavar="RUN", nargs="?", help=failed)
    _option(why, "--report", action="store_true", help="a text for vLLM's issue tracker instead, without secrets")
    _json(why, inherit=True)

    stop = commands.add_parser("stop", help="end a server and all its processes")
    _run_argument(stop)

    orphans = commands.add_parser("orphans", help="engine processes that outlived their server; end one of them")
    orphans.add_argument("pid", metavar="PID", nargs="?", type=int, help="end this one, after asking")
    orphans.add_argument("--yes", action="store_true", help="end it without asking")
    _json(orphans, inherit=True)

    past = commands.add_parser("history", help="how long starts took here: eager and compile, cold and cached")
    past.add_argument("recipe", metavar="RECIPE", nargs="?", help="only this recipe's starts")
    _json(past, inherit=True)

    _report_command(commands)


def _report_command(commands: Any) -> None:
    report = commands.add_parser("report", help="a run or an A/B as Markdown, JSON or a picture; two side by side")
    what = "an A/B, a run, or a report's JSON file (default: the newest A/B); or: compare ONE OTHER"
    report.add_argument("names", metavar="RUN|AB", nargs="*", help=what)
    _option(report, "--format", choices=("md", "json", "svg"), default="md", help="md (default), json or svg")
    _option(report, "-o", "--output", metavar="FILE", help="the file to write instead of stdout")
    _json(report, inherit=True)


def _ab_commands(ab: Any) -> None:
    ab.unnamed, ab.actions = "run", ("run", "list", "attach", "stop", "resume", "remove")
    ab.usage = (
        "dflash-tui ab RECIPE [--vary KEY=VALUE,VALUE] [--honest] [options of `ab run`]\n       dflash-tui ab ACTION"
    )
    _json(ab, inherit=True)
    about = "actions (`ab RECIPE` is short for `ab run RECIPE`)"
    actions = ab.add_subparsers(dest="action", metavar="ACTION", title=about, required=True, prog="dflash-tui ab")
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
            _option(action, "--detach", inherit=True, action="store_true", help="return at once; it goes on by itself")
        _json(action, inherit=True)


def _ab_run(run: argparse.ArgumentParser) -> None:
    _recipe_argument(run)
    vary = (
        "what is varied: mode, spec=on,off, n, profile, variant, vllm, engine, patch.NAME=on,off, env.NAME, "
        "speculation.KEY or a flag of vllm serve (default: mode=eager,compile)"
    )
    _option(run, "--vary", default="mode=eager,compile", metavar="KEY=V,V", help=vary)
    honest = "at least two boots per arm, in mirrored order: without it a verdict is only suggestive"
    _option(run, "--honest", action="store_true", help=honest)
    _option(run, "--boots", type=_boots, metavar="N", help="boots per arm (default: 2 with --honest, else 1)")
    _option(run, "--rounds", type=_positive, default=1, metavar="N", help="how often a boot sends each prompt")
    _option(run, "--suite", default="field", metavar="SUITE", help="the prompts: a suite's name or file")
    _option(run, "--scale", type=_scale, metavar="X", help="lengthen or shorten the answers (default: the recipe's)")
    _option(run, "--seed", type=_seed, default=0, metavar="N", help="shuffles the order of the prompts")
    heat = "sampling temperature (default: 0, or the model's own where what is drafted or accepted is varied)"
    _option(run, "--temperature", type=_temperature, metavar="T", help=heat)
    streams = "requests at a time, one after the other (default: 1)"
    _option(run, "--concurrency", type=_streams, default=(1,), metavar="N,N", help=streams)
    cache = "use your own compile cache; without it each arm begins with an empty one of its own"
    _option(run, "--keep-cache", action="store_true", help=cache)
    _option(run, "--stop-running", action="store_true", help="stop servers of yours that would be in the way")
    _option(run, "--yes", action="store_true", help="begin without asking")
    _option(run, "--detach", inherit=True, action="store_true", help="return at once; it goes on by itself")
    _plan_options(run, inherit=True)
    _json(run, inherit=True)


def _bench_command(commands: Any) -> None:
    bench = commands.add_parser("bench", help="send a suite of prompts to a server and measure each request")
    _run_argument(bench)
    suite = "the prompts: quick (default), field, seed-q1q2, space-invaders, mt-bench, one of your own, or a file"
    _option(bench, "--suite", default="quick", metavar="NAME|FILE", help=suite)
    _option(bench, "--rounds", type=_positive, default=1, metavar="N", help="how often to send them")
    _option(bench, "--scale", type=_scale, metavar="X", help="lengthen or shorten the answers (default: the recipe's)")
    _option(bench, "--temperature", type=_temperature, metavar="T", help="sampling temperature (default: the model's)")
    _option(bench, "--seed", type=_seed, default=0, metavar="N", help="of the order, the texts' tags and the sampling")
    _option(bench, "--fixed", action="store_true", help="answers of full length, past the model's own end")
    levels = "requests under way at a time, one level after the other, such as 1,2,4,8; each sends enough for that"
    _option(bench, "--concurrency", type=_streams, default=(1,), metavar="N,...", help=levels)
    theirs = "let the engine's own `vllm bench serve` send the same, too, and compare (implies --fixed)"
    _option(bench, "--with-vllm", action="store_true", help=theirs)
    _json(bench, inherit=True)


def _replay_commands(commands: Any) -> None:
    replay = commands.add_parser("replay", help="play a recorded run again, with its own clock")
    what = "`sample` (shipped, from a real H200), a file of `export`, or a run as in `ps --all`"
    replay.add_argument("recording", metavar="RUN|FILE", help=what)
    speed = "times as fast (default: 4 in the panel, at once as lines)"
    _option(replay, "--speed", type=_speed, metavar="N", help=speed)
    _option(replay, "--at", type=_seconds, default=0.0, metavar="SECONDS", help="begin so long after the launch")
    _option(replay, "--plain", action="store_true", help="lines instead of the panel, as `attach --plain` gives")
    _watch_options(replay, inherit=True)
    export = commands.add_parser("export", help="write a run into one file that `replay` reads")
    _run_argument(export)
    _option(export, "-o", "--output", metavar="FILE", help="the file to write (default: RUN.zip here)")
    prompts = "keep the prompts and answers that the log may quote; access tokens are always left out"
    _option(export, "--with-prompts", action="store_true", help=prompts)


def _recipe_commands(recipes: argparse.ArgumentParser) -> None:
    _json(recipes, inherit=True)
    actions = recipes.add_subparsers(dest="action", metavar="ACTION", title="actions (default: list)")
    check = actions.add_parser("check", help="read recipe files and say what is wrong with them")
    check.add_argument("files", metavar="FILE", nargs="*", help="names or files (default: all recipes)")
    _json(check, inherit=True)
    show = actions.add_parser("show", help="print a recipe's file and where it is")
    _recipe_argument(show)
    new = actions.add_parser("new", help="begin a recipe of your own")
    new.add_argument("name", metavar="NAME", help="its name: lower case, digits, . _ -")
    _option(new, "--like", metavar="RECIPE", help="copy this recipe instead of the template")
    actions.add_parser("schema", help="print the JSON Schema of recipe files, for editors")


def _engine_commands(engine: argparse.ArgumentParser) -> None:
    actions = engine.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    _json(actions.add_parser("list", help="the engines of this machine"), inherit=True)
    install = actions.add_parser("install", help="build the engine that a recipe needs, without launching")
    _recipe_argument(install)
    _plan_options(install, inherit=True)
    _json(install, inherit=True)
    for name, text in (("inspect", "what is in it, and how its patches stand"), ("remove", "delete it")):
        action = actions.add_parser(name, help=text)
        action.add_argument("engine", metavar="ENGINE", help="its folder, the folder's name, or the start of that")
        _json(action, inherit=True)
    adopt = actions.add_parser("adopt", help="use an environment that you made yourself")
    adopt.add_argument("folder", metavar="FOLDER", help="the environment's folder, with bin/vllm in it")
    _option(adopt, "--patch", action="store_true", help="recipes may patch its vLLM")
    _json(adopt, inherit=True)


def _patch_commands(patch: argparse.ArgumentParser) -> None:
    actions = patch.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    about = {
        "status": "how each patch stands",
        "diff": "what they change, as a unified diff",
        "apply": "bring in what the engine needs",
        "revert": "take out what we applied, byte for byte",
        "verify": "compare the files with our record and the wheel's; exit code 5 when one differs",
    }
    for name, text in about.items():
        action = actions.add_parser(name, help=text)
        which = "its patches and its engine (default: all patches, in --engine)"
        action.add_argument("recipe", metavar="RECIPE", nargs="?", help=which)
        only = "this patch only; may be repeated"
        action.add_argument("--only", metavar="PATCH", action="append", default=[], help=only)
        if name in {"apply", "revert"}:
            _option(action, "--dry-run", action="store_true", help="say what it would do, and change nothing")
        _plan_options(action, inherit=True)
        _json(action, inherit=True)


def _launch_options(parser: argparse.ArgumentParser, *, inherit: bool = False) -> None:
    _plan_options(parser, inherit=inherit)
    detach = "return as soon as the server is launched (with --bench: measured)"
    _option(parser, "--detach", inherit=inherit, action="store_true", help=detach)
    bench = "send the five prompt kinds once the server answers"
    _option(parser, "--bench", inherit=inherit, action="store_true", help=bench)
    force = "launch although a check fails, and record why"
    _option(parser, "--force", inherit=inherit, metavar="REASON", help=force)
    _watch_options(parser, inherit=inherit)


def _plan_options(parser: argparse.ArgumentParser, *, inherit: bool) -> None:
    _option(parser, "--mode", inherit=inherit, type=_mode, metavar="MODE", help="eager or compile")
    _option(parser, "--port", inherit=inherit, type=_port, metavar="PORT", help="port on 127.0.0.1")
    tokens = "tokens that the drafter proposes per step; 0 is without speculation"
    _option(parser, "--num-speculative-tokens", inherit=inherit, type=_tokens, metavar="N", help=tokens)
    gpu = "the GPU: index, UUID, or a class such as gb10 (for `plan`, one that is not here)"
    _option(parser, "--gpu", inherit=inherit, metavar="GPU", help=gpu)
    _option(parser, "--profile", inherit=inherit, metavar="NAME", help="stock or seed, as the recipe has them")
    _option(parser, "--variant", inherit=inherit, metavar="NAME", help="another way to run the pair, if it has one")
    _option(parser, "--vllm", inherit=inherit, metavar="VERSION", help="another release than the recipe's")
    _option(parser, "--engine", inherit=inherit, metavar="ENGINE", help="an engine of `engine list` instead")
    change = "change any flag of vllm serve, env.NAME, speculation.KEY, target.model or drafter.model; may be repeated"
    parser.add_argument(
        "--set", dest="settings", action="append", metavar="KEY=VALUE", help=change,
        default=argparse.SUPPRESS if inherit else None,
    )  # fmt: skip


def _watch_options(parser: argparse.ArgumentParser, *, inherit: bool) -> None:
    every = "seconds between two lines (default 5)"
    _option(parser, "--every", inherit=inherit, type=_positive, default=5, metavar="SECONDS", help=every)
    _json(parser, inherit=inherit)


def _json(parser: argparse.ArgumentParser, *, inherit: bool) -> None:
    _option(parser, "--json", inherit=inherit, action="store_true", help="one JSON object per line on stdout")


def _recipe_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe's name, or the path of a recipe file")


def _run_argument(parser: argparse.ArgumentParser, also: str = "") -> None:
    text = f"a run, the start of its name, or a recipe (default: the newest server){also}"
    parser.add_argument("run", metavar="RUN", nargs="?", help=text)


def _option(parser: argparse.ArgumentParser, *names: str, inherit: bool = False, **settings: Any) -> None:
    """Add an option whose default is its DFLASH_TUI_ variable; with `inherit` it is the top level's value."""
    variable = "DFLASH_TUI_" + names[-1].lstrip("-").upper().replace("-", "_")
    value = os.environ.get(variable)
    settings["help"] = f"{settings['help']} [env: {variable}]"
    if inherit:
        settings["default"] = argparse.SUPPRESS
    elif value:
        settings["default"] = value.lower() in _ON if settings.get("action") == "store_true" else value
    parser.add_argument(*names, **settings)


def _number(text: str, least: float, most: float, *, whole: bool) -> float:
    try:
        number = int(text) if whole else float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        kind = "a whole number" if whole else "a number"
        raise argparse.ArgumentTypeError(f"expected {kind} from {least:g} to {most:g}, not '{text}'")
    return number


def _positive(text: str) -> int:
    return int(_number(text, 1, 100_000, whole=True))


def _port(text: str) -> int:
    return int(_number(text, 1, 65_535, whole=True))


def _tokens(text: str) -> int:
    return int(_number(text, 0, 64, whole=True))


def _boots(text: str) -> int:
    return int(_number(text, 1, 50, whole=True))


def _streams(text: str) -> tuple[int, ...]:
    return tuple(int(_number(word, 1, 1024, whole=True)) for word in text.split(","))


def _scale(text: str) -> float:
    return _number(text, 0.001, 100, whole=False)


def _speed(text: str) -> float:
    return _number(text, 0.1, 100_000, whole=False)


def _seconds(text: str) -> float:
    return _number(text, 0, 1e9, whole=False)


def _seed(text: str) -> int:
    return int(_number(text, 0, (1 << 31) - 1, whole=True))


def _temperature(text: str) -> float:
    return _number(text, 0, 2, whole=False)


def _mode(text: str) -> str:
    if text not in {"eager", "compile"}:
        raise argparse.ArgumentTypeError(f"expected eager or compile, not '{text}'")
    return text
