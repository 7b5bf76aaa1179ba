"""The hosts that serve a recipe together with this machine: choosing them and installing dflash-tui there."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import format_duration
from dflash_tui.peers import far_program, transport
from dflash_tui.peers.transport import NeedsProgram
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.basic import ChoiceDialog, Dialog
from dflash_tui.tui.widgets.basic import render_error

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


class ProgramDialog(Dialog[bool]):
    """Offers to install dflash-tui on a host that lacks it; returns whether it was installed."""

    HEADING: ClassVar = "a host without dflash-tui"
    BINDINGS: ClassVar = [
        Binding("y", "install", "install", tooltip="Install dflash-tui on that host, in our own folder"),
    ]

    def __init__(self, error: NeedsProgram) -> None:
        super().__init__()
        self.error = error
        self._began: float | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Content(far_program.describe_offer(self.error)))
            yield Static(id="change", markup=False)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        return action != "install" or self._began is None

    def action_install(self) -> None:
        """Start the installation."""
        self._began = time.monotonic()
        self._show_progress()
        self.refresh_bindings()
        self.set_interval(1.0, self._show_progress)
        self.install()

    def _show_progress(self) -> None:
        if self._began is not None:
            took = format_duration(time.monotonic() - self._began)
            text = f"installing, {took}: the wheel goes over ssh, then pip fetches what it needs"
            self._say(Content.assemble(("◐ ", "$warning"), text))

    def _say(self, content: Content) -> None:
        self.query_one("#change", Static).update(Content("\n") + content)

    @work(exclusive=True, group="install")
    async def install(self) -> None:
        """Install and close; show an error and allow another attempt."""
        try:
            place = await far_program.install_program(self.error.host)
        except DflashError as error:
            self._end(render_error(error.what, error.evidence, error.hint))
            return
        self.app.notify(f"dflash-tui is on {self.error.host}: {place}", markup=False)
        self.dismiss(True)

    def action_leave(self) -> None:
        """Cancel a running installation, or close."""
        if self._began is None:
            self.dismiss(False)
            return
        self.workers.cancel_group(self, "install")
        self._end(Content.assemble(("■ ", "$foreground"), f"cancelled; nothing is left on {self.error.host}"))

    def _end(self, content: Content) -> None:
        self._began = None
        self._say(content)
        self.refresh_bindings()
