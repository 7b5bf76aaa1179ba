"""The dialog of a plan's patches: their states and diffs; keys apply and revert them."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from dflash_tui.common.errors import DflashError
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.engines import engine_python, inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import patch_set, patcher, transaction
from dflash_tui.engines.patching.status import PatchState, PatchStatus
from dflash_tui.engines.patching.transaction import UnfinishedChange
from dflash_tui.planning import patch_file
from dflash_tui.planning.plan import Plan
from dflash_tui.tui.composition import once_composed
from dflash_tui.tui.dialogs.basic import Confirm, Dialog, ErrorDialog, measure_text
from dflash_tui.tui.dialogs.trust import ask_patch_trust
from dflash_tui.tui.render.plan import render_hung
from dflash_tui.tui.widgets.basic import MUTED

_MARKS = {
    PatchState.NEEDED: ("+ ", "bold $warning"),
    PatchState.APPLIED: ("✓ ", "$success"),
    PatchState.APPLIED_BY_OTHER: ("✓ ", "$warning"),
    PatchState.UPSTREAM: ("· ", MUTED),
    PatchState.NOT_APPLICABLE: ("· ", MUTED),
    PatchState.DRIFTED: ("✗ ", "bold $error"),
}
_WORDS = {
    PatchState.NEEDED: "needed, a launch applies it",
    PatchState.APPLIED: "applied by dflash-tui",
    PatchState.APPLIED_BY_OTHER: "already applied, not by dflash-tui",
    PatchState.UPSTREAM: "not needed",
    PatchState.NOT_APPLICABLE: "not needed",
    PatchState.DRIFTED: "does not fit",
}
_LINES = {"+": "$success", "-": "$error", "@": "$primary"}


class PatchView(NamedTuple):
    """What the dialog shows."""

    engine: Engine | None
    """The engine, if it is installed."""
    states: tuple[PatchStatus, ...]
    """The state of each patch."""
    diffs: str
    """What the patches change, and how the source differs where one does not fit."""
    unfinished: UnfinishedChange | None
    """An interrupted change of the engine's files."""
    unusable: dict[str, str]
    """Patch files that are not valid: name -> reason."""


def read_patch_view(plan: Plan) -> PatchView:
    """Return the states and diffs of the patches of `plan`; without an engine by what their files say."""
    engine = inventory.find_any_engine(Path(plan.engine_folder))
    _, unusable = patch_file.load_all_patches()
    if engine is None:
        states = tuple(patch_set.list_planned_states(plan))
        return PatchView(None, states, "".join(map(_format_edits, plan.patches)), None, unusable)
    unfinished = transaction.find_unfinished_change(engine)
    if unfinished and unfinished.repairs_itself:  # the state of half a change says nothing
        return PatchView(engine, (), "", unfinished, unusable)
    states = tuple(patch_set.patch_status(plan, engine))
    diffable = {PatchState.NEEDED, PatchState.APPLIED}
    fitting = [patch_file.load_patch(state.name) for state in states if state.state in diffable]
    diffs = "".join(patcher.preview_patches(fitting, engine, plan.hardware).values())
    drift = "".join(f"{state.name} expects other text:\n{state.drift}" for state in states if state.drift)
    return PatchView(engine, states, drift + diffs, unfinished, unusable)


def _format_edits(name: str) -> str:
    """Return the edits of a patch as lines of a diff; line numbers are known once the engine is installed."""
    lines = []
    for file in patch_file.load_patch(name).files:
        lines.append(f"--- a/vllm/{file.path}\n+++ b/vllm/{file.path}\n")
        for number, edit in enumerate(file.edits, 1):
            changed = difflib.unified_diff(edit.old.splitlines(), edit.new.splitlines(), lineterm="")
            hunk = [line for line in changed if not line.startswith(("--- ", "+++ ", "@@"))]
            lines += [f"@@ edit {number} of {len(file.edits)} @@\n", *(f"{line}\n" for line in hunk)]
    return "".join(lines)


def render_patches(view: PatchView, width: int) -> Content:
    """Return the rows of the patches, wrapped at `width` cells, and, below, their diffs in colour."""
    rows = [row for state in view.states for row in _render_rows(state, width)]
    if not rows and not view.unfinished:
        rows.append(Content("this recipe needs no patch of vLLM"))
    if view.unfinished:
        rows.append(render_hung(("! ", "bold $error"), clean_line(view.unfinished.message), width))
    for name, why in view.unusable.items():
        rows.append(_name_row(("! ", "bold $warning"), name, f"its file is unusable: {clean_line(why)}", width))
    lines = [_render_diff_line(clean_line(line)) for line in view.diffs.splitlines()]
    return Content("\n").join([*rows, *([Content("")] if lines else []), *lines])


def _render_rows(status: PatchStatus, width: int) -> list[Content]:
    why = f": {status.why}" if status.why else ""
    rows = [_name_row(_MARKS[status.state], status.name, f"{_WORDS[status.state]}{why}", width)]
    if status.state not in {PatchState.UPSTREAM, PatchState.NOT_APPLICABLE}:
        rows.append(render_hung(("  ", ""), patch_file.load_patch(status.name).title, width).stylize(MUTED))
    return rows


def _name_row(mark: tuple[str, str], name: str, text: str, width: int) -> Content:
    return render_hung(mark, f"{name}  {text}", width).stylize("bold", len(mark[0]), len(mark[0]) + len(name))


def _render_diff_line(line: str) -> Content:
    if line.startswith(("--- ", "+++ ")):
        return Content.assemble((line, "bold"))
    return Content.assemble((line, _LINES.get(line[:1], "$foreground 70%")))


class PatchScreen(Dialog[None]):
    """Shows the patches of a plan and what they change; `a` applies them, `R` reverts those that we applied."""

    HEADING: ClassVar = "patches"
    BINDINGS: ClassVar = [
        Binding("escape,q,p", "dismiss", "close", key_display="esc"),
        Binding("a", "apply", "apply now"),
        Binding("R", "revert", "revert"),
    ]

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self.view: PatchView | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide"):
            yield Static(Content("reading the engine's files …"), id="verdict", markup=False)
            with VerticalScroll(id="checks"):
                yield Static(id="found", markup=False)

    @once_composed
    def on_mount(self) -> None:
        self.query_one("#checks").focus()
        self.act(None)

    @work(exclusive=True)
    async def act(self, work: Callable[[Engine], patcher.PatchOutcome] | None) -> None:
        """Do `work` with the engine's files, if any, and read them again."""
        try:
            if work and self.view and self.view.engine:
                self.query_one("#verdict", Static).update(Content("changing the engine's files …"))
                outcome = await engine_python.run_in_cancellable_thread(partial(work, self.view.engine))
                for note in outcome.notes:
                    self.notify(note, markup=False, timeout=10)
            self.view = await asyncio.to_thread(read_patch_view, self.plan)
        except (DflashError, OSError) as error:
            self.app.push_screen(ErrorDialog(error if isinstance(error, DflashError) else DflashError(str(error))))
        if self.view is None:
            self.query_one("#verdict", Static).update(Content("the engine's files could not be read"))
            return
        engine = self.view.engine
        where = f"{engine.distribution} {engine.vllm} in {engine.folder}" if engine else f"vLLM {self.plan.vllm}"
        note = "" if engine else ", not installed yet: a launch installs it and applies what is needed"
        self.query_one("#verdict", Static).update(Content.assemble((f"patches of {where}", "bold"), note))
        self.draw()
        self.refresh_bindings()

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Show what was read, wrapped to the width that there is."""
        if self.view:
            rows = render_patches(self.view, measure_text(self.query_one("#checks")))
            self.query_one("#found", Static).update(rows)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        if action not in {"apply", "revert"}:
            return True
        return self.view is not None and self.view.engine is not None and (action == "apply" or bool(self._ours))

    @property
    def _ours(self) -> list[str]:
        """The patches that dflash-tui applied."""
        return [state.name for state in self.view.states if state.state is PatchState.APPLIED] if self.view else []

    def action_apply(self) -> None:
        if self.view is None or (engine := self.view.engine) is None:
            return
        try:
            patches = patch_set.patches_for(self.plan)
        except DflashError as error:
            self.app.push_screen(ErrorDialog(error))
            return
        work = partial(patcher.apply_patches, patches.add, hardware=self.plan.hardware, remove=patches.remove)
        ask_patch_trust(self.app, patches.add, engine, lambda: self.act(work))

    def action_revert(self) -> None:
        if self.view is None or (engine := self.view.engine) is None:
            return
        ours = self._ours

        def revert(sure: bool | None) -> None:
            if sure:
                work = partial(patcher.revert_patches, names=ours)
                ask_patch_trust(self.app, (), engine, lambda: self.act(work), reverted=ours)

        detail = "The files are restored byte for byte. A launch applies the patches that it needs again."
        self.app.push_screen(Confirm(f"Revert {', '.join(ours)}?", detail, "revert"), revert)
