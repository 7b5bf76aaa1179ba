"""The program's entry: `dflash-tui` and `python -m dflash_tui`."""

import gc
import sys

from dflash_tui import __version__


def main() -> int:
    """Run the command line; `--version` is answered before argparse is loaded, which costs as much as Python."""
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
