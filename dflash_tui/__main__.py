"""The program's entry: `dflash-tui` and `python -m dflash_tui`."""

import sys

from dflash_tui import __version__


def main() -> int:
    """Run the command line; `--version` is answered before argparse is loaded, which costs as much as Python."""
    if sys.argv[1:] == ["--version"]:
        print(f"dflash-tui {__version__}")  # noqa: T201
        return 0
    from dflash_tui.cli import main as cli_main

    return cli_main.main()


if __name__ == "__main__":
    raise SystemExit(main())
