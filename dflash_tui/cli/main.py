"""Entry point of the command line: dispatch to commands, errors and exit codes; commands are imported when called."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from dflash_tui.cli.parser import build_parser
from dflash_tui.common.errors import DflashError, explain_resource_limit, suggest_write_fix
from dflash_tui.common.own_secrets import read_own_secrets
from dflash_tui.common.private_files import tighten_umask

# Each command imports what it needs and nothing of the others.
_HANDLERS = {
    "up": ("up", "up"),
    "attach": ("up", "attach"),
    "bench": ("bench", "bench"),
    "ab": ("ab", "run_ab"),
    "replay": ("replay", "replay"),
    "export": ("replay", "export"),
    "ps": ("servers", "ps"),
    "logs": ("servers", "logs"),
    "stop": ("servers", "stop"),
    "orphans": ("orphans", "orphans"),
    "why": ("why", "why"),
    "report": ("report", "report"),
    "history": ("history", "history"),
    "service": ("service", "service"),
    "gpus": ("gpus", "gpus"),
    "plan": ("plan", "plan"),
    "doctor": ("plan", "doctor"),
    "recipes": ("recipes", "recipes"),
    "engine": ("engine", "engine"),
    "patch": ("patch", "patch"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    _make_streams_safe()
    tighten_umask()
    parser = build_parser()
    args = parser.parse_args(argv)
    read_own_secrets()
    try:
        return _dispatch(parser, args)
    except DflashError as error:
        return _report_error(error, as_json=args.json)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of the output has exited; nothing can be written, not even by the interpreter's flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (RuntimeError, ExceptionGroup, OSError) as error:
        if limit := explain_resource_limit(error):
            _silence_asyncio()
            return _report_error(limit, as_json=args.json)
        if not isinstance(error, OSError):
            raise
        # A full disk, a folder that is not ours or may only be read.
        what = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        return _report_error(DflashError(what, hint=suggest_write_fix(error)), as_json=args.json)


def _silence_asyncio() -> None:
    """Keep asyncio from writing, with tracebacks, of what it had begun and gave up for the reason that we report."""
    import logging

    logging.getLogger("asyncio").setLevel(logging.CRITICAL)


def _make_streams_safe() -> None:
    """Never fail over a character that the terminal's encoding lacks, nor over a stream that the caller closed."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif isinstance(stream, io.TextIOWrapper) and name != "stdin":
            stream.reconfigure(errors="replace")


def _report_error(error: DflashError, *, as_json: bool) -> int:
    if as_json:
        import json

        fields = {"what": error.what, "evidence": error.evidence, "do": error.hint, "exit_code": error.exit_code}
        print(json.dumps({"event": "error", **fields}), flush=True)  # noqa: T201
    print(f"dflash-tui: error: {error}", file=sys.stderr)  # noqa: T201
    return error.exit_code


def _dispatch(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if args.command is not None:
        module, function = _HANDLERS[args.command]
        handler: Callable[[argparse.Namespace], int] = getattr(
            import_module(f"dflash_tui.cli.commands.{module}"), function
        )
        return handler(args)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        parser.print_help(sys.stderr)
        return 2
    from dflash_tui.cli.commands import panel

    return panel.panel()
