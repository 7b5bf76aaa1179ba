"""`--host HOST`: the panel or a command of this program on another host, in the terminal of this one."""

from __future__ import annotations

import argparse

from dflash_tui import __version__
from dflash_tui.cli.commands.server.peer_programs import install_and_ask
from dflash_tui.cli.console import print_piece, print_status
from dflash_tui.peers import far_program


def run_there(args: argparse.Namespace) -> int:
    """Run what follows `--host HOST` on that host, after this program was installed there if it lacks it.

    Raises:
        UsageError: the host is not reached, its program is another, or the user said no to an installation.
        DflashError: the connection broke, or this program cannot be installed there.
    """
    greeting = install_and_ask(lambda: far_program.greet_host(args.host), args)
    if greeting.version != __version__:
        print_status(f"! {args.host} runs dflash-tui {greeting.version}, here is {__version__}: its own --help holds")
    return far_program.run_program(args.host, args.far_words, lambda text: print_piece(text, data=False))
