"""Options and arguments as data: how one is declared and added, and the types of its values."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from dflash_tui.common.secrets import looks_secret
from dflash_tui.planning.methods import Method

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class Option(NamedTuple):
    """An option or an argument of a command."""

    names: tuple[str, ...]
    settings: dict[str, Any]
    """The other parameters of argparse's `add_argument`."""


class OneOf(NamedTuple):
    """Options that exclude each other."""

    options: tuple[Option, ...]


Options = Iterable[Option | OneOf]


def option(words: str, about: str, **settings: Any) -> Option:
    """Return an option with a value; `words` are its names, then the name of its value."""
    *names, metavar = words.split()
    return Option((*names,), {"metavar": metavar, "help": about, **settings})


def switch(words: str, about: str, **settings: Any) -> Option:
    """Return an option without a value; `words` are its names."""
    return Option((*words.split(),), {"action": "store_true", "help": about, **settings})


def argument(name: str, metavar: str, about: str, **settings: Any) -> Option:
    """Return an argument."""
    return Option((name,), {"metavar": metavar, "help": about, **settings})


def add_options(parser: argparse._ActionsContainer, options: Options) -> None:
    """Add options to a parser, each with its type and the default of its DFLASH_TUI_ variable."""
    for each in options:
        if isinstance(each, OneOf):
            add_options(parser.add_mutually_exclusive_group(), each.options)
            continue
        word, settings = each.names[-1].lstrip("-"), dict(each.settings)
        name = settings.get("dest", word.replace("-", "_"))
        if each.names[0].startswith("-") and "action" not in settings:
            if name in _TYPES:
                settings["type"] = _TYPES[name]
            value = os.environ.get("DFLASH_TUI_" + word.upper().replace("-", "_"))
            if value and name not in _WITHOUT_VARIABLE:
                settings["default"] = value
        parser.add_argument(*each.names, **settings)


def is_json_default() -> bool:
    """Whether DFLASH_TUI_JSON asks for JSON."""
    return os.environ.get("DFLASH_TUI_JSON", "").lower() in {"1", "true", "yes", "on"}


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


def duration(least: float) -> Callable[[str], float]:
    """Return the type of an option that takes a time such as 30m or 12h, in seconds; `least` counts its units."""

    def parse(text: str) -> float:
        value, unit = text[:-1], text[-1:]
        if unit not in _UNITS:
            raise argparse.ArgumentTypeError(f"expected a time such as 30m or 2h, not '{text}'")
        return number(least, 10_000)(value) * _UNITS[unit]

    return parse


def parse_recorded_text(text: str) -> str:
    """Return a text that is recorded; raise ArgumentTypeError if it looks like a secret."""
    if looks_secret(text):
        raise argparse.ArgumentTypeError("it looks like a secret, and would be recorded")
    return text


def one_of(names: Iterable[str]) -> Callable[[str], str]:
    """Return the type of an option that takes one of `names`, also from a variable."""

    def parse(text: str) -> str:
        if text not in {*names}:
            raise argparse.ArgumentTypeError(f"expected one of {', '.join(names)}, not '{text}'")
        return text

    return parse


# For one command line: a recipe, a host, a server.
_WITHOUT_VARIABLE = {"drafter", "force", "host", "key_env", "model", "name", "program", "target"}
_TYPES: dict[str, Callable[[str], Any]] = {
    "at": number(0, 1e9),
    "boots": whole_number(1, 50),
    "budget": duration(1),
    "concurrency": parse_concurrency,
    "every": parse_positive,
    "force": parse_recorded_text,
    "measures_start": parse_measure,
    "method": one_of(Method),
    "mode": one_of(("eager", "graphs", "compile")),
    "num_speculative_tokens": whole_number(0, 64),
    "older_than": duration(0),
    "port": whole_number(1, 65_535),
    "prompts": parse_positive,
    "ramp": number(0, 3600),
    "rank": parse_positive,
    "rate": number(0.001, 10_000),
    "rounds": parse_positive,
    "scale": _limited(float, 0.001, "MOST_SCALE"),
    "seed": _limited(int, 0, "MOST_SEED"),
    "speed": number(0.1, 100_000),
    "streams": whole_number(1, 1024),
    "tail": parse_positive,
    "temperature": _limited(float, 0, "MOST_TEMPERATURE"),
    "top_k": parse_positive,
    "top_p": parse_top_p,
    "warm_up": parse_positive,
}
