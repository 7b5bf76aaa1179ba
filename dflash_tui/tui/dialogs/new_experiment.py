"""What an A/B of the highlighted recipe would do, laid over the launch screen: what is varied, how often, how long."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input, Static

from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import format_percent, pluralize
from dflash_tui.events import Preparing
from dflash_tui.experiments import builder
from dflash_tui.experiments import variation as varying
from dflash_tui.experiments.design import Design
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.presentation import experiment_text
from dflash_tui.tui.composition import once_composed
from dflash_tui.tui.dialogs.basic import Confirm, Dialog, measure_text
from dflash_tui.tui.dialogs.trust import confirm_trust
from dflash_tui.tui.render.plan import render_hung
from dflash_tui.tui.widgets.basic import MUTED, TextField, render_error

if TYPE_CHECKING:  # it comes after the first paint
    from dflash_tui.experiments.controller import ExperimentQuestion, ExperimentStep

_MOST_BOOTS = 8
_LABEL = 9
_THEN = ("then", "continues in the background, also after the panel is closed")


class PlannedExperiment(NamedTuple):
    """An experiment as it would be."""

    design: Design
    """What it is going to do."""
    resolved_recipes: list[ResolvedRecipe]
    """The recipe as each arm has it."""
    rows: list[tuple[str, str]]
    """What it is going to do, for a reader: labels and texts."""


def plan_experiment(plan: Plan, vary: str, boots: int) -> PlannedExperiment:
    """Return the experiment of `plan` with that varied, so many boots per arm.

    Raises:
        UsageError: it cannot be varied so, or another experiment runs.
    """
    from dflash_tui.experiments import controller

    request = builder.ExperimentRequest(plan.relaunch_request, vary, boots)
    design, resolved_recipes = builder.build_experiment(request, cluster=plan.cluster)
    in_the_way = controller.find_disturbing_servers(design)
    rows = experiment_text.list_design_rows(design, builder.estimate_duration(design), [run.id for run in in_the_way])
    return PlannedExperiment(design, resolved_recipes, rows)


class NewExperiment(Dialog[str | None]):
    """Asks whether an A/B shall begin; ends with its id once its driver lives, or with None."""

    HEADING: ClassVar = "new A/B"
    BINDINGS: ClassVar = [
        Binding("enter", "begin", "begin"),
        Binding("enter", "take", "take it", priority=True),
        Binding("v", "vary", "vary", priority=True),
        Binding("plus,equals_sign", "boots(1)", "boots", key_display="+ -"),
        Binding("minus", "boots(-1)", "fewer boots", show=False),
        Binding("h", "honest", "quick or honest"),
        Binding("escape,q", "leave", "leave it", key_display="esc"),
    ]
    TYPED: ClassVar = "what varies"
    EXAMPLES: ClassVar[Sequence[tuple[str, str]]] = (
        ("stock,ours", "the published command alone, and what our plan offers"),
        ("mode=eager,graphs", "also compile"),
        ("spec=on,off", "with and without speculation"),
        ("n=4,8,12", "drafted tokens per step; so any flag of vLLM"),
        ("profile=stock,seed", "also variant, vllm, env.NAME, patch.NAME=on,off"),
    )

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan, self.vary, self.boots = plan, varying.DEFAULT, 2
        self.last_vary = ""  # what varied before the field was opened
        self.planned: PlannedExperiment | None = None
        self.beginning = False

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide"):
            yield Static(id="ab-head", markup=False)
            with VerticalScroll(id="checks"):
                yield Static(id="ab-words", markup=False)
            yield TextField(id="because")

    @once_composed
    def on_mount(self) -> None:
        self.query_one("#because").border_title = self.TYPED
        self.end_typing()
        self.draw()

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw_rows)

    @property
    def typing(self) -> bool:
        """Whether what varies is being typed."""
        return self.has_class("-typing")

    def end_typing(self) -> None:
        """Close the field."""
        self.remove_class("-typing")
        self.query_one("#because").display = False
        self.set_focus(self.query_one("#checks"))
        self.refresh_bindings()

    def draw_rows(self) -> None:
        """Show what it would do; while somebody types, what can be typed."""
        if self.typing:
            self.show_rows(self.EXAMPLES)
        elif self.planned:
            self.show_rows([*self.planned.rows, _THEN])

    def show_rows(self, rows: Sequence[tuple[str, str]]) -> None:
        """Show labels and texts, whose further lines hang below the first."""
        width = measure_text(self.query_one("#checks"))
        column = max(_LABEL, *(len(label) + 2 for label, _ in rows))
        lines = [render_hung((f"{label:<{column}}", MUTED), text, width) for label, text in rows]
        self.query_one("#ab-words", Static).update(Content("\n").join(lines))

    def draw(self) -> None:
        """Say what it is, and work out what it would do."""
        self.query_one("#ab-head", Static).update(self.render_head())
        self.query_one("#ab-words", Static).update(Content.assemble(("looking …", MUTED)))
        self.planned = None
        self.refresh_plan()

    def render_head(self) -> Content:
        """Return what would begin, and how sure it will be."""
        sure = "honest: the spread between boots is known" if self.boots > 1 else "quick: a verdict is only suggestive"
        return Content.assemble(
            ("A/B ", "bold"), (self.plan.recipe, "bold $primary"), f"  {self.vary}\n",
            (f"{pluralize(self.boots, 'boot')} of each arm", "bold"), (f", {sure}", MUTED),
        )  # fmt: skip

    def plan_now(self) -> PlannedExperiment:
        """Return what would begin now; runs in a thread of its own.

        Raises:
            UsageError: it cannot be planned so, or another experiment runs.
        """
        return plan_experiment(self.plan, self.vary, self.boots)

    @work(exclusive=True, group="ab")
    async def refresh_plan(self) -> None:
        """Plan the experiment in another thread, and show the plan; what cannot be planned stays in its field."""
        words = self.query_one("#ab-words", Static)
        try:
            self.planned = await asyncio.to_thread(self.plan_now)
        except (DflashError, OSError) as error:
            words.update(_render_error(error))
            return
        if self.typing:
            self.end_typing()
        self.draw_rows()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """While an experiment begins, allow nothing but closing the dialog; while somebody types, what ends that."""
        if self.typing or action == "take":
            return self.typing and action in {"take", "leave"}
        return not self.beginning or action == "leave"

    def action_honest(self) -> None:
        self.boots = 1 if self.boots > 1 else 2
        self.draw()

    def action_boots(self, step: int) -> None:
        self.boots = max(1, min(_MOST_BOOTS, self.boots + step))
        self.draw()

    def action_vary(self) -> None:
        """Let it be typed, beside examples; a plan that is not made yet would close the field."""
        self.workers.cancel_group(self, "ab")
        entry = self.query_one(TextField)
        self.last_vary = entry.value = self.vary
        entry.open()
        self.add_class("-typing")
        self.refresh_bindings()
        self.draw_rows()

    def action_take(self) -> None:
        """Vary what was typed, if it can be planned."""
        self.read_variation(self.query_one("#because", Input).value.strip())
        self.draw()

    def action_leave(self) -> None:
        """Leave the field as it was, or close."""
        if self.typing:
            self.vary = self.last_vary
            self.end_typing()
            self.draw()
        else:
            self.dismiss(None)

    def read_variation(self, words: str) -> None:
        """Take what was typed; nothing is what is varied unasked."""
        self.vary = words or varying.DEFAULT

    def action_begin(self) -> None:
        """Begin what is planned; until it has begun or failed, no key but `escape` does anything."""
        if planned := self.planned:
            self.planned, self.beginning = None, True
            self.query_one("#because").display = False
            self.begin(planned)

    @work(exclusive=True, group="ab")
    async def begin(self, planned: PlannedExperiment) -> None:
        """Begin an experiment in a process of its own, after asking what has to be asked."""
        from dflash_tui.experiments import controller

        try:
            begun = await controller.begin_experiment(planned.design, planned.resolved_recipes, self)
        except (DflashError, OSError) as error:
            self.beginning = False
            self.query_one("#ab-words", Static).update(_render_error(error))
            return
        if begun:
            self.dismiss(planned.design.id)
        else:
            self.planned, self.beginning = planned, False

    async def confirm(self, question: ExperimentQuestion) -> bool:
        """Ask in a dialog."""
        from dflash_tui.experiments import controller
        from dflash_tui.launch.session import TrustQuestion

        match question:
            case TrustQuestion(recipe, plans):
                return await confirm_trust(self.app, recipe, plans)
            case controller.StopQuestion(runs):
                names = ", ".join(f"{run.plan.recipe} on :{run.plan.port}" for run in runs)
                detail = f"{names} would disturb the measurement. Requests under way are lost."
                confirm = Confirm("Stop what is in the way?", detail, "stop it and begin")
                return await self.app.push_screen_wait(confirm)
            case controller.BeginQuestion():
                return True

    def show(self, event: ExperimentStep) -> None:
        """Show what is checked, installed, built or downloaded, which takes minutes the first time, or stopped."""
        from dflash_tui.experiments import controller

        if not self.is_mounted:
            return
        words = self.query_one("#ab-words", Static)
        match event:
            case controller.CheckingArms():
                words.update(Content.assemble(("checking every arm …", MUTED)))
            case Preparing():
                share = f" {format_percent(event.fraction)}" if event.fraction is not None and not event.done else ""
                words.update(Content.assemble((f"{event.step.value}  ", "bold"), f"{event.text}{share}"))
            case controller.ServerStopping(run):
                words.update(Content.assemble((f"stopping {run.id} …", MUTED)))


def _render_error(error: DflashError | OSError) -> Content:
    if isinstance(error, varying.VariationError):
        error = error.without_option
    if isinstance(error, DflashError):
        return render_error(error.what, error.evidence, error.hint)
    return render_error(error.strerror or str(error), "", "")
