"""`schema`: the JSON Schemas of what `--json` prints."""

from __future__ import annotations

import argparse

from dflash_tui.cli import json_formats
from dflash_tui.cli.console import print_json, print_table
from dflash_tui.common.errors import UsageError


def schema(args: argparse.Namespace) -> int:
    """`schema [COMMAND [ACTION]]`: print the schema of its lines; without a command list them with their versions."""
    if not args.names:
        rows = [(name, str(format_.version)) for name, format_ in json_formats.FORMATS.items()]
        print_table(("COMMAND", "VERSION"), rows, right=(1,))
        return 0
    name = json_formats.find_format(" ".join(args.names))
    if not name:
        raise UsageError(f"'{' '.join(args.names)}' prints no JSON", hint="dflash-tui schema lists what does")
    print_json(json_formats.build_schema(name))
    return 0
