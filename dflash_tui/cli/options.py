"""Options and arguments shared by commands, their types, and their defaults from DFLASH_TUI_ variables."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterable
from typing import Any

from dflash_tui.common.secrets import looks_secret
from dflash_tui.planning.methods import Method

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_ON = {"1", "true", "yes", "on"}
_NUCLEUS = "draw from the likeliest tokens that have this share of the probability (default: the model's)"


def add_option(parser: argparse.ArgumentParser, *names: str, **settings: Any) -> None:
    """Add an option with a value, which defaults to its DFLASH_TUI_ variable."""
    if value := os.environ.get("DFLASH_TUI_" + names[-1].lstrip("-").upper().replace("-", "_")):
        settings["default"] = value
    parser.add_argument(*names, **settings)


def add_switch(parser: argparse._ActionsContainer, *names: str, action: str = "store_true", **settings: Any) -> None:
    """Add an option without a value."""
    parser.add_argument(*names, action=action, **settings)


def is_json_default() -> bool:
    """Whether DFLASH_TUI_JSON asks for JSON."""
    return os.environ.get("DFLASH_TUI_JSON", "").lower() in _ON


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that change the plan of a launch."""
    modes = ("eager", "graphs", "compile")
    add_option(parser, "--mode", type=one_of(modes), metavar="MODE", help="eager, graphs or compile")
    add_method_option(parser)
    add_option(parser, "--port", type=whole_number(1, 65_535), metavar="PORT", help="port on 127.0.0.1")
    tokens = "tokens that the drafter proposes per step; 0 is without speculation"
    add_option(parser, "--num-speculative-tokens", type=whole_number(0, 64), metavar="N", help=tokens)
    set_up = parser.add_mutually_exclusive_group()
    fast = "the fast set-up, with split verification, also where its answers were not compared with the published one's"
    add_switch(set_up, "--fast", dest="set_up", action="store_const", const="fast", help=fast)
    add_switch(set_up, "--published", dest="set_up", action="store_const", const="published", help="the published one")
    streams = "requests at a time that the server is for: its max-num-seqs; the fast set-up has 8"
    add_option(parser, "--streams", type=whole_number(1, 1024), metavar="N", help=streams)
    gpu = "the GPU: index, UUID, or a class such as gb10 (for `plan`, one that is not here)"
    add_option(parser, "--gpu", metavar="GPU", help=gpu)
    add_option(parser, "--profile", metavar="NAME", help="stock or seed, as the recipe has them")
    add_option(parser, "--variant", metavar="NAME", help="another way to run the pair, if it has one")
    add_option(parser, "--vllm", metavar="VERSION", help="another vLLM release than the recipe's")
    add_option(parser, "--engine", metavar="ENGINE", help="an engine of `engine list` instead")
    peer = "another host that serves it together with this one, as ssh calls it; may be repeated"
    parser.add_argument("--peer", dest="peers", action="append", default=[], metavar="HOST", help=peer)
    link = "the interface of this machine, or an address, whose subnet the hosts share"
    add_option(parser, "--link", metavar="NAME", help=link)
    change = (
        "change any flag of vllm serve, env.NAME, speculation.KEY, restart.KEY, target.model or drafter.model; "
        "may be repeated"
    )
    parser.add_argument("--set", dest="settings", action="append", metavar="KEY=VALUE", help=change)


def add_method_option(parser: argparse.ArgumentParser) -> None:
    """Add `--method`."""
    text = f"how tokens are drafted: {', '.join(Method)}"
    add_option(parser, "--method", type=one_of(Method), metavar="METHOD", help=text)


def add_trust_option(parser: argparse.ArgumentParser) -> None:
    """Add `--trust`, which has no variable: it is for one recipe and its patches."""
    trust = "trust a recipe and its patches that are not shipped, until they change; `recipes check` shows them"
    parser.add_argument("--trust", action="store_true", help=trust)


def add_install_peers_option(parser: argparse.ArgumentParser, which: str = "a --peer") -> None:
    """Add `--install-peers`, which has no variable: it is for the hosts of one command line."""
    install = f"say yes to installing this program on {which} that lacks it, in our own folder there"
    parser.add_argument("--install-peers", action="store_true", help=install)


def add_force_option(parser: argparse.ArgumentParser) -> None:
    """Add `--force`."""
    force = "launch although a check fails; the reason is recorded"
    parser.add_argument("--force", type=parse_recorded_text, metavar="REASON", help=force)


def add_watch_options(parser: argparse.ArgumentParser) -> None:
    """Add `--every` and `--json`."""
    every = "seconds between two lines (default 5)"
    add_option(parser, "--every", type=parse_positive, default=5, metavar="SECONDS", help=every)
    add_json_option(parser)


def add_json_option(parser: argparse.ArgumentParser, **settings: Any) -> None:
    """Add `--json`."""
    settings = {"default": is_json_default()} | settings
    add_switch(parser, "--json", help="one JSON object per line on stdout", **settings)


def add_recipe_argument(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Add the recipe; if `optional`, `--target` and `--drafter` may replace it."""
    text = "a recipe's name, or the path of a recipe file"
    parser.add_argument("recipe", metavar="RECIPE", nargs="?" if optional else None, help=text)
    if optional:
        add_pair_options(parser, "a model to serve without a recipe: a hub repository or a folder")


def add_pair_options(parser: argparse.ArgumentParser, target: str) -> None:
    """Add `--target` and `--drafter`, for a pair without a recipe."""
    parser.add_argument("--target", metavar="MODEL", help=target)
    parser.add_argument("--drafter", metavar="MODEL", help="its drafter; without one the target's own head drafts")


def add_run_argument(parser: argparse.ArgumentParser, also: str = "") -> None:
    """Add the run, which is optional; the help ends with `also`."""
    text = f"a run, the start of its name, or a recipe (default: the newest server){also}"
    parser.add_argument("run", metavar="RUN", nargs="?", help=text)


def add_server_argument(parser: argparse.ArgumentParser) -> None:
    """Add the run or the address of a server, and the options of an address."""
    add_run_argument(parser, "; or http(s)://HOST:PORT of any OpenAI-compatible server")
    add_address_options(parser)


def add_address_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a server's address, which have no variables: they are for one server."""
    key = "of a URL: the variable that holds its API key; nothing else of the environment is sent"
    parser.add_argument("--key-env", metavar="NAME", help=key)
    parser.add_argument("--model", metavar="NAME", help="of a URL: the model to ask, where it serves several")


def add_experiment_argument(parser: argparse.ArgumentParser, *, optional: bool = True) -> None:
    """Add the A/B or tune of an action."""
    text = "its id, the start of it, or a recipe (default: the one that runs, or the newest)"
    parser.add_argument("experiment", metavar="ID", nargs="?" if optional else None, help=text)


def add_detach_option(parser: argparse.ArgumentParser) -> None:
    """Add `--detach` of work that continues in a process of its own."""
    add_switch(parser, "--detach", help="return at once; it continues in the background")


def add_begin_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that begin an experiment, and the launch options that all its boots share."""
    add_switch(parser, "--stop-running", help="stop servers of yours that would be in the way")
    add_switch(parser, "--yes", help="begin without asking")
    add_detach_option(parser)
    add_plan_options(parser)
    add_install_peers_option(parser)
    add_trust_option(parser)


def add_load_options(
    parser: argparse.ArgumentParser, streams: tuple[int, ...] | None = (1,), default: str = "1"
) -> None:
    """Add the options of the requests that an experiment sends to each boot; `default` describes that of `streams`."""
    add_option(
        parser, "--rounds", type=parse_positive, default=1, metavar="N", help="how often a boot sends each prompt"
    )
    add_suite_option(parser, None, words="field, or quick where the server takes no long context")
    add_scale_option(parser)
    ends = "answers of full length, past the model's own end; or not (default: for random weights alone)"
    parser.add_argument("--fixed", action=argparse.BooleanOptionalAction, help=ends)
    add_seed_option(parser)
    levels = f"requests at a time, one level after the other in the same boot (default: {default})"
    add_option(parser, "--concurrency", type=parse_concurrency, default=streams, metavar="N,N", help=levels)


def add_scale_option(parser: argparse.ArgumentParser) -> None:
    """Add `--scale`."""
    scale = "lengthen or shorten the answers (default: the recipe's)"
    add_option(parser, "--scale", type=parse_scale, metavar="X", help=scale)


def add_seed_option(parser: argparse.ArgumentParser, seed: str = "shuffles the order of the prompts") -> None:
    """Add `--seed`."""
    add_option(parser, "--seed", type=parse_seed, default=0, metavar="N", help=seed)


def add_temperature_option(parser: argparse.ArgumentParser, default: str, value: float | None = None) -> None:
    """Add `--temperature`; `default` describes its default in the help."""
    heat = f"sampling temperature (default: {default})"
    add_option(parser, "--temperature", type=parse_temperature, default=value, metavar="T", help=heat)


def add_top_p_option(parser: argparse.ArgumentParser) -> None:
    """Add `--top-p`."""
    add_option(parser, "--top-p", type=parse_top_p, metavar="P", help=_NUCLEUS)


def add_suite_option(parser: argparse.ArgumentParser, default: str | None, *, words: str = "") -> None:
    """Add `--dataset`, the prompts; `words` describes a default of None in the help."""
    about = (
        "the prompts: quick, field, contexts, map, agents, seed-q1q2, space-invaders, one of your own; a data set "
        "(mt-bench, spec-bench, speed-bench, gsm8k, humaneval, sharegpt; NAME:N for N prompts, 80 without); "
        "NAME:KIND,KIND for some kinds of prompt; random:IN,OUT[,N] in tokens, contexts:1k-128k, repeat[:SUITE] (the "
        "same texts again and again, for a prefix cache); or a file "
        f"(default: {default or words})"
    )
    add_option(parser, "--dataset", "--suite", dest="suite", default=default, metavar="NAME|FILE", help=about)


def number(least: float, most: float) -> Callable[[str], float]:
    """Return the type of an option that takes a number from `least` to `most`."""

    def parse(text: str) -> float:
        return _read_number(float, text, least, most)

    return parse


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return the type of an option that takes a whole number from `least` to `most`."""

    def parse(text: str) -> int:
        return int(_read_number(int, text, least, most))

    return parse


def _read_number(kind: type[int | float], text: str, least: float, most: float) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        words = (
            f"a whole number from {least:.0f} to {most:.0f}" if kind is int else f"a number from {least:g} to {most:g}"
        )
        raise argparse.ArgumentTypeError(f"expected {words}, not '{text}'")
    return value


def _limited(kind: type[int | float], least: float, most: str) -> Callable[[str], Any]:
    """Return the type of a number up to a limit in `benchmark.prompts`, imported on use because that is slow."""

    def parse(text: str) -> float:
        from dflash_tui.benchmark import prompts

        return _read_number(kind, text, least, getattr(prompts, most))

    return parse


parse_positive = _limited(int, 1, "MOST_ROUNDS")
parse_scale = _limited(float, 0.001, "MOST_SCALE")
parse_seed = _limited(int, 0, "MOST_SEED")
parse_temperature = _limited(float, 0, "MOST_TEMPERATURE")


def parse_concurrency(text: str) -> tuple[int, ...]:
    """Parse levels of concurrency separated by commas."""
    return tuple(map(whole_number(1, 1024), text.split(",")))


def parse_top_p(text: str) -> float:
    """Parse a top_p that vLLM accepts: above 0, at most 1."""
    share = number(0, 1)(text)
    if not share:
        raise argparse.ArgumentTypeError("expected a share above 0, at most 1")
    return share


def parse_measure(text: str) -> bool:
    """Return True for `start`, False for `speed`."""
    return one_of(("speed", "start"))(text) == "start"


def parse_budget(text: str) -> float:
    """Return the seconds of a time such as 30m, which is at least one unit."""
    return _parse_time(text, 1)


def parse_time(text: str) -> float:
    """Return the seconds of a time such as 12h or 30d."""
    return _parse_time(text, 0)


def _parse_time(text: str, least: float) -> float:
    value, unit = text[:-1], text[-1:]
    if unit not in _UNITS:
        raise argparse.ArgumentTypeError(f"expected a time such as 30m or 2h, not '{text}'")
    return number(least, 10_000)(value) * _UNITS[unit]


def parse_recorded_text(text: str) -> str:
    """Return a text that is recorded; raise ArgumentTypeError if it looks like a secret."""
    if looks_secret(text):
        raise argparse.ArgumentTypeError("it looks like a secret, and is recorded")
    return text


def one_of(names: Iterable[str]) -> Callable[[str], str]:
    """Return the type of an option that takes one of `names`, also from a variable."""

    def parse(text: str) -> str:
        if text not in {*names}:
            raise argparse.ArgumentTypeError(f"expected one of {', '.join(names)}, not '{text}'")
        return text

    return parse
