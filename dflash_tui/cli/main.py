"""Entry point of the command line: dispatch to commands, errors and exit codes; commands are imported when called."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from importlib import import_module
from typing import TYPE_CHECKING

from dflash_tui.cli.signals import ended_like_ctrl_c
from dflash_tui.common.errors import DflashError, UsageError, explain_resource_limit, suggest_write_fix
from dflash_tui.common.formatting import has_terminal, name_commands
from dflash_tui.common.sanitizer import escape_control_characters

if TYPE_CHECKING:  # the panel without arguments needs no parser
    import argparse

# SIGTERM ends these commands like Ctrl-C, so that they clean up unfinished files and programs of an engine.
_CLEANING = frozenset({"up", "verify", "export", "doctor", "engine", "patch"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    _make_streams_safe()
    words = [*(sys.argv[1:] if argv is None else argv)]
    as_json = "--json" in words
    try:
        args = _parse_words(words)
        as_json = args is not None and (args.json or args.command == "agent")
        return _dispatch(args) if args else _open_panel(as_json=False)
    except DflashError as error:
        return _report_error(error, as_json=as_json)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 1  # the reader of stdout has exited
    except (RuntimeError, ExceptionGroup, MemoryError, OSError) as error:
        if limit := explain_resource_limit(error):
            _silence_asyncio()
            return _report_error(limit, as_json=as_json)
        if not isinstance(error, OSError):
            raise
        # Such as a full disk, or a folder that cannot be written to.
        what = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        return _report_error(DflashError(what, hint=suggest_write_fix(error)), as_json=as_json)


def _parse_words(words: Sequence[str]) -> argparse.Namespace | None:
    """Parse a command line; return None if there are neither words nor DFLASH_TUI_ variables."""
    if not words and not any(name.startswith("DFLASH_TUI_") for name in os.environ):
        return None
    from dflash_tui.cli.parser import parse_words

    return parse_words(words)


def _silence_asyncio() -> None:
    """Keep asyncio from logging tracebacks of tasks that failed for the reported reason."""
    import logging

    logging.getLogger("asyncio").setLevel(logging.CRITICAL)


def _make_streams_safe() -> None:
    """Make streams accept characters that their encoding lacks, and replace streams that the caller closed."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="surrogateescape" if name == "stdin" else "replace")


def _report_error(error: DflashError, *, as_json: bool) -> int:
    if as_json:
        import json

        hint = name_commands(error.hint)
        fields = {"what": error.what, "evidence": error.evidence, "do": hint, "exit_code": error.exit_code}
        with suppress(OSError):  # stdout itself may be the failure
            print(json.dumps({"event": "error", **fields}), flush=True)  # noqa: T201
    from dflash_tui.cli.console import fold_status, terminal_width

    text = fold_status(f"dflash-tui: error: {name_commands(str(error))}", terminal_width(sys.stderr))
    with suppress(OSError):
        print(escape_control_characters(text), file=sys.stderr)  # noqa: T201
    return error.exit_code


def _dispatch(args: argparse.Namespace) -> int:
    if args.host is not None:
        from dflash_tui.cli.commands import hosts

        with ended_like_ctrl_c():
            return hosts.run_there(args)
    if args.command is None:
        return _open_panel(as_json=args.json)
    from dflash_tui.cli.console import use_json
    from dflash_tui.cli.parser import COMMANDS

    # Import only the module of this command.
    module = import_module(f"dflash_tui.cli.commands.{COMMANDS[args.command].module}")
    action = getattr(args, "action", None)
    use_json(args.json)
    name = f"{args.command}_{action}" if action else args.command
    handler: Callable[[argparse.Namespace], int] = getattr(module, name.replace("-", "_"))
    with ended_like_ctrl_c() if args.command in _CLEANING else nullcontext():
        return handler(args)


def _open_panel(*, as_json: bool) -> int:
    if not has_terminal():
        hint = "without one: dflash-tui up RECIPE --bench, dflash-tui attach; dflash-tui --help lists all commands"
        return _report_error(UsageError("the panel needs a terminal", hint=hint), as_json=as_json)
    from dflash_tui.cli import panel

    return panel.open_panel()
