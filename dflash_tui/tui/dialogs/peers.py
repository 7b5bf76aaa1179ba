"""The hosts that serve a recipe together with this machine: one that was used before, or one that is typed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from dflash_tui.common.errors import UsageError
from dflash_tui.peers import transport
from dflash_tui.runs.run import Run
from dflash_tui.tui.composition import once_composed
from dflash_tui.tui.dialogs.basic import Dialog
from dflash_tui.tui.widgets.basic import MUTED_ROW, MarkedList, render_error
from dflash_tui.tui.widgets.text_field import TextField

Hosts = tuple[str, ...]
_ALONE = "this machine alone"
_OTHER = "another host …"
_MOST = 8


def list_used_hosts(runs: Iterable[Run]) -> list[Hosts]:
    """Return the hosts that runs were launched together with, those of the newest run first."""
    used = [tuple(far.host for far in run.far_ranks) for run in runs if run.far_ranks]
    return list(dict.fromkeys(reversed(used)))[:_MOST]


class PeerDialog(Dialog[Hosts | None]):
    """Asks for the other hosts of a server; ends with their names, none for this machine alone, or with None."""

    HEADING: ClassVar = "hosts"
    BINDINGS: ClassVar = [
        Binding("enter", "choose", "choose", key_display="⏎", priority=True, tooltip="Serve together with these hosts"),
        Binding("escape", "leave", "close", key_display="esc", tooltip="Leave the field, or close"),
    ]

    def __init__(self, chosen: Hosts, used: Sequence[Hosts]) -> None:
        super().__init__()
        self.chosen = chosen
        self.refused: str | None = None
        self.offered: list[Hosts] = list(dict.fromkeys([(), *((chosen,) if chosen else ()), *used]))

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Content("Serve together with another machine, over ssh and one cable."))
            yield MarkedList(id="options", markup=False)
            yield TextField(id="option", placeholder="as for ssh: NAME, USER@NAME or an address; several with spaces")
            yield Static(id="change", markup=False)

    @once_composed
    def on_mount(self) -> None:
        table, entry = self.query_one(OptionList), self.query_one(TextField)
        for hosts in self.offered:
            mark = ("● ", "bold $accent") if hosts == self.chosen else ("  ", "")
            table.add_option(Option(Content.assemble(mark, ", ".join(hosts) or _ALONE)))
        table.add_option(Option(Content.assemble((f"  {_OTHER}", MUTED_ROW))))
        table.highlighted = self.offered.index(self.chosen)
        entry.display = False
        if len(self.offered) == 1:
            entry.open()
        else:
            table.focus()

    def action_choose(self) -> None:
        """Take the highlighted hosts, or those that were typed."""
        place = self.query_one(OptionList).highlighted or 0
        if self.query_one(Input).has_focus:
            self._take_typed()
        elif place < len(self.offered):
            self.dismiss(self.offered[place])
        else:
            self.query_one(TextField).open()

    def _take_typed(self) -> None:
        typed = self.query_one(Input).value
        hosts = tuple(typed.split())
        try:
            transport.check_hosts(hosts)
        except UsageError as error:
            self.refused = typed
            self.query_one("#change", Static).update(render_error(error.what, error.evidence, error.hint))
            return
        self.dismiss(hosts)

    def action_leave(self) -> None:
        """Go back from the field to the list, or close."""
        if self.query_one(Input).has_focus and len(self.offered) > 1:
            self.query_one(Input).display = False
            self.query_one(OptionList).focus()
        else:
            self.dismiss(None)

    @on(Input.Changed, "#option")
    def _on_typed(self, message: Input.Changed) -> None:
        message.stop()
        if self.query_one(Input).value != self.refused:  # it may be told of letters after their enter
            self.refused = None
            self.query_one("#change", Static).update(Content(""))
