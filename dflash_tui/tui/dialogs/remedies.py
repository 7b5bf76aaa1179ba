"""What may help after a failure, laid over the run screen: choose a change, read the new command, launch it."""

from __future__ import annotations

import asyncio
import difflib
import os
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from dflash_tui.common.errors import DflashError
from dflash_tui.diagnosis.postmortem import Postmortem
from dflash_tui.launch import planner
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.planning import plan as plans
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.request import LaunchChanges
from dflash_tui.planning.resolution import ResolvedRecipe
from dflash_tui.runs import lifecycle
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.doctor import Doctor
from dflash_tui.tui.widgets.basic import MUTED

Launch = tuple[ResolvedRecipe, Plan, str]


class RemedyDialog(ModalScreen[Launch | None]):
    """Offers the remedies of a failed run; ends with the setup, the plan and the reason of a launch, or with None.

    A variable that a remedy needs is asked for, and kept in this program's environment only.
    """

    BINDINGS: ClassVar = [
        Binding("escape,q", "dismiss(None)", "leave it"),
        Binding("down,j", "choose(1)", "next"),
        Binding("up,k", "choose(-1)", "previous"),
        *(Binding(str(number), f"take({number})", f"choose {number}") for number in range(1, 10)),
        Binding("enter,y", "launch", "launch", priority=False),
    ]

    def __init__(self, run: Run, postmortem: Postmortem) -> None:
        super().__init__()
        self.run, self.postmortem, self.chosen = run, postmortem, 0
        self.planned: PlannedLaunch | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide"):
            yield Static(Content.assemble((f"Launch {self.run.plan.recipe} again?", "bold")), markup=False)
            yield Static(id="remedies", markup=False)
            with VerticalScroll(id="checks"):
                yield Static(id="change", markup=False)
            yield Input(id="because", password=True)
            yield Static(Content("\nenter  check and launch   ↑ ↓  choose   esc  leave it"), classes="muted")

    def on_mount(self) -> None:
        self.query_one("#because").display = False
        self.query_one("#checks").focus()
        self.draw()

    def draw(self) -> None:
        """Show the remedies and what the chosen one changes."""
        rows = [
            Content.assemble(
                ("▶ " if place == self.chosen else "  ", "bold $primary"),
                (f"{place + 1}  ", MUTED),
                (remedy.words, "bold" if place == self.chosen else ""),
            )
            for place, remedy in enumerate(self.postmortem.remedies)
        ]
        self.query_one("#remedies", Static).update(Content("\n").join([Content(""), *rows]))
        self.query_one("#change", Static).update(Content.assemble(("looking …", MUTED)))
        self.planned = None
        self.refresh_plan()

    @work(exclusive=True, group="fix")
    async def refresh_plan(self) -> None:
        """Plan the chosen remedy in another thread, and show what changes."""
        remedy, command = self.postmortem.remedies[self.chosen], self.postmortem.commands[self.chosen]
        change = self.query_one("#change", Static)
        try:
            self.planned = await asyncio.to_thread(plan_relaunch, self.run, remedy.changes)
        except (DflashError, OSError) as error:
            change.update(Content.assemble(("✗ ", "bold $error"), str(error)))
            return
        rows = [Content.assemble(("command", "bold")), Content(command), Content("")]
        rows += [
            Content.assemble(("what changes of vLLM's command", "bold")),
            *_render_changes(self.run.plan, self.planned.plan),
        ]
        if self.postmortem.leftovers:
            note = "what is left of the failed server is stopped first"
            rows += [Content(""), Content.assemble(("! ", "bold $warning"), note)]
        change.update(Content("\n").join(rows))

    def action_choose(self, step: int) -> None:
        self.chosen = (self.chosen + step) % len(self.postmortem.remedies)
        self.draw()

    def action_take(self, number: int) -> None:
        if number <= len(self.postmortem.remedies):
            self.chosen = number - 1
            self.draw()

    def action_launch(self) -> None:
        """Launch the chosen one, after asking for what it needs."""
        needs, entry = self.postmortem.remedies[self.chosen].needs, self.query_one("#because", Input)
        if self.planned is None:
            return
        if needs and not os.environ.get(needs):
            entry.placeholder = f"{needs}: kept until the panel is left, and written nowhere"
            entry.display = True
            entry.focus()
            return
        self.check(self.planned.setup, self.planned.plan)

    @on(Input.Submitted, "#because")
    def _on_variable_entered(self, message: Input.Submitted) -> None:
        message.stop()
        if (value := message.value.strip()) and self.planned:
            os.environ[self.postmortem.remedies[self.chosen].needs] = value
            self.check(self.planned.setup, self.planned.plan)

    @work(exclusive=True, group="fix")
    async def check(self, setup: ResolvedRecipe, plan: Plan) -> None:
        """End what is left, check the plan as every launch is checked, and hand it on."""
        if self.postmortem.leftovers:
            try:
                await lifecycle.stop_server(self.run)
            except DflashError as error:
                self.query_one("#change", Static).update(Content(str(error)))
                return
        reason = await self.app.push_screen_wait(Doctor(setup, plan, launching=True))
        if reason is not None:
            self.dismiss((setup, plan, reason))


def plan_relaunch(run: Run, changes: LaunchChanges) -> PlannedLaunch:
    """Return the plan of launching `run` again with `changes`, on a free port unless one was asked for.

    Raises:
        UsageError: the recipe is gone, or does not take a change any more.
    """
    request = run.plan.relaunch_request.with_changes(changes)
    planned = planner.plan_launch_here(request)
    if not request.port and (port := lifecycle.find_free_port(planned.plan.port)) != planned.plan.port:
        planned = planner.plan_launch_here(request, port=port)
    return planned


def _render_changes(before: Plan, after: Plan) -> list[Content]:
    """Return the lines of the two commands that differ, the old ones with a minus."""
    rows = []
    for line in difflib.ndiff(plans.format_command(before).splitlines(), plans.format_command(after).splitlines()):
        mark, text = line[:2], line[2:].strip().removesuffix("\\").strip()
        if mark in {"- ", "+ "}:
            rows.append(Content.assemble((mark, "bold $error" if mark == "- " else "bold $success"), text))
    return rows or [Content.assemble(("nothing: the same once more", MUTED))]
