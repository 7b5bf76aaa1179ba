"""Print the output of commands: data to stdout, status to stderr, without control characters."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable
from typing import Any, TextIO

import msgspec

from dflash_tui.common.formatting import fold_line, name_commands
from dflash_tui.common.sanitizer import escape_control_characters
from dflash_tui.presentation.report import Section, Table, to_terminal

# The start of a line that sets the indent of its folded lines: blanks, a mark, a word in a column of its own.
_MARK = re.compile(r"\s*(?:[^\w\s/~-]{1,2}\s+)?(?:\w{1,9}\s{2,})?")
_COMMAND = re.compile(
    r"\s*(?:→\s+)?(?:[\w ]{1,12}:\s+)?"
    r"(?:(?:\S*dflash-tui|curl|systemctl|loginctl|sudo|ssh|rm|uv|pip|docker) |\S*/vllm serve |--?\w)|.*\\$"
)


_output = {"json": False}


def use_json(as_json: bool) -> None:
    """Choose what data is printed as: lines of JSON, or text."""
    _output["json"] = as_json


def is_json() -> bool:
    """Whether data is printed as JSON."""
    return _output["json"]


def print_data(line: str) -> None:
    """Write a line of data to stdout at once, also if data is JSON."""
    _write(sys.stdout, line)


def print_text(line: str) -> None:
    """Write a line of data to stdout at once, unless data is JSON."""
    if not is_json():
        print_data(line)


def print_items(values: Iterable[Any]) -> None:
    """Write each value as a line of JSON to stdout, if data is JSON."""
    if is_json():
        for value in values:
            print_json(value)


def print_result(value: Any, text: str) -> None:
    """Write a value to stdout, as JSON or as its text."""
    print_json(value) if is_json() else print_data(text)


def terminal_width(stream: TextIO | None = None) -> int:
    """Return the columns of the terminal behind a stream (default: stdout); 0 for a file or a pipe."""
    return shutil.get_terminal_size().columns if (stream or sys.stdout).isatty() else 0


def print_table(
    header: tuple[str, ...], rows: Iterable[tuple[str, ...]], right: tuple[int, ...] = (), drop: tuple[str, ...] = ()
) -> None:
    """Write a table as text to stdout, folded to the terminal's width; columns in `drop` are left out first."""
    printable = tuple(tuple(map(escape_control_characters, row)) for row in rows)
    if printable:
        table = Table(header, printable, right, keys=0, drop=drop)
        print_text(to_terminal([Section("", (table,))], terminal_width()))


def print_piece(text: str, *, data: bool) -> None:
    """Write a piece of a line at once, to stdout if it is data, else to stderr."""
    _write(sys.stdout if data else sys.stderr, text, end="")


def print_json(value: Any) -> None:
    """Write a value as a line of JSON to stdout at once."""
    print_data(msgspec.json.encode(value).decode())


def print_status(line: str) -> None:
    """Write a line of status to stderr at once, folded to the terminal's width unless it is a command."""
    _write(sys.stderr, fold_status(escape_control_characters(name_commands(line)), terminal_width(sys.stderr)))


def fold_status(text: str, width: int) -> str:
    """Fold each line of a text to a width, and indent the rest to the first word after its mark.

    A line with a command stays whole: a shell would read a folded one as two.
    """
    return "\n".join(_fold(line, width) for line in text.split("\n"))


def _fold(line: str, width: int) -> str:
    mark = _MARK.match(line)
    return line if _COMMAND.match(line) else fold_line(line, width, mark.end() if mark else 0)


def can_ask() -> bool:
    """Whether the user can be asked on the terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask_yes(question: str) -> bool:
    """Ask on the terminal; return True for y or yes, False for anything else."""
    _write(sys.stderr, f"{question} [y/N] ", end="")
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _write(stream: TextIO, text: str, end: str = "\n") -> None:
    stream.write(f"{escape_control_characters(text)}{end}")
    stream.flush()
