"""`attach URL`: the metrics of a server that dflash-tui did not launch, in the panel or as lines."""

from __future__ import annotations

import argparse
import asyncio
import time

from dflash_tui.cli.commands.server.panel import panel
from dflash_tui.cli.console import print_data, print_status
from dflash_tui.cli.event_lines import EventLines, WindowFigures, print_alarms
from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import has_terminal
from dflash_tui.events import Health, HealthChanged, encode
from dflash_tui.monitoring.foreign_server import ForeignServer
from dflash_tui.run_state.state import RunState

_WHERE = "check the address and the port; `attach` without an address watches a server that dflash-tui launched"


def attach(args: argparse.Namespace) -> int:
    """Watch the server at the address `args.run`."""
    server = ForeignServer(args.run)
    if args.plain or args.json or not has_terminal():
        print_status(f"{server.url} was not launched by dflash-tui: metrics only, nothing is sent, stopped or recorded")
        print_status("asking it once a second until Ctrl-C")
        return asyncio.run(_print_server(args, server))
    return panel(foreign=server)


async def _print_server(args: argparse.Namespace, server: ForeignServer) -> int:
    """Print figures and alarms until interrupted, or until the output cannot be written."""
    state = RunState()
    tasks = [
        asyncio.create_task(_print_figures(args, server, state)),
        asyncio.create_task(print_alarms(state, as_json=args.json)),
    ]
    try:
        finished, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in finished:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
    return 0


async def _print_figures(args: argparse.Namespace, server: ForeignServer, state: RunState) -> None:
    """Print the events of the server, and its figures every `--every` seconds."""
    rows, due = 0, time.monotonic() + args.every
    lines = EventLines(state, as_json=args.json)
    async for event in server.events():
        if not server.answers and isinstance(event, HealthChanged) and event.health is Health.UNHEALTHY:
            raise DflashError(server.fault, evidence=event.detail, hint=_WHERE)
        state.apply(event)
        lines.show(event)
        if time.monotonic() < due or not state.readings:
            continue
        due = time.monotonic() + args.every
        figures = WindowFigures.from_state(state, time.time(), args.every)
        if not args.json and rows % 20 == 0:
            print_data(WindowFigures.HEADER)
        print_data(encode(figures).decode() if args.json else figures.line(state))
        rows += 1
