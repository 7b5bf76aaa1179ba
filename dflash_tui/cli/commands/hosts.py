"""Other hosts: `--host`, `agent`, and installing this program on a host after asking."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

from dflash_tui import __version__
from dflash_tui.cli.console import ask_yes, can_ask, print_piece, print_status
from dflash_tui.common.errors import UsageError
from dflash_tui.launch import planner
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.peers import agent as agents
from dflash_tui.peers import cluster_launch, far_program
from dflash_tui.peers.connection import greet_host
from dflash_tui.peers.transport import NeedsProgram
from dflash_tui.planning.cluster import LOCAL
from dflash_tui.planning.request import LaunchRequest

T = TypeVar("T")


def plan_over_peers(request: LaunchRequest, args: argparse.Namespace, *, with_commands: bool = False) -> PlannedLaunch:
    """Return the plan of a request, after installing this program on hosts that lack it."""
    return install_and_ask(lambda: cluster_launch.plan_request(request, with_commands=with_commands), args)


def reach_peers(request: LaunchRequest, args: argparse.Namespace, *, is_whole: bool = True) -> LaunchRequest:
    """Return the request on its hosts and their link, after installing this program on hosts that lack it."""
    if not request.peers:
        return request
    if is_whole:
        planner.plan_launch_here(request)
    hosts = install_and_ask(lambda: cluster_launch.reach_hosts(request), args)
    return hosts.place_request(request)


def install_and_ask(ask: Callable[[], Coroutine[None, None, T]], args: argparse.Namespace) -> T:
    """Return the answer of other hosts, after installing this program on those that lack it."""
    installed: set[str] = set()
    while True:
        try:
            return asyncio.run(ask())
        except NeedsProgram as error:
            if error.host in installed:
                raise far_program.build_unheard_error(error) from None
            _install_program(error, args)
            installed.add(error.host)


def _install_program(error: NeedsProgram, args: argparse.Namespace) -> None:
    if not args.install_peers:
        if args.json or not can_ask():
            raise error
        if not ask_yes(far_program.describe_offer(error)):
            raise UsageError(f"the installation on {error.host} was declined; nothing was started")
    print_status(f"installing dflash-tui on {error.host} …")
    print_status(f"dflash-tui is on {error.host}: {asyncio.run(far_program.install_program(error.host))}")


def run_there(args: argparse.Namespace) -> int:
    """Run the words after `--host HOST` on that host, after installing this program if the host lacks it."""
    if args.host == LOCAL:
        raise UsageError(f"--host {args.host} is this machine", hint="leave --host out")
    _, greeting = install_and_ask(lambda: greet_host(args.host, any_release=True), args)
    if greeting.version != __version__:
        print_status(f"! {args.host} runs dflash-tui {greeting.version}, here is {__version__}: its own --help applies")
    return far_program.run_program(args.host, args.far_words, lambda text: print_piece(text, data=False))


def agent(args: argparse.Namespace) -> int:
    """`agent VERB`: read the verb's parameters from stdin as JSON, and answer on stdout."""
    agents.answer_caller(args.verb)
    return 0
