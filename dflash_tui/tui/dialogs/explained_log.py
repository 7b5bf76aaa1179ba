"""The dialog that explains a log file: why the vLLM failed that wrote it, wherever it ran."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input, Static

from dflash_tui.common.errors import DflashError
from dflash_tui.diagnosis.log_source import LogSource
from dflash_tui.diagnosis.posted_log import LogExplanation, explain_log, format_explanation
from dflash_tui.tui.composition import once_composed
from dflash_tui.tui.dialogs.basic import Dialog
from dflash_tui.tui.widgets.basic import TextField, render_error

_EDGES = 4


class LogDialog(Dialog[None]):
    """Asks for a log file, and shows why its server failed, the lines that show it, and what to do."""

    HEADING: ClassVar = "explain a log"
    BINDINGS: ClassVar = [Binding("escape", "dismiss", "close", key_display="esc")]

    def __init__(self) -> None:
        super().__init__()
        self.explanation: LogExplanation | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide"):
            yield TextField(id="log-file", placeholder="log file of any vLLM, docker or journalctl")
            with VerticalScroll(id="explanation"):
                yield Static(id="why", markup=False)

    @once_composed
    def on_mount(self) -> None:
        self.query_one("#explanation").display = False
        self.query_one(TextField).open()

    def on_resize(self) -> None:
        """Wrap the text anew."""
        if self.explanation:
            self._show(self.explanation)

    @on(Input.Submitted)
    def _explain(self, event: Input.Submitted) -> None:
        if name := event.value.strip():
            self._read(str(Path(name).expanduser().absolute()))

    @work(exclusive=True)
    async def _read(self, name: str) -> None:
        self._write(Content(f"reading {name} …"))
        try:
            self.explanation = await asyncio.to_thread(lambda: explain_log(LogSource(name)))
        except DflashError as error:
            self.explanation = None
            self._write(render_error(error.what, error.evidence, error.hint))
        else:
            self._show(self.explanation)
            self.query_one("#explanation").focus()

    def _show(self, explanation: LogExplanation) -> None:
        width = self.query_one(".dialog").content_size.width - _EDGES
        self._write(Content(format_explanation(explanation, width)))

    def _write(self, content: Content) -> None:
        self.query_one("#explanation").display = True
        self.query_one("#why", Static).update(content)
