"""A `vllm serve` command as somebody typed it: variables before it, and the words after it. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

import msgspec

from dflash_tui.common.errors import UsageError

_HINT = "dflash-tui recipes import -- vllm serve MODEL …"
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_ENDS = frozenset({"&&", "||", ";", "|", "&", ">", ">>", "2>&1", "2>", "<"})


class LeftOut(msgspec.Struct, frozen=True):
    """Something of a command that a recipe does not take over, and why."""

    what: str
    """As it stands there; it may hold a secret."""
    why: str


class ShellCommand(msgspec.Struct, frozen=True):
    """The parts of a `vllm serve` command."""

    words: tuple[str, ...]
    """The words after `vllm serve`."""
    env: dict[str, str] = {}
    left_out: tuple[LeftOut, ...] = ()


def read_shell_command(words: Sequence[str]) -> ShellCommand:
    """Return the parts of `[NAME=VALUE …] vllm serve …`.

    Args:
        words: Its words, or the whole of it as one.

    Raises:
        UsageError: its quotes do not match, or it is no `vllm serve`.
    """
    split = list(words)
    if len(split) == 1:
        try:
            split = shlex.split(split[0].replace("\\\n", " "), comments=True)
        except ValueError as error:
            raise UsageError("the command's quotes do not match", evidence=str(error)) from None
    split = [word for word in split if word.strip() not in {"", "\\"}]
    env: dict[str, str] = {}
    for word in list(split):
        if assigned := _ASSIGNMENT.fullmatch(word):
            env[assigned[1]] = assigned[2]
        elif word not in {"env", "export"}:
            break
        split.pop(0)
    if len(split) < 2 or split[0].rpartition("/")[2] != "vllm" or split[1] != "serve":
        raise UsageError("the command does not start with vllm serve", hint=_HINT)
    served = split[2:]
    end = next((index for index, word in enumerate(served) if word in _ENDS), len(served))
    after = " ".join(served[end:])
    return ShellCommand(
        tuple(served[:end]), env, (LeftOut(after, "is shell syntax, which no recipe has"),) if after else ()
    )
