"""Options and arguments that several commands have, with defaults from DFLASH_TUI_ variables, and their values."""

from __future__ import annotations

import argparse
import math
import os
from typing import Any

from dflash_tui.common.secrets import looks_secret

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_ON = {"1", "true", "yes", "on"}


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Add what changes the plan of a launch."""
    add_option(parser, "--mode", type=_mode, metavar="MODE", help="eager, graphs or compile")
    add_method_option(parser)
    add_option(parser, "--port", type=_port, metavar="PORT", help="port on 127.0.0.1")
    tokens = "tokens that the drafter proposes per step; 0 is without speculation"
    add_option(parser, "--num-speculative-tokens", type=_tokens, metavar="N", help=tokens)
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
    from dflash_tui.planning.methods import Method

    text = f"how tokens are drafted: {', '.join(Method)}"
    add_option(parser, "--method", type=_method, metavar="METHOD", help=text)


def add_trust_option(parser: argparse.ArgumentParser) -> None:
    """Add `--trust`, which no variable sets: it is said of one recipe and its patches."""
    trust = "trust a recipe and its patches that are not shipped, until they change; `recipes check` shows them"
    parser.add_argument("--trust", action="store_true", help=trust)


def add_install_peers_option(parser: argparse.ArgumentParser, which: str = "a --peer") -> None:
    """Add `--install-peers`, which no variable sets: it is said of the hosts beside it, `which` are meant."""
    install = f"say yes to installing this program on {which} that lacks it, in our own folder there"
    parser.add_argument("--install-peers", action="store_true", help=install)


def add_watch_options(parser: argparse.ArgumentParser) -> None:
    """Add how often figures are printed, and `--json`."""
    every = "seconds between two lines (default 5)"
    add_option(parser, "--every", type=parse_positive, default=5, metavar="SECONDS", help=every)
    add_json_option(parser)


def add_json_option(parser: argparse.ArgumentParser, **settings: Any) -> None:
    """Add `--json`."""
    add_option(parser, "--json", action="store_true", help="one JSON object per line on stdout", **settings)


def add_recipe_argument(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Add the recipe; where it is `optional`, two models can be named instead."""
    text = "a recipe's name, or the path of a recipe file"
    if not optional:
        parser.add_argument("recipe", metavar="RECIPE", help=text)
        return
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help=text)
    add_pair_options(parser, "a model to serve without a recipe: a hub repository or a folder")


def add_pair_options(parser: argparse.ArgumentParser, target: str) -> None:
    """Add the models of a pair that nobody wrote a recipe for."""
    parser.add_argument("--target", metavar="MODEL", help=target)
    parser.add_argument("--drafter", metavar="MODEL", help="its drafter; without one the target's own head drafts")


def add_experiment_argument(parser: argparse.ArgumentParser, *, optional: bool = True) -> None:
    """Add the A/B or tune that an action is about."""
    text = "its id, the start of it, or a recipe (default: the one that runs, or the newest)"
    parser.add_argument("experiment", metavar="ID", nargs="?" if optional else None, help=text)


def add_detach_option(parser: argparse.ArgumentParser) -> None:
    """Add `--detach` of what goes on in a process of its own."""
    add_option(parser, "--detach", action="store_true", help="return at once; it continues in the background")


def add_begin_options(parser: argparse.ArgumentParser) -> None:
    """Add what says how an experiment begins, and what of the launch all its boots have in common."""
    add_option(parser, "--stop-running", action="store_true", help="stop servers of yours that would be in the way")
    add_option(parser, "--yes", action="store_true", help="begin without asking")
    add_detach_option(parser)
    add_plan_options(parser)
    add_install_peers_option(parser)
    add_trust_option(parser)
    add_json_option(parser)


def add_run_argument(parser: argparse.ArgumentParser, also: str = "") -> None:
    """Add the run, which may be left away; `also` says what else may be named."""
    text = f"a run, the start of its name, or a recipe (default: the newest server){also}"
    parser.add_argument("run", metavar="RUN", nargs="?", help=text)


def add_option(parser: argparse.ArgumentParser, *names: str, **settings: Any) -> None:
    """Add an option whose default is its DFLASH_TUI_ variable."""
    variable = "DFLASH_TUI_" + names[-1].lstrip("-").upper().replace("-", "_")
    settings["help"] = f"{settings['help']} [env: {variable}]"
    if (value := os.environ.get(variable)) and settings.get("default") is not argparse.SUPPRESS:
        settings["default"] = read_switch(variable) if settings.get("action") == "store_true" else value
    parser.add_argument(*names, **settings)


def add_suite_option(parser: argparse.ArgumentParser, default: str | None, *, words: str = "") -> None:
    """Add the option that names the prompts.

    Args:
        parser: what it is added to.
        default: the suite without it.
        words: what stands for the default where that is None.
    """
    about = (
        "the prompts: quick, field, contexts, seed-q1q2, space-invaders, one of your own; a data set (mt-bench, "
        "spec-bench, speed-bench, gsm8k, humaneval, sharegpt; NAME:N for N prompts, 80 without); random:IN,OUT[,N] in "
        "tokens, contexts:1k-128k, repeat[:SUITE] (the same texts again and again, for a prefix cache); or a file "
        f"(default: {default or words})"
    )
    add_option(parser, "--dataset", "--suite", dest="suite", default=default, metavar="NAME|FILE", help=about)


def read_switch(variable: str) -> bool:
    """Return whether a variable turns something on."""
    return os.environ.get(variable, "").lower() in _ON


def _number(text: str, least: float, most: float, *, whole: bool) -> float:
    try:
        number = int(text) if whole else float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        kind = "a whole number" if whole else "a number"
        low, high = (f"{bound:.0f}" if whole else f"{bound:g}" for bound in (least, most))
        raise argparse.ArgumentTypeError(f"expected {kind} from {low} to {high}, not '{text}'")
    return number


def parse_positive(text: str) -> int:
    """Return a whole number from 1."""
    from dflash_tui.benchmark.prompts import MOST_ROUNDS

    return int(_number(text, 1, MOST_ROUNDS, whole=True))


def _port(text: str) -> int:
    from dflash_tui.planning.field_types import HIGHEST_PORT

    return int(_number(text, 1, HIGHEST_PORT, whole=True))


def _tokens(text: str) -> int:
    return int(_number(text, 0, 64, whole=True))


def parse_boots(text: str) -> int:
    """Return how many boots an arm may have."""
    return int(_number(text, 1, 50, whole=True))


def parse_streams(text: str) -> tuple[int, ...]:
    """Return numbers of requests at a time, with commas between."""
    return tuple(int(_number(word, 1, 1024, whole=True)) for word in text.split(","))


def parse_rate(text: str) -> float:
    """Return how many requests may arrive per second."""
    return _number(text, 0.001, 10_000, whole=False)


def parse_ramp(text: str) -> float:
    """Return over how many seconds a load may rise."""
    return _number(text, 0, 3600, whole=False)


def parse_scale(text: str) -> float:
    """Return how many times their usual length answers may have."""
    from dflash_tui.benchmark.prompts import MOST_SCALE

    return _number(text, 0.001, MOST_SCALE, whole=False)


def parse_speed(text: str) -> float:
    """Return how many times as fast a recording may be played."""
    return _number(text, 0.1, 100_000, whole=False)


def parse_seconds(text: str) -> float:
    """Return seconds."""
    return _number(text, 0, 1e9, whole=False)


def parse_budget(text: str) -> float:
    """Return the seconds of a budget with its unit, such as 30m."""
    return _parse_time(text, 1)


def parse_time(text: str) -> float:
    """Return the seconds of a time with its unit, such as 12h or 30d; it may be none."""
    return _parse_time(text, 0)


def _parse_time(text: str, least: float) -> float:
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS:
        raise argparse.ArgumentTypeError(f"expected a time such as 30m or 2h, not '{text}'")
    return _number(number, least, 10_000, whole=False) * _UNITS[unit]


def parse_seed(text: str) -> int:
    """Return a seed that vLLM takes, too."""
    from dflash_tui.benchmark.prompts import MOST_SEED

    return int(_number(text, 0, MOST_SEED, whole=True))


def parse_temperature(text: str) -> float:
    """Return a sampling temperature that vLLM takes."""
    from dflash_tui.benchmark.prompts import MOST_TEMPERATURE

    return _number(text, 0, MOST_TEMPERATURE, whole=False)


def parse_top_p(text: str) -> float:
    """Return a share of the probability that vLLM takes: above 0, at most 1."""
    share = _number(text, 0, 1, whole=False)
    if not share:
        raise argparse.ArgumentTypeError("expected a share above 0, at most 1")
    return share


def parse_recorded_text(text: str) -> str:
    """Return free text, which is recorded and shown, and so holds no secret."""
    if looks_secret(text):
        raise argparse.ArgumentTypeError("it looks like a secret, and is recorded")
    return text


def _method(text: str) -> str:
    from dflash_tui.planning.methods import Method

    if text not in set(Method):
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(Method)}, not '{text}'")
    return text


def _mode(text: str) -> str:
    if text not in {"eager", "graphs", "compile"}:
        raise argparse.ArgumentTypeError(f"expected eager, graphs or compile, not '{text}'")
    return text
