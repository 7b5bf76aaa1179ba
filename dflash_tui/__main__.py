"""The program's entry: `dflash-tui` and `python -m dflash_tui`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from dflash_tui import __version__

TYPE_CHECKING = False  # what `typing` says, which takes a tenth of a bare Python to import
if TYPE_CHECKING:
    from typing import TextIO


def main() -> object:
    """Run the command line and return the exit code; 1 where all went well but what it wrote cannot be written."""
    code: object = 0
    try:
        try:
            code = _run()
        except SystemExit as ended:  # as after `--help`
            code = ended.code
        except KeyboardInterrupt:  # while modules are imported; a command has its own answer
            code = 130
        if sys.stdout:
            sys.stdout.flush()
    except OSError as error:
        if not code and not isinstance(error, BrokenPipeError):
            with suppress(OSError):
                print(f"dflash-tui: error: the output cannot be written: {error.strerror}", file=sys.stderr)  # noqa: T201
        code = code or 1
    _drop_lost_output(sys.stdout)
    _drop_lost_output(sys.stderr)
    return code


def _drop_lost_output(stream: TextIO | None) -> None:
    """Send what nobody takes to nowhere: Python would write it once more when it ends, and exit with 120."""
    if not stream:
        return
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run() -> int:
    """Answer `--version` before argparse is loaded, which costs as much as Python, or run a command."""
    if sys.argv[1:] == ["--version"]:
        print(f"dflash-tui {__version__}")  # noqa: T201
        return 0
    from dflash_tui.cli import main as cli_main

    return cli_main.main()


if __name__ == "__main__":
    raise SystemExit(main())
