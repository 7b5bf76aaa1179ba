"""`agent`: what another dflash-tui runs on this machine over ssh; people have no use for it."""

from __future__ import annotations

import argparse
import asyncio

from dflash_tui.peers import agent as agents
from dflash_tui.peers.copies import receiver


def agent(args: argparse.Namespace) -> int:
    """`agent`: read commands from stdin, as JSON lines, and answer on stdout; with `--receive` the files of a model."""
    agents.require_caller()
    if args.receive:
        return receiver.serve_stdin()
    asyncio.run(agents.serve_stdin())
    return 0
