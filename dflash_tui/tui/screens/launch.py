"""The launch screen: what will happen on enter, before anything happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, Static

from dflash_tui import __version__
from dflash_tui.common.errors import DflashError, RecipeError
from dflash_tui.common.formatting import pluralize
from dflash_tui.engines import inventory
from dflash_tui.launch import planner
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.monitoring import startup_history
from dflash_tui.planning import plan as plans
from dflash_tui.planning import recipe_loader
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipe import Recipe
from dflash_tui.planning.resolution import ResolvedRecipe
from dflash_tui.runs import lifecycle, registry, server_process
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.basic import ErrorDialog
from dflash_tui.tui.dialogs.doctor import Doctor
from dflash_tui.tui.dialogs.new_experiment import NewExperiment
from dflash_tui.tui.dialogs.patches import PatchScreen
from dflash_tui.tui.launch_selection import LaunchSelection
from dflash_tui.tui.render import plan as render_plan
from dflash_tui.tui.widgets.basic import Display, TooSmall
from dflash_tui.tui.widgets.recipe_list import Entries, RecipeList

if TYPE_CHECKING:  # httpx costs 200 ms that the first paint is spared
    from dflash_tui.engines.hub.model_lookup import ModelAvailability
    from dflash_tui.monitoring.startup_history import TimeToReady

_SETTLED = 0.4  # seconds on a recipe before the hub is asked about its models


class LaunchScreen(Screen[None]):
    """Shows the machine, the recipes, the plan of the highlighted one and the running servers."""

    BINDINGS: ClassVar = [
        Binding("enter", "launch", "Launch", priority=True, tooltip="Run the checks, then launch the plan"),
        Binding("e", "mode", "Mode", tooltip="Choose the mode: eager, graphs or compile"),
        Binding("plus,equals_sign", "tokens(1)", "Drafts", key_display="+/-",
                tooltip="Draft more or fewer tokens per step; 0 turns speculation off"),
        Binding("minus", "tokens(-1)", "Draft one token less", show=False),
        Binding("s", "profile", "Profile", tooltip="Next profile: stock (newest vLLM) or seed (as published)"),
        Binding("p", "patches", "Patches", tooltip="Patches: their state, and what they change in vLLM"),
        Binding("v", "variant", "Variant", show=False, tooltip="Next variant, for instance another drafter"),
        Binding("g", "gpu", "GPU", show=False, tooltip="Next GPU"),
        Binding("d", "doctor", "Doctor", tooltip="Check whether the launch would work"),
        Binding("slash", "filter", "Filter", show=False, key_display="/", tooltip="Filter the recipes by words"),
        Binding("y", "copy", "Copy", show=False, tooltip="Copy the command"),
        Binding("a", "ab", "A/B", tooltip="A/B test: vary one setting and measure which is faster"),
        Binding("w", "attach", "Watch", show=False, tooltip="Watch the newest running server"),
        Binding("escape", "unfilter", "All recipes", show=False),
        Binding("1", "app.show('launch')", "Launch screen", show=False),
        Binding("2", "app.show('live')", "Live", show=False, tooltip="The run being watched"),
        Binding("question_mark", "app.keys", "Help", key_display="?"),
        Binding("q", "app.leave", "Quit", tooltip="Quit the panel; servers keep running"),
    ]  # fmt: skip

    class Launch(Message):
        """Somebody wants this plan launched; `forced` says why failed checks are overruled."""

        def __init__(self, setup: ResolvedRecipe, plan: Plan, forced: str = "") -> None:
            super().__init__()
            self.setup, self.plan, self.forced = setup, plan, forced

    class Attach(Message):
        """Somebody wants to watch this run."""

        def __init__(self, run: Run) -> None:
            super().__init__()
            self.run = run

    class Begun(Message):
        """An A/B was begun under this name."""

        def __init__(self, identity: str) -> None:
            super().__init__()
            self.identity = identity

    def __init__(self, now: Callable[[], float], probe: Callable[[], GpuProbe], load: Callable[[], Entries]) -> None:
        super().__init__()
        self.now, self.probe, self.load = now, probe, load
        self.wanted = ""  # the recipe to highlight once the list is there
        self.choice = LaunchSelection()
        self.running: list[Run] = []
        self.models: dict[tuple[str, str], ModelAvailability] = {}
        self._asked: tuple[plans.PlannedModel, ...] = ()
        self.before: dict[tuple[str, ...], TimeToReady | None] = {}

    @cached_property
    def entries(self) -> Entries:
        """All recipes; a replay that is left without looking at them never reads them."""
        return self.load()

    def choose(self, name: str) -> None:
        """Highlight the recipe called `name`."""
        self.wanted = name
        if self.query("#recipes"):
            self.query_one(RecipeList).choose(name)

    def compose(self) -> ComposeResult:
        yield Display(id="head")
        with Container(id="body"):
            with Vertical(id="left"):
                yield Display(id="machine")
                yield RecipeList(self.entries, self.choice)
                yield Display(id="servers")
            with VerticalScroll(id="plan"):
                yield Static(id="text", markup=False)
        yield TooSmall()
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        for name, title in (("machine", "machine"), ("plan", "plan"), ("servers", "running, w watches the newest")):
            self.query_one(f"#{name}").border_title = title
        if self.wanted:
            self.call_after_refresh(self.query_one(RecipeList).choose, self.wanted)
        self.draw()
        self.call_after_refresh(self.probe_and_list)
        self.set_interval(2.0, self.probe_and_list)

    def on_screen_resume(self) -> None:
        self.models, self._asked = {}, ()  # something may have been fetched meanwhile
        self.probe_and_list()

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    @work(exclusive=True, group="look")
    async def probe_and_list(self) -> None:
        """Read the GPUs and the running servers, away from the screen's own thread."""
        if not self.is_active and self.choice.probe:
            return
        self.running = await asyncio.to_thread(list_living_runs)
        self.draw()
        self.choice.probe = await asyncio.to_thread(self.probe)
        if self.query("#recipes"):
            self.query_one(RecipeList).choose_for_gpu()
        self.draw()
        await self._load_earlier_starts()

    async def _load_earlier_starts(self) -> None:
        """Find out how long such a launch took before; an ended run is read once."""
        if isinstance(recipe := self.chosen, Recipe):
            try:
                plan = self.choice.plan(recipe).plan
            except DflashError:  # the plan's side of the screen says why
                return
            self.before[plan.kind] = await asyncio.to_thread(startup_history.estimate_ready, plan)
            self._draw_plan()

    @work(exclusive=True, group="models")
    async def look_up_models(self, plan: Plan) -> None:
        """Ask the cache and the hub about the models of `plan`, when it has been looked at for a moment."""
        await asyncio.sleep(_SETTLED)
        from dflash_tui.engines.hub import model_lookup

        for model in plan.models:
            key = model.name, model.revision
            self.models[key] = await model_lookup.look_up_model(*key)
            if self.models[key].complete:
                local = model_lookup.read_local_model(self.models[key])
                self.choice.models = {**self.choice.models, key: local}
            self.draw()

    def draw(self) -> None:
        """Bring every part up to date; a worker may come back when the panel is closing."""
        if not all(self.query(part) for part in ("#machine", "#recipes", "#text", "#servers")):
            return
        count = pluralize(len(self.running), "server")
        state = f"{count} running" if self.running else "no server running"
        probe = self.choice.probe
        driver = f" · driver {probe.driver}" if probe and probe.driver else ""
        head = Content.assemble(("dflash-tui", "bold"), f" {__version__}{driver} · {state}")
        self.query_one("#head", Display).show(head)
        self.query_one("#machine", Display).show(render_plan.render_machine(probe, self.choice.taken(self._recipe)))
        now = self.now()
        servers = [render_plan.render_server_row(run, now) for run in reversed(self.running)]
        self.query_one("#servers", Display).show(Content("\n").join(servers))
        self.set_class(bool(self.running), "-servers")
        self.query_one(RecipeList).draw()
        self._draw_plan()

    def _draw_plan(self) -> None:
        """Show the plan of the highlighted recipe; what has not changed is not laid out again."""
        if not self.query("#text"):
            return
        entry, text = self.chosen, self.query_one("#text", Static)
        try:
            if isinstance(entry, Recipe):
                content = self._render_plan(entry)
            else:
                content = render_plan.render_plan_error(entry) if entry else Content("no recipe was found")
        except DflashError as error:
            content = render_plan.render_plan_error(error)
        if content != text.content:
            text.update(content)

    def _render_plan(self, recipe: Recipe) -> Content:
        setup, plan, _, memory = self.choice.plan(recipe)
        known = [self.models.get((model.name, model.revision)) for model in plan.models]
        if None in known and plan.models != self._asked and self.is_active:
            self._asked = plan.models
            self.look_up_models(plan)
        return render_plan.render_plan(
            setup,
            plan,
            engine=inventory.find_any_engine(Path(plan.engine_folder)),
            fit=memory,
            suited=self.choice.suited(recipe),
            models=tuple(model for model in known if model) if None not in known else (),
            before=self.before.get(plan.kind),
            width=self.query_one("#plan").scrollable_content_region.width,
        )

    @property
    def chosen(self) -> Recipe | DflashError | None:
        """The highlighted recipe, why its file does not load, or None when there is none or the panel is closing."""
        return self.query_one(RecipeList).chosen if self.query("#recipes") else None

    @property
    def _recipe(self) -> Recipe | None:
        """The highlighted recipe; None where its file does not load."""
        return entry if isinstance(entry := self.chosen, Recipe) else None

    @on(RecipeList.Highlighted)
    def _highlighted(self) -> None:
        self.query_one("#plan", VerticalScroll).scroll_home(animate=False)
        self._draw_plan()

    def action_mode(self) -> None:
        if planned := self._plan():
            self.choice.next_mode(planned.setup.recipe)
            self.draw()

    def action_tokens(self, more: int) -> None:
        if planned := self._plan():
            self.choice.add_tokens(planned.setup.recipe, more)
            self.draw()

    def action_profile(self) -> None:
        if isinstance(recipe := self.chosen, Recipe) and not self.choice.next_profile(recipe):
            self.notify("this recipe has one profile only")
        self.draw()

    def action_variant(self) -> None:
        if isinstance(recipe := self.chosen, Recipe) and not self.choice.next_variant(recipe):
            self.notify("this recipe has no variants")
        self.draw()

    def action_gpu(self) -> None:
        if not self.choice.next_gpu(self._recipe):
            self.notify("there is no other GPU")
        self.draw()

    def action_filter(self) -> None:
        self.query_one(RecipeList).open_filter()

    def action_unfilter(self) -> None:
        self.query_one(RecipeList).close_filter(keep=False)

    def action_copy(self) -> None:
        if planned := self._plan():
            self.app.copy_to_clipboard(plans.format_command(planned.plan))
            self.notify("the command is in the clipboard, if the terminal allows OSC 52")

    def action_attach(self) -> None:
        if self.running:
            self.post_message(self.Attach(self.running[-1]))
        else:
            self.notify("no server is running", severity="warning")

    def action_ab(self) -> None:
        if planned := self._plan():
            self.app.push_screen(NewExperiment(planned.plan), self._begun)

    def _begun(self, identity: str | None) -> None:
        if identity:
            self.post_message(self.Begun(identity))

    def action_patches(self) -> None:
        if planned := self._plan():
            self.app.push_screen(PatchScreen(planned.plan))

    def action_doctor(self) -> None:
        self._check(launching=False)

    def action_launch(self) -> None:
        if self.query_one(RecipeList).filtering:
            self.query_one(RecipeList).close_filter(keep=True)
            return
        self._check(launching=True)

    def _check(self, *, launching: bool) -> None:
        """Show the checks of the plan; a launch continues when none fails."""
        recipe = self.chosen
        if not isinstance(recipe, Recipe):
            self.notify("this recipe does not load; the right side says why", severity="warning")
            return
        try:
            port = lifecycle.find_free_port(recipe.port) if launching else None
            setup, plan = self.choice.plan(recipe, port)[:2]
        except DflashError as error:
            self.app.push_screen(ErrorDialog(error))
            return

        def launch(reason: str | None) -> None:
            if launching and reason is not None:
                self.post_message(self.Launch(setup, plan, reason))

        self.app.push_screen(Doctor(setup, plan, launching=launching), launch)

    def _plan(self) -> PlannedLaunch | None:
        """Return the plan of the highlighted recipe; None, and why on the screen, where it cannot be planned."""
        try:
            return self.choice.plan(self._recipe) if self._recipe else None
        except DflashError as error:
            self.app.push_screen(ErrorDialog(error))
            return None


def load_recipes() -> Entries:
    """Return every recipe by name, or why its file does not load."""
    usable, broken = recipe_loader.load_all_recipes()
    entries: Entries = usable | {name: RecipeError(reason) for name, reason in broken.items()}
    return dict(sorted(entries.items()))


def list_living_runs() -> list[Run]:
    """Return the runs whose server lives, oldest first."""
    return [run for run in registry.list_runs() if server_process.is_alive(run)]


def probe_machine() -> GpuProbe:
    """Return what NVML says, and who is about to use which GPU."""
    return planner.probe_launchable_gpus()
