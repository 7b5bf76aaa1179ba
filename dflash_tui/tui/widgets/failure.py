"""The failure pane: what happened, the cause, the evidence, what to do, and which remedies a key would launch."""

from __future__ import annotations

import textwrap

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import truncate_middle
from dflash_tui.diagnosis.cause import shorten_frame
from dflash_tui.diagnosis.postmortem import Postmortem, build_postmortem
from dflash_tui.run_state.state import RunState
from dflash_tui.runs.run import Run
from dflash_tui.tui.widgets.basic import MUTED, render_error
from dflash_tui.vllm_output.known_failures import cut_after_sign

_LABEL = 10
_QUOTED_LINES = 2
_RAGGED = 8  # cells that a line loses where a long word wraps
_NARROWEST = 20
_EDGES = 6


class FailurePane(VerticalScroll):
    """Shows why a run could not be prepared or launched, or why it failed; hidden while there is no failure."""

    def __init__(self) -> None:
        super().__init__(id="failure")
        self.border_title = "failure"
        self.postmortem: Postmortem | None = None
        self._error: DflashError | None = None
        self._last_state: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        yield Static(id="reason", markup=False)

    def show(self, run: Run | None, state: RunState, error: DflashError | None) -> bool:
        """Show what is wrong with `run`; return whether something is."""
        self._find_cause(run, state, error)
        if error is None and self.postmortem is None:
            return False
        self._error = error
        self._write()
        return True

    def on_resize(self) -> None:
        """Wrap the text anew: a pane that was hidden has no width before."""
        self._write()

    def _write(self) -> None:
        width = self.scrollable_content_region.width or self.app.size.width - _EDGES
        if error := self._error:
            content = render_error(error.what, error.evidence, error.hint)
        elif self.postmortem:
            content = render_postmortem(self.postmortem, width, short=self.screen.has_class("-short"))
        else:
            return
        reason = self.query_one("#reason", Static)
        if content != reason.content:
            reason.update(content)

    def _find_cause(self, run: Run | None, state: RunState, error: DflashError | None) -> None:
        """Find the cause again only when something changed, since that scans processes and ports, too."""
        run_state = (run.id if run else "", state.status, state.exit, state.autopsy, tuple(state.problems), error)
        if run_state != self._last_state:
            self._last_state = run_state
            self.postmortem = build_postmortem(run, state) if run and error is None else None


def render_postmortem(postmortem: Postmortem, width: int, *, short: bool = False) -> Content:
    """Return a post-mortem in rows of `width` cells: the cause first, and what the keys would do.

    The lines that decide are whole, but on a `short` screen they have two rows, so that what helps is in sight.
    """
    diagnosis, quoted = postmortem.diagnosis, _QUOTED_LINES * max(_NARROWEST, width - _LABEL - _RAGGED)
    rows = [_hung(("✗ ", "bold $error"), diagnosis.what, width, "bold")]
    rows.append(_row("cause", diagnosis.cause, width, "bold"))
    for place, line in enumerate(line for line in (*diagnosis.evidence, postmortem.leftovers) if line):
        whole = shorten_frame(line)  # in full it has room for what a cut line did not show
        excerpt = truncate_middle(cut_after_sign(whole), quoted) if short else whole
        rows.append(_row("" if place else "evidence", excerpt, width))
    for place, step in enumerate(diagnosis.fix):
        rows.append(_row("" if place else "to do", step, width))
    if diagnosis.link:
        rows.append(_row("", diagnosis.link, width))
    for place, remedy in enumerate(postmortem.remedies, 1):
        key = "f" if place == 1 else f"f {place}"
        rows.append(_hung((f"{key:>{_LABEL - 2}}  ", "bold $primary"), remedy.words, width))
    rows.append(_row("log", postmortem.log, width))
    return Content("\n").join(rows)


def _row(label: str, text: str, width: int, style: str = "") -> Content:
    return _hung((f"{label:{_LABEL}}", MUTED), text, width, style)


def _hung(head: tuple[str, str], text: str, width: int, style: str = "") -> Content:
    """Return a head and its text, whose further lines hang below the first."""
    indent = len(head[0])
    lines = textwrap.wrap(text, max(_NARROWEST, width - indent)) or [""]
    return Content.assemble(head, (f"\n{'':{indent}}".join(lines), style))
