"""The program's entry: `dflash-tui` and `python -m dflash_tui`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from dflash_tui import __version__

TYPE_CHECKING = False  # like typing.TYPE_CHECKING; importing `typing` takes a tenth of the start of Python
if TYPE_CHECKING:
    from typing import TextIO


def main() -> object:
    """Run the command line and return its exit code; 1 if the command succeeds but its output cannot be written."""
    code: object = 0
    try:
        try:
            code = _run()
        except SystemExit as ended:  # as after `--help`
            code = ended.code
        except KeyboardInterrupt:  # during imports; commands handle it themselves
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
    """Discard unflushed output, which Python would try to write again at exit and then exit with 120."""
    if not stream:
        return
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run() -> int:
    """Run a command; `--version` is answered before importing argparse, which takes as long as starting Python."""
    if sys.argv[1:] == ["--version"]:
        print(f"dflash-tui {__version__}")  # noqa: T201
        return 0
    from dflash_tui.cli import main as cli_main

    return cli_main.main()


if __name__ == "__main__":
    raise SystemExit(main())
