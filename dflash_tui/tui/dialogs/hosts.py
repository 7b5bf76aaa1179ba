"""A dialog to choose the hosts that serve a recipe together with this machine."""

from __future__ import annotations

from collections.abc import Iterable

from textual.content import Content

from dflash_tui.peers import transport
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.basic import ChoiceDialog

Hosts = tuple[str, ...]
_ALONE = "this machine alone"
_MOST = 8


def list_used_hosts(runs: Iterable[Run]) -> list[Hosts]:
    """Return the sets of hosts that earlier runs used, newest first."""
    used = [tuple(far.host for far in run.far_ranks) for run in runs if run.far_ranks]
    return list(dict.fromkeys(reversed(used)))[:_MOST]


def build_host_dialog(chosen: Hosts, used: Iterable[Hosts]) -> ChoiceDialog[Hosts]:
    """Return a dialog that asks for the other hosts of a server; no host is this machine alone."""
    offered = dict.fromkeys([(), *((chosen,) if chosen else ()), *used])
    return ChoiceDialog(
        "hosts",
        [(hosts, Content(", ".join(hosts) or _ALONE)) for hosts in offered],
        chosen,
        _read_hosts,
        other="another host …",
        example="as for ssh: NAME, USER@NAME or an address; several with spaces",
        about="Serve together with another machine, over ssh and one cable.",
    )


def _read_hosts(text: str) -> Hosts:
    hosts = tuple(text.split())
    transport.check_hosts(hosts)
    return hosts
