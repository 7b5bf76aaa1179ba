"""The program's entry: `dflash-tui` and `python -m dflash_tui`."""

import gc
import sys

from dflash_tui import __version__


def main() -> object:
    """Run the command line and return the exit code; 1 where what it wrote cannot be written."""
    try:
        try:
            code: object = _run()
        except SystemExit as ended:  # as after `--help`
            code = ended.code
        if sys.stdout:
            sys.stdout.flush()
        return code
    except OSError as error:
        from dflash_tui.cli.main import drop_lost_output

        drop_lost_output()
        if not isinstance(error, BrokenPipeError):
            print(f"dflash-tui: error: the output cannot be written: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 1


def _run() -> int:
    """Answer `--version` before argparse is loaded, which costs as much as Python, or run a command."""
    if sys.argv[1:] == ["--version"]:
        print(f"dflash-tui {__version__}")  # noqa: T201
        return 0
    gc.disable()  # what is imported stays: to look through it again and again takes as long as a short command's work
    from dflash_tui.cli import main as cli_main

    try:
        return cli_main.main()
    finally:
        gc.freeze()  # nor when Python ends


if __name__ == "__main__":
    raise SystemExit(main())
