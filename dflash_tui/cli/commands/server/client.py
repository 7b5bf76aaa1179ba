"""`client [RUN]`: how other programs reach a server."""

from __future__ import annotations

import argparse
from ipaddress import ip_address, ip_interface

import msgspec

from dflash_tui.cli.console import print_data, print_json, print_status
from dflash_tui.common.formatting import format_host_and_port, name_program, read_called_name
from dflash_tui.machine import network
from dflash_tui.presentation.clients.client_wiring import (
    PLACES,
    ClientProgram,
    Endpoint,
    describe_boot,
    format_tunnel,
    format_wiring,
)
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import Run

_MOST_URLS = 4
# Nobody else reaches a machine by those.
_OF_CONTAINERS = ("docker", "br-", "veth", "virbr", "cni", "podman")


def client(args: argparse.Namespace) -> int:
    """Print where the server answers, or what a program is to be given: the data on stdout, where it goes on stderr."""
    run = registry.find_run(args.run)
    endpoint = Endpoint.from_run(run)
    if not server_process.is_alive(run):
        print_status(f"! {run.id} has ended; this is how it was reached")
    elif boot := describe_boot(run):
        print_status(f"! {boot}")
    if host := read_called_name():
        print_status(f"on your machine first: {format_tunnel(endpoint, host)}")
    if urls := _list_urls_elsewhere(run):
        print_status(f"from other machines: {' or '.join(urls)}")
    program = ClientProgram(args.program) if args.program else None
    wiring = format_wiring(endpoint, program) if program else ""
    if args.json:
        fields = {"run": run.id, **msgspec.structs.asdict(endpoint)}
        print_json(fields | ({"program": program.value, "wiring": wiring} if program else {}))
    elif program:
        print_status(f"for {PLACES[program]}{_say_key(endpoint, program)}")
        print_data(wiring)
    else:
        print_data(f"url    {endpoint.url}\nmodel  {endpoint.model}\nkey    {_name_key(endpoint)}")
        print_status(f"for a program: {name_program()} client {run.id} --for {'|'.join(ClientProgram)}")
    return 0


def _list_urls_elsewhere(run: Run) -> list[str]:
    """Return by which URLs other machines may reach a server on all addresses: those of this one's interfaces."""
    if not ip_address(run.plan.host).is_unspecified:
        return []
    interfaces = [port for port in network.read_network().interfaces if not port.name.startswith(_OF_CONTAINERS)]
    addresses = [ip_interface(text).ip for port in interfaces for text in port.addresses]
    hosts = [str(address) for address in addresses if not address.is_link_local]
    return [f"http://{format_host_and_port(host, run.plan.port)}/v1" for host in hosts[:_MOST_URLS]]


def _name_key(endpoint: Endpoint) -> str:
    return f"in ${endpoint.key_variable}" if endpoint.key_variable else "none required"


def _say_key(endpoint: Endpoint, program: ClientProgram) -> str:
    if not endpoint.key_variable:
        return ""
    place = "~/.continue/.env" if program is ClientProgram.CONTINUE else "its environment"
    return f"; the key comes from {endpoint.key_variable} in {place}"
