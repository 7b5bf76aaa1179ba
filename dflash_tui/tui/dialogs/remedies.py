"""What may help after a failure, laid over the run screen: choose a change, read the new command, launch it."""

from __future__ import annotations

import asyncio
import os
import textwrap
from typing import ClassVar, NamedTuple, Protocol

from msgspec.structs import replace
from textual import on, work
from textual.binding import Binding
from textual.content import Content
from textual.widgets import OptionList

from dflash_tui.common.errors import DflashError
from dflash_tui.diagnosis.remedies import Remedy
from dflash_tui.launch import planner
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.planning.request import LaunchChanges
from dflash_tui.runs import lifecycle
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.basic import measure_text
from dflash_tui.tui.dialogs.doctor import Doctor
from dflash_tui.tui.dialogs.list import ListDialog
from dflash_tui.tui.render.command_diff import render_command_diff
from dflash_tui.tui.widgets.basic import MUTED, MUTED_ROW

Launch = tuple[ResolvedRecipe, Plan, str]
_INDENT = 4  # cells of a remedy's number


class Offer(Protocol):
    """What may be launched in place of a run; a `Postmortem` is one."""

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        """The changes that are offered."""

    @property
    def commands(self) -> tuple[str, ...]:
        """The command line of each."""

    @property
    def leftovers(self) -> str:
        """A sentence about processes of the run that still run; empty for none."""


class SameAgain(NamedTuple):
    """The offer of launching a run as it was."""

    remedies: tuple[Remedy, ...]
    commands: tuple[str, ...]
    leftovers: str = ""


def offer_same_again(run: Run) -> SameAgain:
    """Return the offer of launching `run` as it was, by today's recipe."""
    return SameAgain((Remedy("as it was"),), (run.plan.relaunch_request.to_command(),))


class RemedyDialog(ListDialog[Launch]):
    """Offers changes of a run that is over; ends with the resolved recipe, the plan and why, or with None.

    A variable that a remedy needs is asked for, and kept in this program's environment only.
    """

    HEADING: ClassVar = "launch again"
    SECRET: ClassVar = True
    BINDINGS: ClassVar = [
        Binding("enter", "choose", "check and launch", key_display="⏎", priority=True),
        Binding("enter", "take", "check and launch", key_display="⏎", priority=True),
        Binding("y", "choose", "check and launch", show=False),
        Binding("down,j", "highlight(1)", "next", show=False),
        Binding("up,k", "highlight(-1)", "previous", show=False),
        *(Binding(str(number), f"go_to({number})", f"choose {number}", show=False) for number in range(1, 10)),
        Binding("escape,q", "dismiss(None)", "cancel", key_display="esc"),
    ]

    def __init__(self, run: Run, offer: Offer) -> None:
        super().__init__()
        self.run, self.offer = run, offer
        self.planned: PlannedLaunch | None = None

    def on_mount(self) -> None:
        self.show_heading(Content.assemble((f"Launch {self.run.plan.recipe} again?", "bold")))
        self.draw()

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """List the remedies, whose further lines hang below the first."""
        width = max(20, self.row_width - _INDENT)
        indent = f"\n{'':{_INDENT}}"
        rows = [
            Content.assemble((f"{number:>2}  ", MUTED_ROW), indent.join(textwrap.wrap(remedy.words, width)))
            for number, remedy in enumerate(self.offer.remedies, 1)
        ]
        self.show_rows(rows, self.place)

    @on(OptionList.OptionHighlighted)
    def _on_highlighted(self) -> None:
        """Show what the highlighted remedy changes."""
        self.show_detail(Content.assemble(("looking …", MUTED)))
        self.planned = None
        self.refresh_plan()

    @work(exclusive=True, group="fix")
    async def refresh_plan(self) -> None:
        """Plan the highlighted remedy in another thread, and show what changes."""
        remedy, command = self.offer.remedies[self.place], self.offer.commands[self.place]
        try:
            self.planned = await asyncio.to_thread(plan_relaunch, self.run, remedy.changes)
        except (DflashError, OSError) as error:
            self.show_detail(Content.assemble(("✗ ", "bold $error"), str(error)))
            return
        rows = [Content.assemble(("command", "bold")), Content(command), Content("")]
        rows += [
            Content.assemble(("what changes of vLLM's command", "bold")),
            *render_command_diff(self.run.plan, self.planned.plan, measure_text(self.detail)),
        ]
        if self.offer.leftovers:
            note = "what is left of the failed server is stopped first"
            rows += [Content(""), Content.assemble(("! ", "bold $warning"), note)]
        self.show_detail(Content("\n").join(rows))

    def action_highlight(self, step: int) -> None:
        self.action_go_to((self.place + step) % len(self.offer.remedies) + 1)

    def action_go_to(self, number: int) -> None:
        """Highlight another one; a variable that was asked for is one of the other's."""
        if self.is_typing:
            self.close_field()
        if number <= len(self.offer.remedies):
            self.rows.highlighted = number - 1

    def action_choose(self) -> None:
        """Launch the highlighted one, after asking for what it needs."""
        needs = self.offer.remedies[self.place].needs
        if needs and not os.environ.get(needs):
            self.open_field("", f"{needs}: kept in memory until the panel is closed, never written to disk")
        elif self.planned:
            self.check(self.planned.resolved, self.planned.plan)

    def action_take(self) -> None:
        """Launch with the variable that was typed."""
        if value := self.field.value.strip():
            os.environ[self.offer.remedies[self.place].needs] = value
            self.close_field()
            self.action_choose()

    @work(exclusive=True, group="fix")
    async def check(self, resolved: ResolvedRecipe, plan: Plan) -> None:
        """End what is left, check the plan as every launch is checked, and hand it on."""
        if self.offer.leftovers:
            try:
                await lifecycle.stop_server(self.run)
            except DflashError as error:
                self.show_detail(str(error))
                return
        reason = await self.app.push_screen_wait(Doctor(resolved, plan, launching=True))
        if reason is not None:
            self.dismiss((resolved, plan, reason))


def plan_relaunch(run: Run, changes: LaunchChanges) -> PlannedLaunch:
    """Return the plan of launching `run` again with `changes`, on a free port unless one was asked for.

    Raises:
        UsageError: the recipe is gone, or does not take a change any more.
    """
    request = run.plan.relaunch_request.with_changes(changes)
    # The link of then, which the launch looks up again.
    cluster = run.plan.cluster and replace(run.plan.cluster, is_named=False)
    planned = planner.plan_launch_here(request, cluster=cluster)
    if not request.port and (port := lifecycle.find_free_port(planned.plan.port)) != planned.plan.port:
        planned = planner.plan_launch_here(request, port=port, cluster=cluster)
    return planned
