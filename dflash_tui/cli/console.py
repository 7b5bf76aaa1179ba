"""Print the output of commands: data to stdout, status to stderr, without control characters and own secrets."""

from __future__ import annotations

import sys
from typing import Any, TextIO

import msgspec

from dflash_tui.common.own_secrets import hide_own_secrets
from dflash_tui.common.sanitizer import escape_control_characters


def print_data(line: str) -> None:
    """Write a line of data to stdout at once."""
    _write(sys.stdout, line)


def print_json(value: Any) -> None:
    """Write a value as a line of JSON to stdout at once."""
    print_data(msgspec.json.encode(value).decode())


def print_status(line: str) -> None:
    """Write a line of status to stderr at once."""
    _write(sys.stderr, line)


def _write(stream: TextIO, line: str) -> None:
    stream.write(f"{escape_control_characters(hide_own_secrets(line))}\n")
    stream.flush()
