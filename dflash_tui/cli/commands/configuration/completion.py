"""`completion`: a script for a shell that completes commands, options and names of recipes; and the manual page."""

from __future__ import annotations

import argparse

import shtab

from dflash_tui.cli.console import print_data, print_status
from dflash_tui.cli.parser import build_parser
from dflash_tui.common.errors import UsageError
from dflash_tui.planning.recipes import recipe_loader

# Where each shell looks for it by itself.
_PLACES = {
    "bash": "~/.local/share/bash-completion/completions/dflash-tui",
    "zsh": "~/.zfunc/_dflash-tui (with fpath+=~/.zfunc before compinit in ~/.zshrc)",
    "fish": "~/.config/fish/completions/dflash-tui.fish",
    "man": "~/.local/share/man/man1/dflash-tui.1",
}
_FILES = {"FILE", "RUN|FILE", "NAME|FILE", "RUN|FILE|-"}


def completion(args: argparse.Namespace) -> int:
    """`completion bash|zsh|fish|man`: print the script or the page, and where it goes on stderr."""
    print_data(_format_manual() if args.shell == "man" else _format_script(args.shell))
    note = "" if args.shell == "man" else "; it completes the recipes of today: write it again after adding one"
    print_status(f"write it to {_PLACES[args.shell]}{note}")
    return 0


def _format_manual() -> str:
    try:
        from argparse_manpage.manpage import Manpage
    except ImportError:
        hint = "uv tool install '.[man]' in the clone, or pip install argparse-manpage beside dflash-tui"
        raise UsageError("the manual page takes argparse-manpage, which is not installed", hint=hint) from None
    about = {"description": "DFlash speculative decoding on vLLM", "manual_title": "User Commands"}
    return str(Manpage(build_parser(), about)).rstrip()


def _format_script(shell: str) -> str:
    parser = build_parser()
    # The script is run by a shell, which would run what another name may hold.
    recipes = [name for name in recipe_loader.list_recipe_files() if recipe_loader.is_recipe_name(name)]
    for action in parser.list_actions():
        if action.metavar == "RECIPE":
            action.choices = recipes
        if action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined] # where shtab looks
        if action.metavar == "FOLDER":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    return shtab.complete(parser, shell).rstrip()
