"""`agent`: what another dflash-tui runs on this machine over ssh; people have no use for it."""

from __future__ import annotations

import argparse
import asyncio

from dflash_tui.peers import agent as agents


def agent(_args: argparse.Namespace) -> int:
    """`agent`: read commands from stdin, as JSON lines, and answer on stdout."""
    agents.require_caller()
    asyncio.run(agents.serve_stdin())
    return 0
