"""The hosts that serve a recipe together with this machine: one that was used before, or one that is typed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import on
from textual.binding import Binding
from textual.content import Content
from textual.widgets import Input

from dflash_tui.common.errors import UsageError
from dflash_tui.peers import transport
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.list import ListDialog
from dflash_tui.tui.widgets.basic import MUTED_ROW, render_error

Hosts = tuple[str, ...]
_ALONE = "this machine alone"
_OTHER = "another host …"
_MOST = 8


def list_used_hosts(runs: Iterable[Run]) -> list[Hosts]:
    """Return the hosts that runs were launched together with, those of the newest run first."""
    used = [tuple(far.host for far in run.far_ranks) for run in runs if run.far_ranks]
    return list(dict.fromkeys(reversed(used)))[:_MOST]


class PeerDialog(ListDialog[Hosts]):
    """Asks for the other hosts of a server; ends with their names, none for this machine alone, or with None."""

    HEADING: ClassVar = "hosts"
    BINDINGS: ClassVar = [
        Binding("enter", "choose", "choose", key_display="⏎", priority=True, tooltip="Serve together with these hosts"),
        Binding("enter", "take", "choose", key_display="⏎", priority=True, tooltip="Serve together with these hosts"),
        Binding("escape", "leave", "close", key_display="esc", tooltip="Leave the field, or close"),
    ]

    def __init__(self, chosen: Hosts, used: Sequence[Hosts]) -> None:
        super().__init__()
        self.chosen, self.refused = chosen, ""
        self.offered: list[Hosts] = list(dict.fromkeys([(), *((chosen,) if chosen else ()), *used]))

    def on_mount(self) -> None:
        self.show_heading("Serve together with another machine, over ssh and one cable.")
        marks = [("● ", "bold $accent") if hosts == self.chosen else ("  ", "") for hosts in self.offered]
        rows = [
            Content.assemble(mark, ", ".join(hosts) or _ALONE) for mark, hosts in zip(marks, self.offered, strict=True)
        ]
        self.show_rows([*rows, Content.assemble((f"  {_OTHER}", MUTED_ROW))], self.offered.index(self.chosen))
        if len(self.offered) == 1:
            self._type()

    def _type(self) -> None:
        self.open_field(placeholder="as for ssh: NAME, USER@NAME or an address; several with spaces")

    def action_choose(self) -> None:
        """Take the highlighted hosts, or let others be typed."""
        if self.place < len(self.offered):
            self.dismiss(self.offered[self.place])
        else:
            self._type()

    def action_take(self) -> None:
        """Take the hosts that were typed."""
        hosts = tuple(self.field.value.split())
        try:
            transport.check_hosts(hosts)
        except UsageError as error:
            self.refused = self.field.value
            self.show_detail(render_error(error.what, error.evidence, error.hint))
            return
        self.dismiss(hosts)

    @on(Input.Changed)
    def _on_typed(self, message: Input.Changed) -> None:
        message.stop()
        if self.field.value != self.refused:  # it may hear of letters after their enter
            self.refused = ""
            self.show_detail("")
