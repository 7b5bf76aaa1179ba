"""Options and arguments that several commands have, with defaults from DFLASH_TUI_ variables, and their values."""

from __future__ import annotations

import argparse
import math
import os
from typing import Any

from dflash_tui.common.redaction import looks_secret

_ON = {"1", "true", "yes", "on"}


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Add what changes the plan of a launch."""
    add_option(parser, "--mode", type=_mode, metavar="MODE", help="eager, graphs or compile")
    add_option(parser, "--port", type=_port, metavar="PORT", help="port on 127.0.0.1")
    tokens = "tokens that the drafter proposes per step; 0 is without speculation"
    add_option(parser, "--num-speculative-tokens", type=_tokens, metavar="N", help=tokens)
    gpu = "the GPU: index, UUID, or a class such as gb10 (for `plan`, one that is not here)"
    add_option(parser, "--gpu", metavar="GPU", help=gpu)
    add_option(parser, "--profile", metavar="NAME", help="stock or seed, as the recipe has them")
    add_option(parser, "--variant", metavar="NAME", help="another way to run the pair, if it has one")
    add_option(parser, "--vllm", metavar="VERSION", help="another release than the recipe's")
    add_option(parser, "--engine", metavar="ENGINE", help="an engine of `engine list` instead")
    change = (
        "change any flag of vllm serve, env.NAME, speculation.KEY, restart.KEY, target.model or drafter.model; "
        "may be repeated"
    )
    parser.add_argument("--set", dest="settings", action="append", metavar="KEY=VALUE", help=change)


def add_trust_option(parser: argparse.ArgumentParser) -> None:
    """Add `--trust`, which no variable sets: it is said of one recipe."""
    trust = "say yes to what a recipe that is not shipped may do, until it changes; `recipes check` lists it"
    parser.add_argument("--trust", action="store_true", help=trust)


def add_watch_options(parser: argparse.ArgumentParser) -> None:
    """Add how often figures are printed, and `--json`."""
    every = "seconds between two lines (default 5)"
    add_option(parser, "--every", type=parse_positive, default=5, metavar="SECONDS", help=every)
    add_json_option(parser)


def add_json_option(parser: argparse.ArgumentParser, **settings: Any) -> None:
    """Add `--json`."""
    add_option(parser, "--json", action="store_true", help="one JSON object per line on stdout", **settings)


def add_recipe_argument(parser: argparse.ArgumentParser) -> None:
    """Add the recipe."""
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe's name, or the path of a recipe file")


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
        raise argparse.ArgumentTypeError(f"expected {kind} from {least:g} to {most:g}, not '{text}'")
    return number


def parse_positive(text: str) -> int:
    """Return a whole number from 1."""
    return int(_number(text, 1, 100_000, whole=True))


def _port(text: str) -> int:
    return int(_number(text, 1, 65_535, whole=True))


def _tokens(text: str) -> int:
    return int(_number(text, 0, 64, whole=True))


def parse_boots(text: str) -> int:
    """Return how many boots an arm may have."""
    return int(_number(text, 1, 50, whole=True))


def parse_streams(text: str) -> tuple[int, ...]:
    """Return numbers of requests at a time, with commas between."""
    return tuple(int(_number(word, 1, 1024, whole=True)) for word in text.split(","))


def parse_scale(text: str) -> float:
    """Return how many times their usual length answers may have."""
    return _number(text, 0.001, 100, whole=False)


def parse_speed(text: str) -> float:
    """Return how many times as fast a recording may be played."""
    return _number(text, 0.1, 100_000, whole=False)


def parse_seconds(text: str) -> float:
    """Return seconds."""
    return _number(text, 0, 1e9, whole=False)


def parse_seed(text: str) -> int:
    """Return a seed that vLLM takes, too."""
    return int(_number(text, 0, (1 << 31) - 1, whole=True))


def parse_temperature(text: str) -> float:
    """Return a sampling temperature that vLLM takes."""
    return _number(text, 0, 2, whole=False)


def parse_reason(text: str) -> str:
    """Return a reason, which is recorded and shown, and so holds no secret."""
    if looks_secret(text):
        raise argparse.ArgumentTypeError("it looks like a secret, and is recorded")
    return text


def _mode(text: str) -> str:
    if text not in {"eager", "graphs", "compile"}:
        raise argparse.ArgumentTypeError(f"expected eager, graphs or compile, not '{text}'")
    return text
