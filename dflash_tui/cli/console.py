"""Print the output of commands: data to stdout, status to stderr, both without control characters."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from dflash_tui.common.sanitizer import escape_control_characters


def print_data(line: str) -> None:
    """Write a line of data to stdout at once."""
    sys.stdout.write(f"{escape_control_characters(line)}\n")
    sys.stdout.flush()


def print_json(value: Any) -> None:
    """Write a value as a line of JSON to stdout at once."""
    print_data(msgspec.json.encode(value).decode())


def print_status(line: str) -> None:
    """Write a line of status to stderr at once."""
    sys.stderr.write(f"{escape_control_characters(line)}\n")
    sys.stderr.flush()
