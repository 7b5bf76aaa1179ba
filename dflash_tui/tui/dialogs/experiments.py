"""Dialogs of experiments: the list, and the plan of an A/B or a tune."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual import work
from textual.binding import Binding
from textual.content import Content

from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.formatting import format_duration, format_percent, pluralize, shorten_names, truncate
from dflash_tui.events import Preparing
from dflash_tui.experiments import builder, store
from dflash_tui.experiments import variation as varying
from dflash_tui.experiments.design import Design
from dflash_tui.experiments.progress import Progress
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.presentation import experiment_text
from dflash_tui.presentation.experiment_report import describe_variation
from dflash_tui.tui.dialogs.basic import ChoiceDialog, Confirm, ListDialog, TextDialog, confirm_trust
from dflash_tui.tui.render.experiment import STATUS
from dflash_tui.tui.render.plan import render_hung
from dflash_tui.tui.widgets.basic import MUTED, MUTED_ROW, list_broken_options, once_composed, render_error

if TYPE_CHECKING:
    from dflash_tui.experiments.controller import ExperimentQuestion, ExperimentStep


_MOST = 100
_STATUS, _BEGAN, _BOOTS = 14, 12, 7
# The maximum cells of a name if what is varied gets fewer than _ROOMY, and its minimum.
_NAME, _ROOMY, _LEAST_VARIED = 44, 32, 14


def list_progress() -> list[Progress]:
    """Return the progress of the experiments, newest first."""
    return [
        store.read_progress(store.experiment_folder(design.id))
        for design in reversed(store.list_experiments()[-_MOST:])
    ]


def render_experiment_rows(rows: Sequence[Progress], width: int) -> list[Content]:
    """Return a line per experiment: status, recipe, start time, boots, what is varied.

    The start time has precedence because a recipe is measured repeatedly; the recipe's name comes next.
    """
    most = max(_NAME, width - _STATUS - _BEGAN - _BOOTS - _ROOMY)
    most = max(1, min(most, width - _STATUS - _BEGAN))
    short_names = shorten_names((row.design.recipe for row in rows), most)
    name = max(map(len, short_names.values()), default=0)
    left = width - _STATUS - name
    return [_render_experiment_row(row, f"{short_names[row.design.recipe]:<{name}}", left) for row in rows]


def _render_experiment_row(progress: Progress, name: str, left: int) -> Content:
    design, (mark, color) = progress.design, STATUS[progress.status]
    began = time.strftime(" %m-%d %H:%M", time.gmtime(design.made_at)) if left >= _BEGAN else ""
    boots = f"  {f'{len(progress.boots)}/{len(design.order)}':>5}" if left >= _BEGAN + _BOOTS else ""
    room = left - len(began) - len(boots)
    variation = (truncate(f"  {describe_variation(design)}", room) if room >= _LEAST_VARIED else "", MUTED_ROW)
    return Content.assemble((f"{mark} ", color), (f"{progress.status:<12}", "bold"), name, began, boots, variation)


class ExperimentList(ListDialog[str]):
    """Lists the experiments; returns the id of the chosen one, or None."""

    HEADING: ClassVar = "A/Bs and tunes"
    BINDINGS: ClassVar = [
        Binding("enter", "choose", "open", key_display="⏎", priority=True),
    ]

    def on_mount(self) -> None:
        self.experiments: list[Progress] = []
        self.show_heading("reading …")
        self.reload()

    @work(exclusive=True)
    async def reload(self) -> None:
        """Read the progress of the experiments in a thread."""
        self.experiments = await asyncio.to_thread(list_progress)
        broken = await asyncio.to_thread(store.list_broken_experiments)
        none = "none yet; a on the launch screen starts one"
        self.show_heading(f"{len(self.experiments)}, the newest first" if self.experiments else none)
        width = self.row_width
        self.show_rows([*render_experiment_rows(self.experiments, width), *list_broken_options(broken, width)])

    def action_choose(self) -> None:
        if self.experiments:
            self.dismiss(self.experiments[self.place].design.id)


_MOST_BOOTS = 8
_LABEL = 9
_THEN = ("then", "continues in the background, also after the panel is closed")


class PlannedExperiment(NamedTuple):
    """A planned experiment."""

    design: Design
    """Its design."""
    resolved_recipes: list[ResolvedRecipe]
    """The resolved recipe of each arm."""
    rows: list[tuple[str, str]]
    """Its description: labels and texts."""


def plan_experiment(plan: Plan, vary: str, boots: int, options: str = "") -> PlannedExperiment:
    """Return the experiment of `plan` that varies `vary`, with `boots` boots per arm and the typed `options`.

    Raises:
        UsageError: it cannot be varied so, or another experiment is running.
    """
    request = builder.add_typed_options(builder.ExperimentRequest(plan.relaunch_request, vary, boots), options)
    return _describe_planned(*builder.build_experiment(request))


def _describe_planned(design: Design, resolved_recipes: list[ResolvedRecipe]) -> PlannedExperiment:
    from dflash_tui.experiments import controller

    in_the_way = controller.find_disturbing_servers(design)
    rows = experiment_text.list_design_rows(design, builder.estimate_duration(design), [run.id for run in in_the_way])
    return PlannedExperiment(design, resolved_recipes, rows)


Offers = Sequence[tuple[str, str]]


def list_variations(plan: Plan) -> Offers:
    """Return the variations that a launch allows: values of `ab --vary`, and what each compares."""
    n, modes = plan.num_speculative_tokens, [mode for mode in Mode if mode is not Mode.GRAPHS or not plan.on_cpu]
    offers = [("stock,ours", "the published command alone, or with our plan")]
    offers.append((f"mode={','.join(mode.value for mode in modes)}", "how the model runs"))
    if n:
        offers.append(("spec=on,off", "with and without speculation"))
        offers.append((f"n={max(1, n // 2)},{n},{n + max(1, n // 2)}", "drafted tokens per step"))
    try:
        profiles = [*recipe_loader.find_recipe(plan.recipe).profiles]
    except DflashError:  # the recipe was removed after planning
        profiles = []
    if len(profiles) > 1:
        offers.append((f"profile={','.join(profiles)}", "the recipe's profiles"))
    return [*offers, *((f"patch.{name}=on,off", "with and without this patch") for name in plan.patches)]


class ExperimentDialog(TextDialog[str | None]):
    """Asks for confirmation of an experiment; returns its id once its driver is running, or None."""

    BINDINGS: ClassVar = [
        Binding("enter", "begin", "begin", key_display="⏎"),
        Binding("v", "vary", "vary"),
    ]
    EXAMPLE: ClassVar = ""
    vary = ""
    """What is varied, here if the user chooses nothing."""

    def __init__(self, plan: Plan, unsuited: str = "") -> None:
        super().__init__()
        self.unsuited = unsuited  # why the recipe would not start here
        self.plan = plan
        self.planned: PlannedExperiment | None = None
        self.progress = Content("")
        self.beginning = False

    def render_head(self) -> Content:
        """Return the heading: the experiment, and how sure or long it is."""
        raise NotImplementedError

    def plan_now(self) -> PlannedExperiment:
        """Return the planned experiment; runs in a thread.

        Raises:
            UsageError: it cannot be planned, or another experiment is running.
        """
        raise NotImplementedError

    def list_offers(self) -> Offers:
        """Return the possible variations, and what each compares."""
        return list_variations(self.plan)

    @once_composed
    def on_mount(self) -> None:
        self.plan_again()

    def render_text(self, width: int) -> Content:
        """Return the plan as labels and texts with hanging indents, or the current progress."""
        if not self.planned:
            return self.progress
        rows = [*([("✗", self.unsuited)] if self.unsuited else []), *self.planned.rows, _THEN]
        column = max(_LABEL, *(len(label) + 2 for label, _ in rows))
        return Content("\n").join(render_hung((f"{label:<{column}}", MUTED), text, width) for label, text in rows)

    def say(self, *words: Content | tuple[str, str] | str) -> None:
        """Show progress or an error in place of the plan."""
        self.planned, self.progress = None, Content.assemble(*words)
        self.draw()

    def fail(self, error: DflashError | OSError) -> None:
        """Show an error in place of the plan."""
        self.say(render_error(error.without_option if isinstance(error, varying.VariationError) else error))

    def plan_again(self) -> None:
        """Update the heading and plan the experiment again."""
        self.show_heading(self.render_head())
        self.say(("looking …", MUTED))
        self.refresh_plan()

    @work(exclusive=True, group="ab")
    async def refresh_plan(self) -> None:
        """Plan the experiment in a thread, and show the plan or the error."""
        try:
            self.planned = await asyncio.to_thread(self.plan_now)
        except (DflashError, OSError) as error:
            self.fail(error)
        else:
            self.draw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Allow only closing the dialog while an experiment is beginning."""
        return not self.beginning or action == "leave"

    def action_vary(self) -> None:
        """Choose or type what to vary."""
        offers = dict(self.list_offers())
        offers = {self.vary: "as it is now", **offers} if self.vary not in offers else offers
        column = max(map(len, offers)) + 2
        rows = [
            (words, Content.assemble((f"{words:<{column}}", "bold"), (about, MUTED_ROW)))
            for words, about in offers.items()
        ]
        dialog = ChoiceDialog("what varies", rows, self.vary, str.strip, typed=self.vary, example=self.EXAMPLE)
        self.plan_with("vary", dialog)

    def plan_with(self, name: str, dialog: ChoiceDialog[str]) -> None:
        """Plan the experiment with what the dialog returns as the attribute `name`."""

        def take(words: str | None) -> None:
            if words is not None:
                setattr(self, name, words or getattr(type(self), name))
                self.plan_again()

        self.app.push_screen(dialog, take)

    def action_begin(self) -> None:
        """Begin the planned experiment; until it has begun or failed, only `escape` works."""
        if planned := self.planned:
            self.planned, self.beginning = None, True
            self.begin(planned)

    @work(exclusive=True, group="ab")
    async def begin(self, planned: PlannedExperiment) -> None:
        """Begin an experiment in its own process, after asking for confirmation where needed."""
        from dflash_tui.experiments import controller

        try:
            begun = await controller.begin_experiment(planned.design, planned.resolved_recipes, self)
        except (DflashError, OSError) as error:
            self.beginning = False
            self.fail(error)
            return
        if begun:
            self.dismiss(planned.design.id)
        else:
            self.planned, self.beginning = planned, False
            self.draw()

    async def confirm(self, question: ExperimentQuestion) -> bool:
        """Ask the question in a dialog."""
        from dflash_tui.experiments import controller
        from dflash_tui.launch.session import TrustQuestion

        match question:
            case TrustQuestion(recipe, plans):
                return await confirm_trust(self.app, recipe, plans)
            case controller.StopQuestion(runs):
                names = ", ".join(f"{run.plan.recipe} on :{run.plan.port}" for run in runs)
                detail = f"{names} would disturb the measurement. Requests under way are lost."
                confirm = Confirm("Stop what would disturb it?", detail, "stop it and start")
                return await self.app.push_screen_wait(confirm)
            case controller.BeginQuestion():
                return True

    def show(self, event: ExperimentStep) -> None:
        """Show a step: checking, installing, building and downloading (minutes the first time), or stopping."""
        from dflash_tui.experiments import controller

        if not self.is_mounted:
            return
        match event:
            case controller.CheckingArms():
                self.say(("checking every arm …", MUTED))
            case Preparing():
                share = f" {format_percent(event.fraction)}" if event.fraction is not None and not event.done else ""
                self.say((f"{event.step.value}  ", "bold"), f"{event.text}{share}")
            case controller.ServerStopping(run):
                self.say((f"stopping {run.id} …", MUTED))


class NewExperiment(ExperimentDialog):
    """Asks for confirmation of an A/B."""

    HEADING: ClassVar = "new A/B"
    BINDINGS: ClassVar = [
        Binding("plus,equals_sign", "boots(1)", "boots", key_display="+ -"),
        Binding("minus", "boots(-1)", "fewer boots", show=False),
        Binding("h", "honest", "quick or honest"),
        Binding("o", "options", "options"),
    ]
    EXAMPLE: ClassVar = "n=4,8,12, any flag of vLLM, variant=A,B, vllm=A,B, env.NAME=A,B, url=http://host:8000"
    vary = varying.DEFAULT
    options = ""
    boots = 2

    def render_head(self) -> Content:
        sure = "honest: the spread of boots is measured" if self.boots > 1 else "quick: a verdict is only suggestive"
        sure = "a running server is one boot: a verdict is suggestive" if varying.is_of_servers(self.vary) else sure
        return Content.assemble(
            ("A/B ", "bold"), (self.plan.recipe, "bold $primary"), f"  {self.vary}  {self.options}".rstrip() + "\n",
            (f"{pluralize(self.boots, 'boot')} of each arm", "bold"), (f", {sure}", MUTED),
        )  # fmt: skip

    def plan_now(self) -> PlannedExperiment:
        return plan_experiment(self.plan, self.vary, self.boots, self.options)

    def action_honest(self) -> None:
        self.boots = 1 if self.boots > 1 else 2
        self.plan_again()

    def action_boots(self, step: int) -> None:
        self.boots = max(1, min(_MOST_BOOTS, self.boots + step))
        self.plan_again()

    def action_options(self) -> None:
        """Type options."""
        dialog = ChoiceDialog(
            "options of the A/B",
            (),
            self.options,
            str.strip,
            typed=self.options,
            example="rounds=2 temperature=0.7",
            about=f"as for `dflash-tui ab`: {', '.join(builder.list_typed_options())}",
        )
        self.plan_with("options", dialog)


_MINUTES = (10, 20, 30, 45, 60, 90, 120, 240)


class NewTune(ExperimentDialog):
    """Asks for confirmation of a tune."""

    HEADING: ClassVar = "new tune"
    BINDINGS: ClassVar = [
        Binding("plus,equals_sign", "budget(1)", "budget", key_display="+ -"),
        Binding("minus", "budget(-1)", "a smaller budget", show=False),
    ]
    EXAMPLE: ClassVar = "mode=graphs,compile n=7,11: both, apart by a space; empty: all settings that may matter"
    minutes = 30

    def render_head(self) -> Content:
        return Content.assemble(
            ("Tune ", "bold"), (self.plan.recipe, "bold $primary"), f"  {self.vary}\n",
            (f"{format_duration(60.0 * self.minutes)} of boots", "bold"),
            ("; the best so far can be kept at any time", MUTED),
        )  # fmt: skip

    def plan_now(self) -> PlannedExperiment:
        from dflash_tui.experiments import tuner

        request = builder.ExperimentRequest(self.plan.relaunch_request)
        axes, budget = _split_axes(self.vary), 60.0 * self.minutes
        return _describe_planned(*tuner.build_tune(request, budget=budget, axes=axes))

    def list_offers(self) -> Offers:
        return [("", "all settings that may matter here"), *list_variations(self.plan)[1:]]

    def action_budget(self, step: int) -> None:
        place = _MINUTES.index(self.minutes) + step
        self.minutes = _MINUTES[max(0, min(len(_MINUTES) - 1, place))]
        self.plan_again()


def _split_axes(words: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(words))
    except ValueError as error:
        raise UsageError("quotes do not match", evidence=str(error)) from None
