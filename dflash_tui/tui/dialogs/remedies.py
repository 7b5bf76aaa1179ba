"""What may help after a failure, laid over the run screen: choose a change, read the new command, launch it."""

from __future__ import annotations

import asyncio
import os
import textwrap
from typing import ClassVar, NamedTuple, Protocol

from msgspec.structs import replace
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input, Static

from dflash_tui.common.errors import DflashError
from dflash_tui.diagnosis.remedies import Remedy
from dflash_tui.launch import planner
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.planning.request import LaunchChanges
from dflash_tui.runs import lifecycle
from dflash_tui.runs.run import Run
from dflash_tui.tui.composition import once_composed
from dflash_tui.tui.dialogs.basic import Dialog, measure_text
from dflash_tui.tui.dialogs.doctor import Doctor
from dflash_tui.tui.render.command_diff import render_command_diff
from dflash_tui.tui.widgets.basic import MUTED
from dflash_tui.tui.widgets.text_field import TextField

Launch = tuple[ResolvedRecipe, Plan, str]


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


def _hang(words: str, width: int) -> str:
    """Return the words of a remedy in rows that stand behind its mark and number."""
    indent = 5
    return f"\n{'':{indent}}".join(textwrap.wrap(words, max(20, width - indent)))


class RemedyDialog(Dialog[Launch | None]):
    """Offers changes of a run that is over; ends with the resolved recipe, the plan and why, or with None.

    A variable that a remedy needs is asked for, and kept in this program's environment only.
    """

    HEADING: ClassVar = "launch again"
    BINDINGS: ClassVar = [
        Binding("escape,q", "dismiss(None)", "cancel", key_display="esc"),
        Binding("down,j", "choose(1)", "choose", key_display="↑ ↓"),
        Binding("up,k", "choose(-1)", "previous", show=False),
        *(Binding(str(number), f"take({number})", f"choose {number}", show=False) for number in range(1, 10)),
        Binding("enter", "launch", "check and launch", key_display="⏎", priority=True),
        Binding("y", "launch", "check and launch", show=False),
    ]

    def __init__(self, run: Run, offer: Offer) -> None:
        super().__init__()
        self.run, self.offer, self.chosen = run, offer, 0
        self.planned: PlannedLaunch | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide"):
            yield Static(Content.assemble((f"Launch {self.run.plan.recipe} again?", "bold")), markup=False)
            yield Static(id="remedies", markup=False)
            with VerticalScroll(id="checks"):
                yield Static(id="change", markup=False)
            yield TextField(id="because", password=True)

    @once_composed
    def on_mount(self) -> None:
        self.query_one("#because").display = False
        self.query_one("#checks").focus()
        self.draw()

    def draw(self) -> None:
        """Show the remedies and what the chosen one changes."""
        self.draw_remedies()
        self.query_one("#change", Static).update(Content.assemble(("looking …", MUTED)))
        self.planned = None
        self.refresh_plan()

    def draw_remedies(self) -> None:
        """List the remedies, whose further lines hang below the first."""
        width = self.query_one(".dialog").content_size.width or self.size.width
        rows = [
            Content.assemble(
                ("▶ " if place == self.chosen else "  ", "bold $primary"),
                (f"{place + 1}  ", MUTED),
                (_hang(remedy.words, width), "bold" if place == self.chosen else ""),
            )
            for place, remedy in enumerate(self.offer.remedies)
        ]
        self.query_one("#remedies", Static).update(Content("\n").join([Content(""), *rows]))

    def on_resize(self) -> None:
        """Wrap the remedies anew."""
        self.call_after_refresh(self.draw_remedies)

    @work(exclusive=True, group="fix")
    async def refresh_plan(self) -> None:
        """Plan the chosen remedy in another thread, and show what changes."""
        remedy, command = self.offer.remedies[self.chosen], self.offer.commands[self.chosen]
        change = self.query_one("#change", Static)
        try:
            self.planned = await asyncio.to_thread(plan_relaunch, self.run, remedy.changes)
        except (DflashError, OSError) as error:
            change.update(Content.assemble(("✗ ", "bold $error"), str(error)))
            return
        rows = [Content.assemble(("command", "bold")), Content(command), Content("")]
        rows += [
            Content.assemble(("what changes of vLLM's command", "bold")),
            *render_command_diff(self.run.plan, self.planned.plan, measure_text(self.query_one("#checks"))),
        ]
        if self.offer.leftovers:
            note = "what is left of the failed server is stopped first"
            rows += [Content(""), Content.assemble(("! ", "bold $warning"), note)]
        change.update(Content("\n").join(rows))

    def action_choose(self, step: int) -> None:
        self._choose((self.chosen + step) % len(self.offer.remedies))

    def action_take(self, number: int) -> None:
        if number <= len(self.offer.remedies):
            self._choose(number - 1)

    def _choose(self, place: int) -> None:
        """Choose another remedy: a variable that was asked for is one of the other's."""
        self.chosen, entry = place, self.query_one("#because", Input)
        entry.clear()
        entry.display = False
        self.remove_class("-typing")
        self.set_focus(self.query_one("#checks"))
        self.draw()

    def action_launch(self) -> None:
        """Launch the chosen one, after asking for what it needs."""
        needs, entry = self.offer.remedies[self.chosen].needs, self.query_one(TextField)
        if self.planned is None:
            return
        if value := entry.value.strip():
            os.environ[needs] = value
        if needs and not os.environ.get(needs):
            entry.placeholder = f"{needs}: kept in memory until the panel is closed, never written to disk"
            self.add_class("-typing")
            entry.open()
            return
        self.check(self.planned.resolved, self.planned.plan)

    @work(exclusive=True, group="fix")
    async def check(self, resolved: ResolvedRecipe, plan: Plan) -> None:
        """End what is left, check the plan as every launch is checked, and hand it on."""
        if self.offer.leftovers:
            try:
                await lifecycle.stop_server(self.run)
            except DflashError as error:
                self.query_one("#change", Static).update(Content(str(error)))
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
