"""The patches of a plan, laid over the launch screen: how each stands, what it changes, applied and taken out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
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
from dflash_tui.tui.dialogs.basic import Confirm, ErrorDialog
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
    PatchState.APPLIED: "in, applied by us",
    PatchState.APPLIED_BY_OTHER: "in, by other hands",
    PatchState.UPSTREAM: "not needed",
    PatchState.NOT_APPLICABLE: "not needed",
    PatchState.DRIFTED: "does not fit",
}
_LINES = {"+": "$success", "-": "$error", "@": "$primary"}


class PatchView(NamedTuple):
    """What was found: the engine, if it is installed, how each patch stands, the diffs, what has to be mended.

    `unusable` says of files that are no patches why.
    """

    engine: Engine | None
    found: tuple[PatchStatus, ...]
    diffs: str
    trouble: UnfinishedChange | None
    unusable: dict[str, str]


def read_patch_view(plan: Plan) -> PatchView:
    """Return how the patches of `plan` stand; without an engine what its files say."""
    engine = inventory.find_any_engine(Path(plan.engine_folder))
    _, unusable = patch_file.load_all_patches()
    if engine is None:
        planned = [PatchStatus(name, PatchState.NEEDED) for name in plan.patches]
        left = [PatchStatus(name, PatchState.NOT_APPLICABLE, why) for name, why in plan.unneeded.items()]
        off = [PatchStatus(name, PatchState.NOT_APPLICABLE, "left out by hand") for name in plan.unpatched]
        return PatchView(None, (*planned, *left, *off), "".join(map(_edits, plan.patches)), None, unusable)
    trouble = transaction.find_unfinished_change(engine)
    if trouble and trouble.mends_itself:  # what half of a change looks like says nothing
        return PatchView(engine, (), "", trouble, unusable)
    found = tuple(patch_set.patch_status(plan, engine))
    fitting = [patch_file.load_patch(one.name) for one in found if one.state in {PatchState.NEEDED, PatchState.APPLIED}]
    diffs = "".join(patcher.preview_patches(fitting, engine, plan.hardware).values())
    drift = "".join(f"{one.name} expects other text:\n{one.drift}" for one in found if one.drift)
    return PatchView(engine, found, drift + diffs, trouble, unusable)


def _edits(name: str) -> str:
    """Return the edits of a patch as the lines of a diff; where they stand is known once the engine is installed."""
    said = []
    for file in patch_file.load_patch(name).files:
        said.append(f"--- a/vllm/{file.path}\n+++ b/vllm/{file.path}\n")
        for edit in file.edits:
            said += [f"-{line}\n" for line in edit.old.splitlines()] + [f"+{line}\n" for line in edit.new.splitlines()]
    return "".join(said)


def render_patches(looked: PatchView) -> Content:
    """Return the rows of the patches and, below, their diffs in colour."""
    rows = [_row(one) for one in looked.found]
    if not rows and not looked.trouble:
        rows.append(Content("this recipe needs no patch of vLLM"))
    if looked.trouble:
        rows.append(Content.assemble(("! ", "bold $error"), clean_line(looked.trouble.said)))
    for name, why in looked.unusable.items():
        rows.append(
            Content.assemble(("! ", "bold $warning"), (name, "bold"), f"  its file is unusable: {clean_line(why)}")
        )
    lines = [_line(clean_line(line)) for line in looked.diffs.splitlines()]
    return Content("\n").join([*rows, *([Content("")] if lines else []), *lines])


def _row(found: PatchStatus) -> Content:
    mark, style = _MARKS[found.state]
    why = f": {found.why}" if found.why else ""
    title = (
        f"  {patch_file.load_patch(found.name).title}\n"
        if found.state not in {PatchState.UPSTREAM, PatchState.NOT_APPLICABLE}
        else ""
    )
    head = Content.assemble((mark, style), (found.name, "bold"), f"  {_WORDS[found.state]}{why}")
    return Content.assemble(head, "\n", (title.rstrip("\n"), MUTED)) if title else head


def _line(line: str) -> Content:
    if line.startswith(("--- ", "+++ ")):
        return Content.assemble((line, "bold"))
    return Content.assemble((line, _LINES.get(line[:1], "$foreground 70%")))


class PatchScreen(ModalScreen[None]):
    """Shows the patches of a plan and what they change; `a` applies them, `R` takes out what we applied."""

    BINDINGS: ClassVar = [
        Binding("escape,q,p", "dismiss", "close"),
        Binding("a", "apply", "apply now"),
        Binding("R", "revert", "take out"),
    ]

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self.looked: PatchView | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide"):
            yield Static(Content("looking at the engine's files …"), id="verdict", markup=False)
            with VerticalScroll(id="checks"):
                yield Static(id="found", markup=False)
            yield Static(Content("\na  apply now   R  take out what we applied   esc  close"), classes="muted")

    def on_mount(self) -> None:
        self.query_one("#checks").focus()
        self.act(None)

    @work(exclusive=True)
    async def act(self, work: Callable[[Engine], patcher.PatchOutcome] | None) -> None:
        """Do what was asked for with the engine's files, if anything, and look at them again."""
        try:
            if work and self.looked and self.looked.engine:
                self.query_one("#verdict", Static).update(Content("changing the engine's files …"))
                done = await engine_python.run_in_cancellable_thread(partial(work, self.looked.engine))
                for said in done.notes:
                    self.notify(said, markup=False, timeout=10)
            self.looked = await asyncio.to_thread(read_patch_view, self.plan)
        except (DflashError, OSError) as error:
            self.app.push_screen(ErrorDialog(error if isinstance(error, DflashError) else DflashError(str(error))))
        if self.looked is None:
            self.query_one("#verdict", Static).update(Content("the files could not be looked at"))
            return
        engine = self.looked.engine
        where = f"{engine.distribution} {engine.vllm} in {engine.folder}" if engine else f"vLLM {self.plan.vllm}"
        note = "" if engine else ", not installed yet: a launch installs it and applies what is needed"
        self.query_one("#verdict", Static).update(Content.assemble((f"patches of {where}", "bold"), note))
        self.query_one("#found", Static).update(render_patches(self.looked))

    def action_apply(self) -> None:
        if self.looked and self.looked.engine is None:
            self.notify("the engine is not installed yet; a launch does both", severity="warning")
            return
        self.act(
            lambda engine: patcher.apply_patches(
                (aim := patch_set.patches_for(self.plan)).bring, engine, self.plan.hardware, drop=aim.out
            )
        )

    def action_revert(self) -> None:
        ours: Sequence[str] = (
            [one.name for one in self.looked.found if one.state is PatchState.APPLIED] if self.looked else []
        )
        if not ours:
            self.notify("there is nothing of ours in these files")
            return

        def revert(sure: bool | None) -> None:
            if sure:
                self.act(lambda engine: patcher.revert_patches(engine, ours))

        detail = "The files become what they were, byte for byte. A launch applies what it needs again."
        self.app.push_screen(Confirm(f"Take out {', '.join(ours)}?", detail, "take out"), revert)
