"""What an A/B of the highlighted recipe would do, laid over the launch screen: what is varied, how often, how long."""

from __future__ import annotations

import asyncio
from typing import ClassVar, NamedTuple

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import format_percent, pluralize
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.events import Preparing
from dflash_tui.experiments import estimate
from dflash_tui.experiments import variation as varying
from dflash_tui.experiments.design import Design
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.resolution import ResolvedRecipe
from dflash_tui.presentation import experiment_text
from dflash_tui.runs import lifecycle
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.basic import Confirm
from dflash_tui.tui.dialogs.trust import ask_trust
from dflash_tui.tui.widgets.basic import MUTED
from dflash_tui.tui.widgets.failure import render_error

_MOST_BOOTS = 8


class PlannedExperiment(NamedTuple):
    """An experiment as it would be."""

    design: Design
    """What it is going to do."""
    setups: list[ResolvedRecipe]
    """The recipe as each arm has it."""
    rows: list[tuple[str, str]]
    """What it is going to do, for a reader: labels and texts."""
    in_the_way: list[Run]
    """Servers that would be measured, too."""


def plan_experiment(plan: Plan, vary: str, boots: int) -> PlannedExperiment:
    """Return the experiment of `plan` with that varied, so many boots per arm.

    Raises:
        UsageError: it cannot be varied so, or another experiment runs.
    """
    from dflash_tui.experiments import builder, controller

    request = builder.ExperimentRequest(plan.relaunch_request, vary, boots)
    design, setups = builder.build_experiment(request)
    in_the_way = controller.find_disturbing_servers(design)
    rows = experiment_text.list_design_rows(
        design, estimate.estimate_duration(design, setups), [run.id for run in in_the_way]
    )
    return PlannedExperiment(design, setups, rows, in_the_way)


class NewExperiment(ModalScreen[str | None]):
    """Asks whether an A/B shall begin; ends with its id once its driver lives, or with None."""

    BINDINGS: ClassVar = [
        Binding("escape,q", "dismiss(None)", "leave it"),
        Binding("h", "honest", "quick or honest"),
        Binding("plus,equals_sign", "boots(1)", "more boots"),
        Binding("minus", "boots(-1)", "fewer boots"),
        Binding("v", "vary", "what is varied"),
        Binding("enter", "begin", "begin"),
    ]

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan, self.vary, self.boots = plan, varying.DEFAULT, 2
        self.planned: PlannedExperiment | None = None
        self.beginning = False

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide"):
            yield Static(id="ab-head", markup=False)
            with VerticalScroll(id="checks"):
                yield Static(id="ab-words", markup=False)
            yield Input(
                id="because",
                placeholder="mode=eager,compile   spec=on,off   n=4,8,12   patch.NAME=on,off   env.NAME=0,1",
            )
            keys = "\nenter  begin   h  quick or honest   + -  boots   v  what is varied   esc  leave it"
            yield Static(Content(keys), classes="muted")

    def on_mount(self) -> None:
        self.query_one("#because").display = False
        self.query_one("#checks").focus()
        self.draw()

    def draw(self) -> None:
        """Say how sure it will be, and work out what it would do."""
        sure = "honest: the spread between boots is known" if self.boots > 1 else "quick: a verdict is only suggestive"
        head = Content.assemble(
            ("A/B ", "bold"), (clean_line(self.plan.recipe), "bold $primary"), f"  {clean_line(self.vary)}\n",
            (f"{pluralize(self.boots, 'boot')} of each arm", "bold"), (f", {sure}", MUTED),
        )  # fmt: skip
        self.query_one("#ab-head", Static).update(head)
        self.query_one("#ab-words", Static).update(Content.assemble(("looking …", MUTED)))
        self.planned = None
        self.refresh_plan()

    @work(exclusive=True, group="ab")
    async def refresh_plan(self) -> None:
        """Plan the experiment in another thread, and show the plan."""
        words = self.query_one("#ab-words", Static)
        try:
            self.planned = await asyncio.to_thread(plan_experiment, self.plan, self.vary, self.boots)
        except (DflashError, OSError) as error:
            words.update(_render_error(error))
            return
        rows = [*self.planned.rows, ("then", "continues in the background, also after the panel is closed")]
        lines = [Content.assemble((f"{label:<9}", MUTED), clean_line(text)) for label, text in rows]
        words.update(Content("\n").join(lines))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """While an experiment begins, allow nothing but closing the dialog."""
        return not self.beginning or action == "dismiss"

    def action_honest(self) -> None:
        self.boots = 1 if self.boots > 1 else 2
        self.draw()

    def action_boots(self, step: int) -> None:
        self.boots = max(1, min(_MOST_BOOTS, self.boots + step))
        self.draw()

    def action_vary(self) -> None:
        entry = self.query_one("#because", Input)
        entry.display, entry.value = True, self.vary
        entry.focus()

    @on(Input.Submitted, "#because")
    def _on_vary_entered(self, message: Input.Submitted) -> None:
        message.stop()
        message.input.display = False
        self.query_one("#checks").focus()
        self.vary = message.value.strip() or varying.DEFAULT
        self.draw()

    def action_begin(self) -> None:
        if planned := self.planned:
            setups = planned.setups
            ask_trust(self.app, setups[0].recipe, [setup.engine.vllm for setup in setups], self._ask_and_begin)

    def _ask_and_begin(self) -> None:
        """Begin what is planned, after asking where servers are in the way."""
        if (planned := self.planned) is None:
            return
        if not planned.in_the_way:
            self.begin_once(planned)
            return
        names = ", ".join(f"{run.plan.recipe} on :{run.plan.port}" for run in planned.in_the_way)
        detail = f"{names} would disturb the measurement. Requests under way are lost."
        self.app.push_screen(Confirm("Stop what is in the way?", detail, "stop it and begin"), self._on_confirmed)

    def _on_confirmed(self, yes: bool | None) -> None:
        if yes and self.planned:
            self.begin_once(self.planned)

    def begin_once(self, planned: PlannedExperiment) -> None:
        """Begin it and forget the plan; until it has begun or failed, no key but `escape` does anything."""
        self.planned, self.beginning = None, True
        self.query_one("#because").display = False
        self.begin(planned)

    @work(exclusive=True, group="ab")
    async def begin(self, planned: PlannedExperiment) -> None:
        """Check every arm, stop what is in the way, and leave the rest to a driver of its own."""
        from dflash_tui.experiments import controller
        from dflash_tui.launch import preparation

        words = self.query_one("#ab-words", Static)
        try:
            words.update(Content.assemble(("checking every arm …", MUTED)))
            await controller.check_arms(planned.design, planned.setups)
            for arm, setup in zip(planned.design.arms, planned.setups, strict=True):
                await preparation.prepare_engine_and_models(setup, arm.plan, self.show_preparing)
            for run in planned.in_the_way:
                words.update(Content.assemble((f"stopping {run.id} …", MUTED)))
                await lifecycle.stop_server(run)
            await asyncio.to_thread(controller.start_experiment, planned.design)
        except (DflashError, OSError) as error:
            self.beginning = False
            words.update(_render_error(error))
            return
        self.dismiss(planned.design.id)

    def show_preparing(self, event: Preparing) -> None:
        """Show what is installed, built or downloaded: that takes minutes the first time."""
        if self.is_mounted:
            share = f" {format_percent(event.fraction)}" if event.fraction is not None and not event.done else ""
            line = Content.assemble((f"{event.step.value}  ", "bold"), f"{clean_line(event.text)}{share}")
            self.query_one("#ab-words", Static).update(line)


def _render_error(error: DflashError | OSError) -> Content:
    if isinstance(error, DflashError):
        return render_error(error.what, error.evidence, error.hint)
    return render_error(error.strerror or str(error), "", "")
