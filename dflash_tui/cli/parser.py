"""The command line's grammar: every command, its actions and its options, as data."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
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
from dflash_tui.cli.options import OneOf, Options, add_options, argument, is_json_default, option, switch
from dflash_tui.planning.methods import Method

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


class Action(NamedTuple):
    """An action of a command, such as `engine list`."""

    about: str
    options: Options = ()


class ProgramCommand(NamedTuple):
    """A command of the program."""

    group: str
    """Its group in the help; empty hides it there."""
    about: str
    module: str
    """The module of `cli.commands` that runs it, with functions such as `recipes` and `recipes_check`."""
    options: Options = ()
    actions: Mapping[str, Action] = {}
    """Its actions by name; each has `--json`."""
    default: str = ""
    """The action without a word: `list`, or `run`, whose name may be left out before its arguments."""
    title: str = "actions"
    """The heading of the actions in the help."""
    values: Mapping[str, Any] = {}
    """Values of the parsed command line that no option sets."""


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
        sys.stderr.write(f"`{words[0]}` is now `{OLD_COMMANDS[words[0]]}`; the next release drops the old name\n")
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
    host = argument(HOST_OPTION, "HOST", "run the panel, or the command that follows, on this host")
    add_options(parser, (option("--recipe NAME", "launch this recipe without a screen"), host, INSTALL_HOST))
    parser.set_defaults(json=is_json_default())  # commands without --json report their errors by it
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=CommandParser)
    for name in [command] if command in COMMANDS else COMMANDS if command != "" else ():
        _add_command(commands.add_parser(name, help=COMMANDS[name].about), name)
    return parser


def _add_command(parser: CommandParser, name: str) -> None:
    command = COMMANDS[name]
    parser.set_defaults(**command.values)
    add_options(parser, command.options)
    if not command.actions:
        return
    settings: dict[str, Any] = {"title": command.title, "required": command.default != "list"}
    if command.default == "run":
        parser.unnamed, parser.actions = "run", tuple(command.actions)
        parser.usage = f"dflash-tui {name} RECIPE [options of `{name} run`]\n       dflash-tui {name} ACTION"
        settings["prog"] = f"dflash-tui {name}"
    actions = parser.add_subparsers(dest="action", metavar="ACTION", **settings)
    for word, action in command.actions.items():
        added = actions.add_parser(word, help=action.about)
        add_options(added, (*action.options, JSON))  # --json may also come before the action
        if word == command.default == "list":
            add_options(parser, (JSON,))
            added.set_defaults(action=None)


# The program's parser has the default of --json.
JSON = switch("--json", "one JSON object per line on stdout", default=argparse.SUPPRESS)
RECIPE = argument("recipe", "RECIPE", "a recipe's name, or the path of a recipe file")
ANY_RECIPE = argument("recipe", "RECIPE", "a recipe's name, or the path of a recipe file", nargs="?")
DRAFTER = option("--drafter MODEL", "its drafter; without one the target's own head drafts")
RECIPE_OR_PAIR = (
    ANY_RECIPE,
    option("--target MODEL", "a model to serve without a recipe: a hub repository or a folder"),
    DRAFTER,
)
_RUN = "a run, a prefix of its name, or a recipe (default: the newest server)"
RUN = argument("run", "RUN", _RUN, nargs="?")
METHOD = option("--method METHOD", f"how tokens are drafted: {', '.join(Method)}")
_TRUST = "trust a recipe and its patches that are not shipped, until they change; `recipes check` shows them"
TRUST = switch("--trust", _TRUST)
FORCE = option("--force REASON", "launch despite failed checks; REASON is recorded")
WATCH = (option("--every SECONDS", "seconds between two lines (default 5)", default=5), JSON)
DETACH = switch("--detach", "return at once; it continues in the background")
_INSTALL = "say yes to installing this program on a --{} that lacks it, in our own folder there"
INSTALL_HOST = switch("--install-peers", _INSTALL.format("host"))
INSTALL_PEERS = switch("--install-peers", _INSTALL.format("peer"))
_FAST = "the fast set-up (split verification), even where its answers were not compared with the published set-up's"
_SET_UP = {"dest": "set_up", "action": "store_const"}
_PEER = "another host that serves the model together with this one, by its ssh name; may be repeated"
_SET = (
    "change any flag of vllm serve, env.NAME, speculation.KEY, restart.KEY, target.model or drafter.model; "
    "may be repeated"
)
# What changes the plan of a launch.
PLAN = (
    option("--mode MODE", "eager, graphs or compile"),
    METHOD,
    option("--port PORT", "port on 127.0.0.1"),
    option("--num-speculative-tokens N", "tokens that the drafter proposes per step; 0 is without speculation"),
    OneOf(
        (
            switch("--fast", _FAST, const="fast", **_SET_UP),
            switch("--published", "the published set-up", const="published", **_SET_UP),
        )
    ),
    option("--streams N", "concurrent requests of the server (max-num-seqs); the fast set-up has 8"),
    option("--gpu GPU", "GPU index, UUID or class such as gb10 (`plan` also takes a class that is not here)"),
    option("--profile NAME", "stock or seed, where the recipe has them"),
    option("--variant NAME", "a variant of the recipe, such as another drafter"),
    option("--vllm VERSION", "a vLLM release other than the recipe's"),
    option("--engine ENGINE", "an engine, as `engine list` names it"),
    option("--peer HOST", _PEER, dest="peers", action="append", default=[]),
    option("--link NAME", "an interface or address of this machine in the subnet that the hosts share"),
    option("--set KEY=VALUE", _SET, dest="settings", action="append"),
)
ADDRESS = (
    option("--key-env NAME", "for a URL: the environment variable that holds its API key"),
    option("--model NAME", "for a URL: the model to ask, if it serves several"),
)
SERVER = (
    argument("run", "RUN", f"{_RUN}; or http(s)://HOST:PORT of any OpenAI-compatible server", nargs="?"),
    *ADDRESS,
)
FOREIGN_RUN = argument(
    "run",
    "RUN",
    f"{_RUN}; or http(s)://HOST:PORT of a foreign vLLM (metrics only; a key comes from DFLASH_TUI_API_KEY)",
    nargs="?",
)
_EXPERIMENT = "its id, a prefix of that, or a recipe (default: the running or newest one)"
EXPERIMENT = argument("experiment", "ID", _EXPERIMENT, nargs="?")
ONE_EXPERIMENT = argument("experiment", "ID", _EXPERIMENT)
# What begins an experiment, and the launch that all its boots share.
BEGIN = (
    switch("--stop-running", "stop your servers that would disturb the measurement"),
    switch("--yes", "start without asking"),
    DETACH,
    *PLAN,
    INSTALL_PEERS,
    TRUST,
)
SCALE = option("--scale X", "lengthen or shorten the answers (default: the recipe's)")
_NUCLEUS = "sample from the likeliest tokens that hold this share of the probability (default: the model's)"
TOP_P = option("--top-p P", _NUCLEUS)
SEED = option("--seed N", "shuffles the order of the prompts", default=0)
_DATASET = (
    "the prompts: quick, field, contexts, map, agents, seed-q1q2, space-invaders, one of your own; a data set "
    "(mt-bench, spec-bench, speed-bench, gsm8k, humaneval, sharegpt; NAME:N for N prompts, 80 without); NAME:KIND,KIND "
    "for some kinds of prompt; random:IN,OUT[,N] in tokens, contexts:1k-128k, repeat[:SUITE] (the same texts again and "
    "again, for a prefix cache); or a file "
    "(default: {})"
)
_WORDS = "--dataset --suite NAME|FILE"
QUICK_DATASET = option(_WORDS, _DATASET.format("quick"), dest="suite", default="quick")
_ENDS = "generate the full answer length, past the model's end token (default: only with random weights)"
_LEVELS = "concurrent requests, one level after the other in the same boot (default: {})"
_FIELD = _DATASET.format("field, or quick if the server's context is short")
# The requests that an experiment sends to each boot.
LOAD = (
    option("--rounds N", "how often a boot sends each prompt", default=1),
    option(_WORDS, _FIELD, dest="suite"),
    SCALE,
    switch("--fixed", _ENDS, action=argparse.BooleanOptionalAction),
    SEED,
)
_WAIT = "return when the server is ready (with --bench: measured); exit code 6 when it fails before"
_FOREGROUND = "stop the server when this command ends, as a service does (default: it keeps running)"
_UP = (
    *RECIPE_OR_PAIR,
    *PLAN,
    INSTALL_PEERS,
    TRUST,
    switch("--detach", "return as soon as the server is launched (with --bench: measured)"),
    switch("--wait", _WAIT),
    switch("--foreground", _FOREGROUND),
    switch("--bench", "send the five prompt kinds once the server answers"),
    FORCE,
    *WATCH,
)
_PROGRAMS = ("opencode", "continue", "open-webui", "curl", "python")
_FOR = f"print how this program connects to RUN (default: the newest), without the key: {', '.join(_PROGRAMS)}"
_PS = (
    argument("run", "RUN", "only this run, even if it has ended", nargs="?"),
    switch("-a --all", "also list ended runs"),
    switch("-v --verbose", "show URL, model and the key's variable, and how other machines connect"),
    option("--for PROGRAM", _FOR, dest="program", choices=_PROGRAMS),
    JSON,
)
_LOGS = (
    RUN,
    switch("-f --follow", "follow the log until the server ends"),
    option("--rank N", "the log of this rank of a server on several hosts, as far as it was copied here"),
    option("-n --tail N", "only the last N lines"),
    JSON,
)
_ORPHANS = "list engine processes that outlived their server, and stop them after asking; RUN is the pid of one"
_STOP = (
    RUN,
    switch("-a --all", "stop every server of this user"),
    switch("--orphans", _ORPHANS),
    switch("--yes", "stop the orphans without asking"),
    JSON,
)
_FAILED_RUN = (
    "a run, a prefix of its name, or a recipe (default: the newest that failed); a recording; "
    "or any vLLM: the address of one that runs, its log as a file, or -"
)
_WHY = (
    argument("run", "RUN|URL|FILE|-", _FAILED_RUN, nargs="?"),
    switch("--report", "write a bug report for a forum or vLLM's issue tracker, without secrets"),
    JSON,
)
_SYSTEM = option("--system TEXT", "the system prompt")
_HEAT = "--temperature T"
_CHAT = (*SERVER, _SYSTEM, option(_HEAT, "sampling temperature (default: the model's)"), JSON)
_JOURNAL = option("--every SECONDS", "seconds between two lines in the journal (default 60)", default=60)
_SERVICE = (RECIPE, _JOURNAL, FORCE, *PLAN, TRUST, JSON)
_PUBLISHED_HEAT = "that of the figures published for this launch, else the model's"
_CONCURRENCY = "concurrent requests, one level after the other, such as 1,2,4,8; each sends enough to keep them busy"
_SLO = "report how many requests stay within these seconds (goodput): ttft=S,tpot=S,e2e=S, or some of them"
_RAMP = "seconds over which the load rises; requests that start meanwhile do not count (default: 0)"
_WARM_UP = "how often to send them first as a warm-up, one at a time, not counted (default: 0)"
_BENCH = (
    *SERVER,
    QUICK_DATASET,
    option("--rounds N", "how often to send them", default=1),
    option("--warm-up N", _WARM_UP, default=0),
    SCALE,
    option(_HEAT, f"sampling temperature (default: {_PUBLISHED_HEAT})"),
    TOP_P,
    option("--top-k K", "sample from this many of the likeliest tokens (default: like the temperature)"),
    option("--seed N", "of the order, the texts' tags and the sampling", default=0),
    switch("--fixed", "generate the full answer length, past the model's end token"),
    option("--concurrency N,...", _CONCURRENCY, default=(1,)),
    option("--rate N", "requests per second, at random times (Poisson), instead of requests at a time", default=0.0),
    option("--ramp S", _RAMP, default=0.0),
    option("--slo KEY=S,...", _SLO, default=""),
    switch("--limit", "also print how near the steps are to what the GPU's memory bandwidth allows"),
    JSON,
)
_DETAILS = switch("--details", "also print the statistics, boots and latencies behind the verdict")
_VARY = (
    "what is varied: stock,ours (the published command alone against this launch, or what its plan offers), "
    "url=URL,RECIPE or url=URL,URL (servers that already run, which are never stopped), mode, spec=on,off, n, "
    "profile, variant, vllm, engine, patch.NAME=on,off, start.NAME=on,off, env.NAME, "
    "speculation.KEY or a flag of vllm serve; those of the prefix cache with --dataset repeat alone, since other "
    "prompts are made unique so that no cache answers (default: mode=eager,compile)"
)
_HONEST = "at least two boots per arm, in mirrored order: without it a verdict is only suggestive"
_KEEP_CACHE = "share your compile cache; by default each arm starts with an empty one"
_MEASURE = "what to compare: speed, or start (the seconds until a server is ready; no prompts are sent)"
_COLD = "with --measure start: empty the caches of an arm before each boot (default: its first boot fills them)"
_NO_ANSWERS = "do not keep the answers' text (default: kept in the experiment's folder, without secrets)"
_ARM_HEAT = "0, or the model's own if drafting or acceptance is varied"
_AB_RUN = (
    *RECIPE_OR_PAIR,
    option("--vary KEY=V,V", _VARY, default="mode=eager,compile"),
    switch("--honest", _HONEST),
    option("--boots N", "boots per arm (default: 2 with --honest, else 1)"),
    *LOAD,
    option("--concurrency N,N", _LEVELS.format("1"), default=(1,)),
    option(_HEAT, f"sampling temperature (default: {_ARM_HEAT})"),
    TOP_P,
    switch("--keep-cache", _KEEP_CACHE, dest="own_cache", action="store_false"),
    option("--measure WHAT", _MEASURE, dest="measures_start", default=False),
    switch("--cold", _COLD),
    switch("--no-answers", _NO_ANSWERS, dest="keep_answers", action="store_false"),
    _DETAILS,
    *ADDRESS,
    *BEGIN,
)
_PLAY = (
    EXPERIMENT,
    option("--arm VALUE", "the arm to play beside the first one, by its value (default: the second)"),
    option("--prompt KIND", "the prompt to play (default: the one with the median ratio)"),
    option("--svg FILE", "write a picture of the moment when the faster arm finishes"),
)
_MORE_BOOTS = option("--boots N", "boots to add to each arm (default: 2)", default=2)
_AB_ACTIONS = {
    "run": Action("launch each arm in turn, measure, and say which is faster", _AB_RUN),
    "list": Action("list the experiments of this machine"),
    "attach": Action("follow an experiment, or show its report", (EXPERIMENT, _DETAILS)),
    "play": Action("replay the answers of two arms side by side at their speed, in the panel or as a file", _PLAY),
    "stop": Action("stop an experiment and its server; it can be resumed", (EXPERIMENT,)),
    "resume": Action("resume an experiment that ended early", (EXPERIMENT, _DETAILS, DETACH, TRUST)),
    "extend": Action(
        "add boots to a finished experiment, and judge it again",
        (EXPERIMENT, _DETAILS, _MORE_BOOTS, DETACH, TRUST),
    ),
    "remove": Action("delete an experiment; its runs stay", (ONE_EXPERIMENT,)),
}
_AXES = "try only these values, written as for `ab`; may be repeated"
_MAP = (
    "instead show where speculation pays: with against without it for each kind of prompt and number of streams, "
    "and the launch that follows; --vary n=0,4,8 compares numbers of drafts"
)
_KINDS = "of a map: code,JSON,questions,prose,agent,long, or kinds of --dataset (default: all that fit the context)"
_TUNE_RUN = (
    RECIPE,
    option("--budget TIME", "how long all boots together may take, such as 45m or 2h (default: 30m)"),
    switch("--map", _MAP),
    option("--kinds KIND,KIND", _KINDS, default=""),
    option("--boots N", "of a map: boots with and without speculation (default: 2)"),
    option("--vary KEY=V,V", _AXES, dest="axes", action="append", default=[]),
    option("--name NAME", "the recipe to write (default: RECIPE-tuned)", default=""),
    *LOAD,
    option("--concurrency N,N", _LEVELS.format("1, of a map 1,4,16")),
    option(_HEAT, "sampling temperature (default: 0; above 0 sampling methods are tried, too)", default=0.0),
    *BEGIN,
)
_KEEP = (
    EXPERIMENT,
    option("--name NAME", "the recipe's name (default: as chosen when the tune began)"),
    switch("--overwrite", "replace your recipe of that name"),
)
_TUNE_ACTIONS = {
    "run": Action("try settings in turn, keep the fastest, and report the gain", _TUNE_RUN),
    "attach": Action("follow a tune, or show its results", (EXPERIMENT,)),
    "stop": Action("stop a tune and its server; it can be resumed", (EXPERIMENT,)),
    "resume": Action("resume a tune that ended early", (EXPERIMENT, DETACH, TRUST)),
    "keep": Action("save the best setting so far as your recipe, at any time", _KEEP),
}
_RECIPE_OR_SERVER = "a recipe (launched, and stopped again, unless a server of it is running), a run, or a server's URL"
_LOSSLESS = "run only that check: with speculation, then without; exit code 7 if answers change by more than rounding"
_PARTS = (
    switch("--without-output", "skip the check whether speculation changes answers, which takes two more boots"),
    switch("--lossless", _LOSSLESS),
)
_LENGTH = "lengthen or shorten the answers (default: 0.25, which is 16 to 512 tokens in quick)"
_EXACT = "on the CPU: run both servers in float32, whose rounding is too small to change an answer"
_VERIFY_BOOTS = "with --lossless: boots of each; two show how far boots of one arm differ (default: 1)"
_VERIFY = (
    argument("recipe", "RECIPE|RUN|URL", _RECIPE_OR_SERVER),
    *ADDRESS,
    OneOf(_PARTS),
    option("--prompts N", "how many prompts each boot answers, at temperature 0 (default: 20)", default=20),
    option("--boots N", _VERIFY_BOOTS),
    QUICK_DATASET,
    option("--scale X", _LENGTH, default=0.25),
    SEED,
    switch("--exact", _EXACT),
    *BEGIN,
    JSON,
)
# `verify` calls `ab run` and `up`, which read these.
_VERIFY_VALUES: dict[str, Any] = {
    "temperature": 0.0,
    "checks_output": True,
    "wait": True,
    "foreground": False,
    "bench": False,
    "force": "",
    "every": 100_000,
}
_FORMATS = ("md", "json", "svg", "vllm-bench")
_FORMAT = "md (default), json, svg; or vllm-bench: the JSON of `vllm bench serve`"
_NAMES = "an A/B, a run, or a report's JSON file (default: the newest A/B); or: compare ONE OTHER"
_SUBMIT = "write the files that spark-arena or club-3090 takes, into the folder of -o or the current one"
_REPORT = (
    argument("names", "RUN|AB", _NAMES, nargs="*"),
    option("--format FORMAT", _FORMAT, choices=_FORMATS, default="md"),
    option("--submit FORM", _SUBMIT, choices=("spark-arena", "club-3090")),
    option("-o --output FILE", "the file to write instead of stdout"),
    JSON,
)
_OTHERS_NAME = option("--name NAME", "the recipe's name (default: that of the file or model)")
_REPLACE = switch("--replace", "replace your recipe of that name")
_SOURCE = argument("source", "FILE|URL", "its path, or its https address")
_NEW = (
    argument("name", "NAME", "its name: lower case, digits, . _ -"),
    option("--like RECIPE", "copy this recipe instead of the template"),
    option("--target MODEL", "derive it from this model's config.json: a hub repository or a folder"),
    DRAFTER,
    METHOD,
)
_CATALOGUE = (
    argument("pair", "PAIR", "show this pair, with its sources", nargs="?"),
    switch("--fits", "only pairs that fit into the memory"),
    switch("--unknown", "only pairs of unknown size, which may fit"),
    METHOD,
    option("--gpu CLASS", "the machine, such as gb10 (default: the GPU here)"),
)
_FILES = argument("files", "FILE", "names or files (default: all recipes)", nargs="*")
_COMMAND = argument("words", "WORD", "the command behind --, or all of it in quotes", nargs="+")
_RECIPES_ACTIONS = {
    "list": Action("list recipes, and the machines that they are for"),
    "check": Action("read recipe files and say what is wrong with them", (_FILES,)),
    "show": Action("print a recipe's file and where it is", (RECIPE,)),
    "new": Action("create a recipe of your own", _NEW),
    "schema": Action("print the JSON Schema of recipe files, for editors"),
    "catalogue": Action("list published pairs, also those without a recipe", _CATALOGUE),
    "add": Action(
        "check a recipe from elsewhere and add it to yours; nothing in it is run", (_SOURCE, _OTHERS_NAME, _REPLACE)
    ),
    "import": Action("make a recipe of a command: import -- vllm serve MODEL …", (_COMMAND, _OTHERS_NAME, _REPLACE)),
    "update": Action("check a newer catalogue and replace the one here", (_SOURCE,)),
}
_VERBOSE = switch("-v --verbose", "show every detail")
_PAGE_CACHE = switch("--release-page-cache", "release the page cache of the models' files")
_DOCTOR = (ANY_RECIPE, _PAGE_CACHE, *PLAN, INSTALL_PEERS, JSON)
_RECORDING = "`sample` (shipped, from a real H200), a file of `export`, or a run as in `ps --all`"
_AT = "start this long after the launch (default: in the panel shortly before it is up or ends, as lines 0)"
_REPLAY = (
    argument("recording", "RUN|FILE", _RECORDING),
    option("--speed N", "playback speed (default: 4 in the panel, unlimited as lines)"),
    option("--at SECONDS", _AT),
    switch("--plain", "print lines instead of opening the panel"),
    *WATCH,
)
_PROMPTS = "keep the prompts and answers that the log may quote; access tokens are always removed"
_EXPORT = (
    RUN,
    option("-o --output FILE", "the file to write (default: RUN.zip here)"),
    switch("--with-prompts", _PROMPTS),
    JSON,
)
_ENGINE = argument("engine", "ENGINE", "its folder, the folder's name, or a prefix of that")
_FOLDER = argument("folder", "FOLDER", "the environment's folder, with bin/vllm in it")
_ENGINE_ACTIONS = {
    "list": Action("the engines of this machine"),
    "install": Action("build the engine that a recipe needs, without launching", (RECIPE, *PLAN, TRUST)),
    "inspect": Action("show its contents, and the status of its patches", (_ENGINE,)),
    "remove": Action("delete it", (_ENGINE,)),
    "adopt": Action("use an environment that you made yourself", (_FOLDER,)),
}
_PATCH = (
    argument("recipe", "RECIPE", "its patches and its engine (default: all patches, in --engine)", nargs="?"),
    option("--only PATCH", "this patch only; may be repeated", action="append", default=[]),
    *PLAN,
)
_DRY_RUN = switch("--dry-run", "say what would be done, without doing it")
_PATCH_ACTIONS = {
    "apply": Action("make an engine with the patches that it needs", (*_PATCH, _DRY_RUN, TRUST)),
    "status": Action("show the status of each patch", _PATCH),
    "diff": Action("show their changes as a unified diff", _PATCH),
    "revert": Action("nothing to undo: print the unpatched engine, which still exists", _PATCH),
    "verify": Action("compare the files with the installed ones; exit code 5 if any differs", _PATCH),
}
_AGE = "only runs that were last written to at least this long ago, such as 12h (default: 30d)"
_PRUNE = (
    option("--older-than TIME", _AGE, default=30 * 86_400.0),
    OneOf((switch("--yes", "remove them"), switch("--dry-run", "only list them (as without --yes)"))),
)
_THESE_STARTS = argument("recipe", "RECIPE", "only this recipe's starts", nargs="?")
_RUNS_ACTIONS = {
    "list": Action("as `ps --all`"),
    "history": Action("how long starts took here: eager and compile, cold and cached", (_THESE_STARTS,)),
    "prune": Action("list runs that ended long ago; with --yes remove them", _PRUNE),
}
_SHELL = argument("shell", "SHELL", "bash, zsh or fish", choices=("bash", "zsh", "fish"))
_PLAIN = switch("--plain", "print lines instead of opening the panel")
_ATTACH_VALUES = {"foreground": False, "detach": False}  # `attach` calls a part of `up`, which reads these
_LISTED = "actions (default: list)"
_AB_TITLE = "actions (`ab RECIPE` is short for `ab run RECIPE`)"
_TUNE_TITLE = "actions (`tune RECIPE` is short for `tune run RECIPE`; `ab list` and `ab remove` know tunes, too)"

COMMANDS = {
    "up": ProgramCommand("run", "launch a recipe and watch it", "up", _UP),
    "attach": ProgramCommand(
        "run", "watch a server that runs, in the panel or as lines", "up", (FOREIGN_RUN, _PLAIN, *WATCH),
        values=_ATTACH_VALUES,
    ),
    "ps": ProgramCommand("run", "list the servers, and how other programs reach them", "servers", _PS),
    "logs": ProgramCommand("run", "print a server's log", "logs", _LOGS),
    "stop": ProgramCommand("run", "stop a server and its processes, or those that outlived one", "servers", _STOP),
    "chat": ProgramCommand("run", "talk with a server, a line at a time; also in a pipe", "chat", _CHAT),
    "service": ProgramCommand("run", "print a systemd --user unit that runs a recipe", "plan", _SERVICE),
    "bench": ProgramCommand("measure", "send a suite of prompts and measure each request", "bench", _BENCH),
    "ab": ProgramCommand(
        "measure", "compare a recipe with one setting varied, such as eager with compile", "experiments",
        actions=_AB_ACTIONS, default="run", title=_AB_TITLE,
    ),
    "tune": ProgramCommand(
        "measure", "find the fastest setting of a recipe on this machine", "experiments",
        actions=_TUNE_ACTIONS, default="run", title=_TUNE_TITLE,
    ),
    "verify": ProgramCommand(
        "measure", "check that a pair works, and that speculation changes no answer", "verify", _VERIFY,
        values=_VERIFY_VALUES,
    ),
    "report": ProgramCommand(
        "measure", "report a run or an A/B as Markdown, JSON or a picture, or compare two", "report", _REPORT
    ),
    "gpus": ProgramCommand("look", "show the GPUs", "plan", (JSON,)),
    "recipes": ProgramCommand(
        "look", "list, check, show, create, add or import recipes", "recipes",
        actions=_RECIPES_ACTIONS, default="list", title=_LISTED,
    ),
    "plan": ProgramCommand(
        "look", "show what launching a recipe would do", "plan",
        (*RECIPE_OR_PAIR, *PLAN, INSTALL_PEERS, _VERBOSE, JSON),
    ),
    "doctor": ProgramCommand("look", "check the machine, and a recipe's launch on it", "plan", _DOCTOR),
    "why": ProgramCommand("look", "say why a server failed or is slow, and what may help", "logs", _WHY),
    "replay": ProgramCommand("look", "replay a recorded run", "recordings", _REPLAY),
    "export": ProgramCommand("look", "write a run to one file for `replay`", "recordings", _EXPORT),
    "engine": ProgramCommand(
        "set up", "list, install, inspect, adopt or remove vLLM environments", "engines", actions=_ENGINE_ACTIONS
    ),
    "patch": ProgramCommand(
        "set up", "show, apply or verify patches of vLLM's files", "engines", actions=_PATCH_ACTIONS
    ),
    "disk": ProgramCommand("set up", "show what uses disk space, and how to remove it", "housekeeping", (JSON,)),
    "runs": ProgramCommand(
        "set up", "list all runs and how long starts took, or remove old ones", "servers",
        actions=_RUNS_ACTIONS, default="list", title=_LISTED,
    ),
    "completion": ProgramCommand(
        "set up", "print a shell completion script", "housekeeping", (_SHELL,)
    ),
    "agent": ProgramCommand(
        "", "started by another dflash-tui over ssh", "hosts", (argument("verb", "VERB", "what to do"),)
    ),
}  # fmt: skip
