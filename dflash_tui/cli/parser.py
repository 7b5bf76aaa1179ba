"""The command line's grammar: every command and option."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from dflash_tui import __version__
from dflash_tui.cli.command_parser import (
    HOST_OPTION,
    INSTALL_OPTION,
    OLD_COMMANDS,
    CommandParser,
    name_command,
    split_far_words,
)
from dflash_tui.cli.options import (
    add_address_options,
    add_begin_options,
    add_detach_option,
    add_experiment_argument,
    add_force_option,
    add_install_peers_option,
    add_json_option,
    add_load_options,
    add_method_option,
    add_option,
    add_pair_options,
    add_plan_options,
    add_recipe_argument,
    add_run_argument,
    add_scale_option,
    add_seed_option,
    add_server_argument,
    add_suite_option,
    add_switch,
    add_temperature_option,
    add_top_p_option,
    add_trust_option,
    add_watch_options,
    is_json_default,
    number,
    parse_budget,
    parse_concurrency,
    parse_measure,
    parse_positive,
    parse_scale,
    parse_time,
    whole_number,
)

_HELP = """\
usage: dflash-tui [-h] [-V] [--recipe NAME] [--host HOST] [COMMAND] ...

Launch, watch and measure speculative decoding on vLLM. Without a command: the panel.
Status messages go to stderr, data to stdout. A server outlives the program that launched it.
`dflash-tui COMMAND --help` lists the options of a command.

{commands}
options:
  --recipe NAME    launch this recipe without a screen, as `up NAME`
  --host HOST      run the panel, or the command that follows, on this host as ssh calls it
  --install-peers  say yes to installing this program on a --host that lacks it
exit codes: 0 done, 1 failed, 2 wrong usage, 3 unusable engine, 4 would not start, 5 patch does not fit,
  6 server failed, 7 speculation changes answers, 130 Ctrl-C
"""
_DEFAULT_LIST = "actions (default: list)"
_DETAILS = "print the statistics, boots and latencies behind the verdict, too"


class ProgramParser(CommandParser):
    """The parser of the whole command line."""

    def format_help(self) -> str:
        """Return the help, with one line per command, by group."""
        groups = {command.group: "" for command in COMMANDS.values() if command.group}
        for name, command in COMMANDS.items():
            if command.group:
                groups[command.group] += f"  {name:<15}{command.about}\n"
        return _HELP.format(commands="".join(f"{group}:\n{lines}" for group, lines in groups.items()))


def parse_words(words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; exit with 2 on wrong usage, and with 0 after help.

    The words after `--host HOST` are kept unparsed in `far_words`.
    """
    near, far = split_far_words([*words])
    if words and words[0] in OLD_COMMANDS:
        sys.stderr.write(f"`{words[0]}` is now `{OLD_COMMANDS[words[0]]}`; the old name goes with the next release\n")
    words = near or name_command([*words])
    parser = build_parser(words[0] if words else "")
    if not near and words[:1] == [INSTALL_OPTION]:
        parser.error(f"{INSTALL_OPTION} needs {HOST_OPTION} HOST before it, or a command")
    args = parser.parse_args(words)
    args.far_words = far
    args.json = args.json or "--json" in far
    if args.command is None and args.host is None and args.recipe:  # set by DFLASH_TUI_RECIPE
        return parse_words(["up", args.recipe])
    return args


def build_parser(command: str | None = None) -> ProgramParser:
    """Return the parser with one command, with none if its name is empty, or with all.

    Each option's default comes from its DFLASH_TUI_ variable, if set.
    """
    parser = ProgramParser(prog="dflash-tui")
    parser.add_argument("-V", "-v", "--version", action="version", version=f"dflash-tui {__version__}")
    add_option(parser, "--recipe", metavar="NAME", help="launch this recipe without a screen")
    parser.add_argument(HOST_OPTION, metavar="HOST", help="run the panel, or the command that follows, on this host")
    add_install_peers_option(parser, "a --host")
    parser.set_defaults(json=is_json_default())  # commands without --json report their errors by it
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=CommandParser)
    for name in [command] if command in COMMANDS else COMMANDS if command != "" else ():
        COMMANDS[name].add_options(commands.add_parser(name, help=COMMANDS[name].about))
    return parser


def _add_up(up: argparse.ArgumentParser) -> None:
    add_recipe_argument(up, optional=True)
    add_plan_options(up)
    add_install_peers_option(up)
    add_trust_option(up)
    add_switch(up, "--detach", help="return as soon as the server is launched (with --bench: measured)")
    wait = "return when the server is ready (with --bench: measured); exit code 6 when it fails before"
    add_switch(up, "--wait", help=wait)
    foreground = "stop the server when this command ends, as a service does (default: it keeps running)"
    add_switch(up, "--foreground", help=foreground)
    add_switch(up, "--bench", help="send the five prompt kinds once the server answers")
    add_force_option(up)
    add_watch_options(up)


def _add_attach(attach: argparse.ArgumentParser) -> None:
    foreign = "; or http(s)://HOST:PORT of a foreign vLLM (metrics only; a key comes from DFLASH_TUI_API_KEY)"
    add_run_argument(attach, foreign)
    add_switch(attach, "--plain", help="lines instead of the panel")
    add_watch_options(attach)
    attach.set_defaults(foreground=False, detach=False)


def _add_plan(plan: argparse.ArgumentParser) -> None:
    add_recipe_argument(plan, optional=True)
    add_plan_options(plan)
    add_install_peers_option(plan)
    add_switch(plan, "-v", "--verbose", help="all that is known of it, not only what decides")
    add_json_option(plan)


def _add_doctor(doctor: argparse.ArgumentParser) -> None:
    doctor.add_argument("recipe", metavar="RECIPE", nargs="?", help="a recipe's name, or the path of a recipe file")
    add_switch(doctor, "--release-page-cache", help="give the page cache of the models' files back to the system")
    add_plan_options(doctor)
    add_install_peers_option(doctor)
    add_json_option(doctor)


def _add_completion(shells: argparse.ArgumentParser) -> None:
    shells.add_argument("shell", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")


def _add_ps(ps: argparse.ArgumentParser) -> None:
    ps.add_argument("run", metavar="RUN", nargs="?", help="this one alone, also when it has ended")
    add_switch(ps, "-a", "--all", help="also those that have ended")
    add_switch(ps, "-v", "--verbose", help="URL, model and the key's variable, and how other machines reach them")
    programs = ("opencode", "continue", "open-webui", "curl", "python")
    form = f"print how this program reaches RUN (default: the newest), without the key: {', '.join(programs)}"
    ps.add_argument("--for", dest="program", choices=programs, metavar="PROGRAM", help=form)
    add_json_option(ps)


def _add_logs(logs: argparse.ArgumentParser) -> None:
    add_run_argument(logs)
    add_switch(logs, "-f", "--follow", help="go on until the server ends")
    rank = "the log of this rank of a server over several hosts, as far as it was copied here"
    add_option(logs, "--rank", type=parse_positive, metavar="N", help=rank)
    add_option(logs, "-n", "--tail", type=parse_positive, metavar="N", help="only the last N lines")
    add_json_option(logs)


def _add_why(why: argparse.ArgumentParser) -> None:
    server = (
        "a run, the start of its name, or a recipe (default: the newest that failed); a recording; "
        "or any vLLM: the address of one that runs, its log as a file, or -"
    )
    why.add_argument("run", metavar="RUN|URL|FILE|-", nargs="?", help=server)
    add_switch(why, "--report", help="a text for a forum or vLLM's issue tracker instead, without secrets")
    add_json_option(why)


def _add_chat(chat: argparse.ArgumentParser) -> None:
    add_server_argument(chat)
    add_option(chat, "--system", metavar="TEXT", help="the system prompt")
    add_temperature_option(chat, "the model's")
    add_json_option(chat)


def _add_stop(stop: argparse.ArgumentParser) -> None:
    add_run_argument(stop)
    stop.add_argument("-a", "--all", action="store_true", help="end every server of this user")
    orphans = "list the engine processes that outlived their server, and end them after asking; RUN is a pid of one"
    stop.add_argument("--orphans", action="store_true", help=orphans)
    stop.add_argument("--yes", action="store_true", help="end the orphans without asking")
    add_json_option(stop)


def _add_actions(parser: argparse.ArgumentParser, about: dict[str, str], **settings: Any) -> Iterator[Any]:
    """Add actions, each with `--json`, and return their parsers; if not `required`, the default is `list`."""
    settings = {"title": "actions", "required": True, **settings}
    actions = parser.add_subparsers(dest="action", metavar="ACTION", **settings)
    added = {name: actions.add_parser(name, help=text) for name, text in about.items()}
    if not settings["required"]:
        add_json_option(parser)
        added["list"].set_defaults(action=None)
    for action in added.values():
        add_json_option(action, default=argparse.SUPPRESS)  # --json may also come before the action
    return iter(added.values())


def _add_runs(runs: argparse.ArgumentParser) -> None:
    about = {
        "list": "as `ps --all`",
        "history": "how long starts took here: eager and compile, cold and cached",
        "prune": "list the runs that ended long ago, with --yes remove them",
    }
    _, history, prune = _add_actions(runs, about, title=_DEFAULT_LIST, required=False)
    history.add_argument("recipe", metavar="RECIPE", nargs="?", help="only this recipe's starts")
    age = "only those that were last written to at least this long ago, such as 12h (default: 30d)"
    add_option(prune, "--older-than", type=parse_time, default=30 * 86_400.0, metavar="TIME", help=age)
    sure = prune.add_mutually_exclusive_group()
    sure.add_argument("--yes", action="store_true", help="remove them")
    sure.add_argument("--dry-run", action="store_true", help="only list them (as without --yes)")


def _add_service(service: argparse.ArgumentParser) -> None:
    add_recipe_argument(service)
    every = "seconds between two lines in the journal (default 60)"
    add_option(service, "--every", type=parse_positive, default=60, metavar="SECONDS", help=every)
    add_force_option(service)
    add_plan_options(service)
    add_trust_option(service)
    add_json_option(service)


def _add_replay(replay: argparse.ArgumentParser) -> None:
    what = "`sample` (shipped, from a real H200), a file of `export`, or a run as in `ps --all`"
    replay.add_argument("recording", metavar="RUN|FILE", help=what)
    pace = "times as fast (default: 4 in the panel, at once as lines)"
    add_option(replay, "--speed", type=number(0.1, 100_000), metavar="N", help=pace)
    at = "begin this long after the launch (default: in the panel shortly before it is up, or ends; as lines 0)"
    add_option(replay, "--at", type=number(0, 1e9), metavar="SECONDS", help=at)
    add_switch(replay, "--plain", help="lines instead of the panel, as `attach --plain` gives")
    add_watch_options(replay)


def _add_export(export: argparse.ArgumentParser) -> None:
    add_run_argument(export)
    add_option(export, "-o", "--output", metavar="FILE", help="the file to write (default: RUN.zip here)")
    prompts = "keep the prompts and answers that the log may quote; access tokens are always left out"
    add_switch(export, "--with-prompts", help=prompts)
    add_json_option(export)


def _add_recipes(recipes: argparse.ArgumentParser) -> None:
    about = {
        "list": "what there is, and for which machines",
        "check": "read recipe files and say what is wrong with them",
        "show": "print a recipe's file and where it is",
        "new": "begin a recipe of your own",
        "schema": "print the JSON Schema of recipe files, for editors",
        "catalogue": "pairs that others published, also without a recipe",
        "add": "check a recipe of others and put it among your own; nothing of it is run",
        "import": "make a recipe of a command: import -- vllm serve MODEL …",
        "update": "put a newer catalogue in place of the one here, after it was checked",
    }
    added = _add_actions(recipes, about, title=_DEFAULT_LIST, required=False)
    _, check, show, new, _, catalogue, add, take, update = added
    check.add_argument("files", metavar="FILE", nargs="*", help="names or files (default: all recipes)")
    add_recipe_argument(show)
    new.add_argument("name", metavar="NAME", help="its name: lower case, digits, . _ -")
    add_option(new, "--like", metavar="RECIPE", help="copy this recipe instead of the template")
    add_pair_options(new, "derive it from this model's config.json: a hub repository or a folder")
    add_method_option(new)
    catalogue.add_argument("pair", metavar="PAIR", nargs="?", help="what is known of this one, with the sources")
    add_switch(catalogue, "--fits", help="only those that fit into the memory")
    catalogue.add_argument("--unknown", action="store_true", help="only those that may fit: their size is unknown")
    add_method_option(catalogue)
    add_option(catalogue, "--gpu", metavar="CLASS", help="the machine, such as gb10 (default: the GPU here)")
    take.add_argument("words", metavar="WORD", nargs="+", help="the command behind --, or all of it in quotes")
    for action in (add, update):
        action.add_argument("source", metavar="FILE|URL", help="its path, or its https address")
    for action in (add, take):
        action.add_argument("--name", metavar="NAME", help="the recipe's name (default: that of the file or model)")
        action.add_argument("--replace", action="store_true", help="write over a recipe of yours of that name")


def _add_engine(engine: argparse.ArgumentParser) -> None:
    about = {
        "list": "the engines of this machine",
        "install": "build the engine that a recipe needs, without launching",
        "inspect": "what is in it, and the status of its patches",
        "remove": "delete it",
        "adopt": "use an environment that you made yourself",
    }
    _, install, inspect, remove, adopt = _add_actions(engine, about)
    add_recipe_argument(install)
    add_plan_options(install)
    add_trust_option(install)
    for action in (inspect, remove):
        action.add_argument("engine", metavar="ENGINE", help="its folder, the folder's name, or the start of that")
    adopt.add_argument("folder", metavar="FOLDER", help="the environment's folder, with bin/vllm in it")


def _add_patch(patch: argparse.ArgumentParser) -> None:
    about = {
        "apply": "make an engine with what it needs",
        "status": "the status of each patch",
        "diff": "what they change, as a unified diff",
        "revert": "nothing to undo: name the engine without patches, which is still there",
        "verify": "compare the files with those that were installed; exit code 5 when one differs",
    }
    apply, *others = _add_actions(patch, about)
    for action in (apply, *others):
        which = "its patches and its engine (default: all patches, in --engine)"
        action.add_argument("recipe", metavar="RECIPE", nargs="?", help=which)
        only = "this patch only; may be repeated"
        action.add_argument("--only", metavar="PATCH", action="append", default=[], help=only)
        add_plan_options(action)
    add_switch(apply, "--dry-run", help="say what it would do, and make nothing")
    add_trust_option(apply)


def _add_report(report: argparse.ArgumentParser) -> None:
    what = "an A/B, a run, or a report's JSON file (default: the newest A/B); or: compare ONE OTHER"
    report.add_argument("names", metavar="RUN|AB", nargs="*", help=what)
    formats = ("md", "json", "svg", "vllm-bench")
    form = "md (default), json, svg; or vllm-bench: the JSON of `vllm bench serve`"
    add_option(report, "--format", choices=formats, default="md", metavar="FORMAT", help=form)
    add_option(report, "-o", "--output", metavar="FILE", help="the file to write instead of stdout")
    add_json_option(report)


def _add_ab(ab: Any) -> None:
    ab.unnamed, ab.actions = "run", ("run", "list", "attach", "play", "stop", "resume", "extend", "remove")
    ab.usage = (
        "dflash-tui ab RECIPE [--vary KEY=VALUE,VALUE] [--honest] [options of `ab run`]\n       dflash-tui ab ACTION"
    )
    about = {
        "run": "launch each arm in turn, measure, and say which is faster",
        "list": "the experiments of this machine",
        "attach": "follow an experiment, or show its report",
        "play": "show two arms that write the same answer as fast as they did, in the panel or as a file",
        "stop": "end an experiment and its server; it can be resumed",
        "resume": "go on where an experiment ended early",
        "extend": "add boots to an experiment that is over, and judge all of them",
        "remove": "delete an experiment; its runs stay",
    }
    title = "actions (`ab RECIPE` is short for `ab run RECIPE`)"
    run, _, attach, play, stop, resume, extend, remove = _add_actions(ab, about, title=title, prog="dflash-tui ab")
    _add_ab_run(run)
    for action in (attach, play, stop, resume, extend, remove):
        add_experiment_argument(action, optional=action is not remove)
    for action in (attach, resume, extend):
        add_switch(action, "--details", help=_DETAILS)
    more = "boots that are added to each arm (default: 2)"
    add_option(extend, "--boots", type=whole_number(1, 50), default=2, metavar="N", help=more)
    arm = "the arm that is played beside the first one, by its value (default: the second)"
    add_option(play, "--arm", metavar="VALUE", help=arm)
    kind = "the prompt that is answered (default: the one whose ratio is the median)"
    add_option(play, "--prompt", metavar="KIND", help=kind)
    add_option(play, "--svg", metavar="FILE", help="write a picture of the moment at which the faster arm is done")
    for action in (resume, extend):
        add_detach_option(action)
        add_trust_option(action)


def _add_ab_run(run: argparse.ArgumentParser) -> None:
    add_recipe_argument(run, optional=True)
    vary = (
        "what is varied: stock,ours (the published command alone against this launch, or what its plan offers), "
        "url=URL,RECIPE or url=URL,URL (servers that already run, which are never stopped), mode, spec=on,off, n, "
        "profile, variant, vllm, engine, patch.NAME=on,off, start.NAME=on,off, env.NAME, "
        "speculation.KEY or a flag of vllm serve; those of the prefix cache with --dataset repeat alone, since other "
        "prompts are made unique so that no cache answers (default: mode=eager,compile)"
    )
    add_option(run, "--vary", default="mode=eager,compile", metavar="KEY=V,V", help=vary)
    honest = "at least two boots per arm, in mirrored order: without it a verdict is only suggestive"
    add_switch(run, "--honest", help=honest)
    boots = "boots per arm (default: 2 with --honest, else 1)"
    add_option(run, "--boots", type=whole_number(1, 50), metavar="N", help=boots)
    add_address_options(run)
    add_load_options(run)
    add_temperature_option(run, "0, or the model's own where what is drafted or accepted is varied")
    add_top_p_option(run)
    run.add_argument(
        "--keep-cache",
        dest="own_cache",
        action="store_false",
        help="use your own compile cache; without it each arm begins with an empty one",
    )
    what = "what is judged: speed, or start, the seconds until a server is ready; then nothing else is sent"
    add_option(run, "--measure", dest="measures_start", type=parse_measure, default=False, metavar="WHAT", help=what)
    cold = "with --measure start: empty the caches of an arm before each boot (default: its first boot fills them)"
    add_switch(run, "--cold", help=cold)
    answers = "keep no text of the answers (default: kept in the experiment's folder, without secrets)"
    run.add_argument("--no-answers", dest="keep_answers", action="store_false", help=answers)
    add_switch(run, "--details", help=_DETAILS)
    add_begin_options(run)


def _add_tune(tune: Any) -> None:
    tune.unnamed, tune.actions = "run", ("run", "attach", "stop", "resume", "keep")
    tune.usage = "dflash-tui tune RECIPE [--budget 30m] [options of `tune run`]\n       dflash-tui tune ACTION"
    about = {
        "run": "try one setting after another, keep what is faster, say by how much",
        "attach": "follow a tune, or show what it has found",
        "stop": "end a tune and its server; it can be resumed",
        "resume": "go on where a tune ended early",
        "keep": "write the best setting as a recipe of yours, also while the tune runs or after it was stopped",
    }
    title = "actions (`tune RECIPE` is short for `tune run RECIPE`; `ab list` and `ab remove` know tunes, too)"
    run, attach, stop, resume, keep = _add_actions(tune, about, title=title, prog="dflash-tui tune")
    _add_tune_run(run)
    for action in (attach, stop, resume, keep):
        add_experiment_argument(action)
    add_detach_option(resume)
    add_trust_option(resume)
    keep.add_argument("--name", metavar="NAME", help="the recipe's name (default: as chosen when the tune began)")
    keep.add_argument("--overwrite", action="store_true", help="replace a recipe of that name")


def _add_tune_run(run: argparse.ArgumentParser) -> None:
    add_recipe_argument(run)
    budget = "how long all boots together may take, such as 45m or 2h (default: 30m)"
    add_option(run, "--budget", type=parse_budget, default=1800.0, metavar="TIME", help=budget)
    where = (
        "instead show where speculation pays: with against without it for each kind of prompt and number of streams, "
        "and the launch that follows; --vary n=0,4,8 compares numbers of drafts"
    )
    add_switch(run, "--map", help=where)
    kinds = "of a map: code,JSON,questions,prose,agent,long, or kinds of --dataset (default: all that fit the context)"
    add_option(run, "--kinds", default="", metavar="KIND,KIND", help=kinds)
    boots = "of a map: boots with and without speculation (default: 2)"
    add_option(run, "--boots", type=whole_number(1, 50), metavar="N", help=boots)
    vary = "try these values instead of all that may matter; as for `ab`, may be repeated"
    run.add_argument("--vary", dest="axes", action="append", default=[], metavar="KEY=V,V", help=vary)
    run.add_argument("--name", default="", metavar="NAME", help="the recipe that is written (default: RECIPE-tuned)")
    add_load_options(run, None, "1, of a map 1,4,16")
    add_temperature_option(run, "0; above 0 the methods of sampling are tried, too", 0.0)
    add_begin_options(run)


def _add_verify(command: argparse.ArgumentParser) -> None:
    which = "a recipe, which is launched and stopped again unless a server of it runs; a run; or a server's URL"
    command.add_argument("recipe", metavar="RECIPE|RUN|URL", help=which)
    add_address_options(command)
    parts = command.add_mutually_exclusive_group()
    less = "leave out whether speculation changes the answers, which takes two boots more"
    add_switch(parts, "--without-output", help=less)
    only = "check only that: with speculation, then without; exit code 7 where it changes them by more than rounding"
    add_switch(parts, "--lossless", help=only)
    count = "how many prompts each boot answers, at temperature 0 (default: 20)"
    add_option(command, "--prompts", type=parse_positive, default=20, metavar="N", help=count)
    repeat = (
        "with --lossless: boots with and without speculation; two show how far boots of one arm differ (default: 1)"
    )
    add_option(command, "--boots", type=whole_number(1, 50), metavar="N", help=repeat)
    add_suite_option(command, "quick")
    length = "lengthen or shorten the answers (default: 0.25, which is 16 to 512 tokens in quick)"
    add_option(command, "--scale", type=parse_scale, default=0.25, metavar="X", help=length)
    add_seed_option(command)
    exact = "on the CPU: run both servers in float32, whose rounding is too small to change an answer"
    add_switch(command, "--exact", help=exact)
    add_begin_options(command)
    add_json_option(command)
    command.set_defaults(temperature=0.0, checks_output=True)
    command.set_defaults(wait=True, foreground=False, bench=False, force="", every=100_000)  # `up` reads these


def _add_bench(bench: argparse.ArgumentParser) -> None:
    add_server_argument(bench)
    add_suite_option(bench, "quick")
    add_option(bench, "--rounds", type=parse_positive, default=1, metavar="N", help="how often to send them")
    warm = "how often to send them before that, one at a time, which does not count (default: 0)"
    add_option(bench, "--warm-up", type=parse_positive, default=0, metavar="N", help=warm)
    add_scale_option(bench)
    add_temperature_option(bench, "that of the requests published for this launch, else the model's")
    add_top_p_option(bench)
    likeliest = "draw from this many of the likeliest tokens (default: as the temperature)"
    add_option(bench, "--top-k", type=parse_positive, metavar="K", help=likeliest)
    add_seed_option(bench, "of the order, the texts' tags and the sampling")
    add_switch(bench, "--fixed", help="answers of full length, past the model's own end")
    levels = "requests at a time, one level after the other, such as 1,2,4,8; each level sends enough for that"
    add_option(bench, "--concurrency", type=parse_concurrency, default=(1,), metavar="N,...", help=levels)
    rate = "requests per second, at random times (Poisson), instead of requests at a time"
    add_option(bench, "--rate", type=number(0.001, 10_000), default=0.0, metavar="N", help=rate)
    ramp = "seconds over which the load rises; requests that begin meanwhile do not count (default: 0)"
    add_option(bench, "--ramp", type=number(0, 3600), default=0.0, metavar="S", help=ramp)
    slo = "say how many requests are within these seconds (goodput): ttft=S,tpot=S,e2e=S, or some of them"
    add_option(bench, "--slo", default="", metavar="KEY=S,...", help=slo)
    add_json_option(bench)


class ProgramCommand(NamedTuple):
    """A command of the program."""

    group: str
    """Its group in the help; empty hides it there."""
    about: str
    add_options: Callable[[CommandParser], None]
    module: str
    """The module of `cli.commands` that runs it, with functions such as `recipes` and `recipes_check`."""


COMMANDS = {
    "up": ProgramCommand("run", "launch a recipe and watch it", _add_up, "up"),
    "attach": ProgramCommand("run", "watch a server that runs, in the panel or as lines", _add_attach, "up"),
    "ps": ProgramCommand("run", "list the servers, and how other programs reach them", _add_ps, "servers"),
    "logs": ProgramCommand("run", "print a server's log", _add_logs, "logs"),
    "stop": ProgramCommand("run", "end a server and all its processes, or what outlived one", _add_stop, "servers"),
    "chat": ProgramCommand("run", "talk with a server, a line at a time; also in a pipe", _add_chat, "chat"),
    "service": ProgramCommand("run", "print a unit of systemd --user that runs a recipe", _add_service, "plan"),
    "bench": ProgramCommand("measure", "send a suite of prompts and measure each request", _add_bench, "bench"),
    "ab": ProgramCommand(
        "measure", "compare a recipe with one thing varied, as eager with compile", _add_ab, "experiments"
    ),
    "tune": ProgramCommand("measure", "find the fastest setting of a recipe on this machine", _add_tune, "experiments"),
    "verify": ProgramCommand(
        "measure", "check that a pair works, and that speculation changes no answer", _add_verify, "verify"
    ),
    "report": ProgramCommand(
        "measure", "a run or an A/B as Markdown, JSON or a picture; or two", _add_report, "report"
    ),
    "gpus": ProgramCommand("look", "show the GPUs", add_json_option, "plan"),
    "recipes": ProgramCommand("look", "list, check, show, begin, add or import recipes", _add_recipes, "recipes"),
    "plan": ProgramCommand("look", "show what launching a recipe would do", _add_plan, "plan"),
    "doctor": ProgramCommand("look", "check the machine, and a recipe's launch on it", _add_doctor, "plan"),
    "why": ProgramCommand("look", "say why a server failed or is slow, and what may help", _add_why, "logs"),
    "replay": ProgramCommand("look", "play a recorded run again, with its own clock", _add_replay, "recordings"),
    "export": ProgramCommand("look", "write a run into one file that `replay` reads", _add_export, "recordings"),
    "engine": ProgramCommand(
        "set up", "list, install, inspect, adopt or remove vLLM environments", _add_engine, "engines"
    ),
    "patch": ProgramCommand(
        "set up", "status, diff, apply, revert, verify the changes of vLLM's files", _add_patch, "engines"
    ),
    "disk": ProgramCommand(
        "set up", "what takes room on the disk, and how each is removed", add_json_option, "housekeeping"
    ),
    "runs": ProgramCommand(
        "set up", "list all runs and how long starts took, or remove old ones", _add_runs, "servers"
    ),
    "completion": ProgramCommand(
        "set up", "print a script by which a shell completes commands", _add_completion, "housekeeping"
    ),
    "agent": ProgramCommand("", "what another dflash-tui runs here over ssh", lambda _: None, "hosts"),
}
