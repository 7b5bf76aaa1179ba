"""The dialog of a plan's patches: their states and diffs; a key builds the patched engine."""

from __future__ import annotations

import asyncio
import difflib
from pathlib import Path
from typing import ClassVar, NamedTuple

from textual import work
from textual.binding import Binding
from textual.content import Content

from dflash_tui.common.sanitizer import clean_line
from dflash_tui.engines import inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import patched_engine, status
from dflash_tui.engines.patching.status import PatchState, PatchStatus
from dflash_tui.events import Preparing
from dflash_tui.launch import preparation
from dflash_tui.planning import patch_file
from dflash_tui.planning.plan import Plan
from dflash_tui.tui.dialogs.basic import TextDialog, confirm_patch_trust, showing_errors
from dflash_tui.tui.render.plan import render_hung
from dflash_tui.tui.widgets.basic import MUTED, once_composed

_MARKS = {
    PatchState.NEEDED: ("+ ", "bold $warning"),
    PatchState.APPLIED: ("✓ ", "$success"),
    PatchState.APPLIED_BY_OTHER: ("✓ ", "$warning"),
    PatchState.UPSTREAM: ("· ", MUTED),
    PatchState.NOT_APPLICABLE: ("· ", MUTED),
    PatchState.DRIFTED: ("✗ ", "bold $error"),
}
_WORDS = {
    PatchState.NEEDED: "needed: a launch makes an engine with it",
    PatchState.APPLIED: "in this engine",
    PatchState.APPLIED_BY_OTHER: "already applied, not by dflash-tui",
    PatchState.UPSTREAM: "not needed",
    PatchState.NOT_APPLICABLE: "not needed",
    PatchState.DRIFTED: "does not fit",
}
_DIFFABLE = frozenset({PatchState.NEEDED, PatchState.APPLIED})
_LINES = {"+": "$success", "-": "$error", "@": "$primary"}


class PatchView(NamedTuple):
    """The contents of the dialog."""

    engine: Engine | None
    """The engine, if it is installed."""
    states: tuple[PatchStatus, ...]
    """The state of each patch."""
    diffs: str
    """The changes of the patches, and the differing source where a patch does not apply."""
    unusable: dict[str, str]
    """Invalid patch files: name -> reason."""


def read_patch_view(plan: Plan) -> PatchView:
    """Return the states and diffs of a plan's patches; from the patch files if no engine is installed."""
    engine = inventory.find_planned_engine(plan)
    _, unusable = patch_file.load_all_patches()
    base = inventory.find_any_engine(Path(plan.unpatched_folder))
    states = tuple(status.patch_status(plan, engine))
    if engine is None or base is None:
        return PatchView(engine, states, "".join(map(_format_edits, plan.patches)), unusable)
    fitting = [patch_file.load_patch(state.name) for state in states if state.state in _DIFFABLE]
    diffs = "".join(patched_engine.preview_patches(fitting, base, plan.hardware).values())
    drift = "".join(f"{state.name} expects other text:\n{state.drift}" for state in states if state.drift)
    return PatchView(engine, states, drift + diffs, unusable)


def _format_edits(name: str) -> str:
    """Return the edits of a patch as a diff without line numbers, which need an installed engine."""
    lines = []
    for file in patch_file.load_patch(name).files:
        lines.append(f"--- a/vllm/{file.path}\n+++ b/vllm/{file.path}\n")
        for number, edit in enumerate(file.edits, 1):
            changed = difflib.unified_diff(edit.old.splitlines(), edit.new.splitlines(), lineterm="")
            hunk = [line for line in changed if not line.startswith(("--- ", "+++ ", "@@"))]
            lines += [f"@@ edit {number} of {len(file.edits)} @@\n", *(f"{line}\n" for line in hunk)]
    return "".join(lines)


def render_patches(view: PatchView, width: int) -> Content:
    """Return the rows of the patches, wrapped at `width` cells, with their coloured diffs below."""
    rows = [row for state in view.states for row in _render_rows(state, width)]
    if not rows:
        rows.append(Content("this recipe needs no patch of vLLM"))
    for name, why in view.unusable.items():
        rows.append(_name_row(("! ", "bold $warning"), name, f"its file is unusable: {why}", width))
    lines = [_render_diff_line(line) for line in view.diffs.splitlines()]
    return Content("\n").join([*rows, *([Content("")] if lines else []), *lines])


def _render_rows(status: PatchStatus, width: int) -> list[Content]:
    why = f": {status.why}" if status.why else ""
    rows = [_name_row(_MARKS[status.state], status.name, f"{_WORDS[status.state]}{why}", width)]
    if status.state not in {PatchState.UPSTREAM, PatchState.NOT_APPLICABLE}:
        rows.append(render_hung(("  ", ""), patch_file.load_patch(status.name).title, width).stylize(MUTED))
    return rows


def _name_row(mark: tuple[str, str], name: str, text: str, width: int) -> Content:
    return render_hung(mark, f"{name}  {text}", width).stylize("bold", len(mark[0]), len(mark[0]) + len(name))


def _render_diff_line(text: str) -> Content:
    line = clean_line(text)
    if line.startswith(("--- ", "+++ ")):
        return Content.assemble((line, "bold"))
    return Content.assemble((line, _LINES.get(line[:1], "$foreground 70%")))


class PatchScreen(TextDialog[None]):
    """Shows the patches of a plan and their diffs; `a` builds the patched engine."""

    HEADING: ClassVar = "patches"
    BINDINGS: ClassVar = [Binding("a", "apply", "make the engine now")]

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self.view: PatchView | None = None

    @once_composed
    def on_mount(self) -> None:
        self.show_heading("reading the engine's files …")
        self.run_worker(self._read(), exclusive=True)

    @work(exclusive=True)
    async def action_apply(self) -> None:
        """Build the patched engine once the patches are trusted."""
        engine = self.view.engine if self.view else None
        with showing_errors(self.app):
            if engine and await confirm_patch_trust(self.app, status.load_planned_patches(self.plan)):
                self.show_heading("making an engine with the patches …")
                await preparation.make_patched_engine(self.plan, engine, self._show_note)
        await self._read()

    async def _read(self) -> None:
        with showing_errors(self.app):
            self.view = await asyncio.to_thread(read_patch_view, self.plan)
        if self.view is None:
            self.show_heading("the engine's files could not be read")
            return
        engine = self.view.engine
        where = f"{engine.distribution} {engine.vllm} in {engine.folder}" if engine else f"vLLM {self.plan.vllm}"
        note = "" if engine else ", not installed yet: a launch installs it and makes one with the needed patches"
        self.show_heading(Content.assemble((f"patches of {where}", "bold"), note))
        self.draw()
        self.refresh_bindings()

    def render_text(self, width: int) -> Content:
        return render_patches(self.view, width) if self.view else Content("")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Make the engine only where it is missing and its base is installed."""
        engine = self.view.engine if self.view else None
        return action != "apply" or (engine is not None and engine.folder != self.plan.engine_folder)

    def _show_note(self, event: Preparing) -> None:
        self.notify(event.text, markup=False, timeout=10) if event.done else None
