"""`completion`: a script for a shell that completes commands, options and names of recipes."""

from __future__ import annotations

import argparse

import shtab

from dflash_tui.cli.console import print_data, print_status
from dflash_tui.cli.parser import build_parser
from dflash_tui.planning.recipes import recipe_loader

# Where each shell looks for it by itself.
_PLACES = {
    "bash": "~/.local/share/bash-completion/completions/dflash-tui",
    "zsh": "~/.zfunc/_dflash-tui (with fpath+=~/.zfunc before compinit in ~/.zshrc)",
    "fish": "~/.config/fish/completions/dflash-tui.fish",
}
_FILES = {"FILE", "RUN|FILE", "NAME|FILE", "RUN|FILE|-"}


def completion(args: argparse.Namespace) -> int:
    """`completion bash|zsh|fish`: print the script, and where it goes on stderr."""
    print_data(_format_script(args.shell))
    note = "it completes the recipes of today: write it again after adding one"
    print_status(f"write it to {_PLACES[args.shell]}; {note}")
    return 0


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
