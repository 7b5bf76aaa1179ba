"""The launch screen: shows what a launch would do before it is started."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, Static

from dflash_tui import __version__
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.formatting import pluralize, read_called_name
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.monitoring import startup_history
from dflash_tui.planning.methods import Method
from dflash_tui.planning.plan import Plan, format_command
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.presentation.plan_text import format_check
from dflash_tui.runs import lifecycle, registry, verification
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.basic import Confirm, ask, showing_errors
from dflash_tui.tui.launch_selection import MARKS, LaunchSelection, Suitability
from dflash_tui.tui.render.plan import render_details, render_machine, render_plan, render_servers
from dflash_tui.tui.widgets.basic import (
    COMMON_KEYS,
    Display,
    Keys,
    MarkedList,
    SizedScreen,
    TooSmall,
    each_in_turn,
    once_composed,
    render_error,
    while_open,
)
from dflash_tui.tui.widgets.recipe_list import Entries, Entry, RecipeList

if TYPE_CHECKING:  # imported where a screen is opened: the first frame does not need it
    from dflash_tui.monitoring.foreign_server import FoundServer
    from dflash_tui.peers.transport import NeedsProgram
    from dflash_tui.tui.dialogs.drafters import DrafterChoice

_PROBE_PATIENCE = 0.1  # seconds that the first frame waits for the GPUs
_SEARCH_INTERVAL = 30.0  # seconds between two searches for foreign servers
_HOSTS_SETTLED = 0.4  # seconds that a plan must be shown before its hosts are surveyed
_NOT_LOADED = "this recipe does not load: "
_OF_RECIPE = frozenset({"check", "options", "patches", "hosts", "copy", "ab", "tune", "details", "keep"})
"""The actions that need a highlighted recipe."""


class HostSurveys:
    """The survey of the other hosts for the last plan that was surveyed."""

    def __init__(self) -> None:
        self._last_key: tuple[str, ...] = ()
        self._error: DflashError | None = None
        self._wrong: list[str] | None = None
        self._missing: NeedsProgram | None = None
        self.installed: set[str] = set()
        """The hosts on which the user installed dflash-tui from this panel."""

    def take_missing(self) -> NeedsProgram | None:
        """Return the host that lacks dflash-tui in the last survey, then forget it: it is offered once."""
        missing, self._missing = self._missing, None
        return missing

    def wants(self, plan: Plan) -> bool:
        """Whether a plan names other hosts and was not the last one surveyed."""
        return bool(plan.relaunch_request.peers) and self._key(plan) != self._last_key

    def begin(self, plan: Plan | None) -> None:
        """Record the plan that is being surveyed; without one the last is surveyed again."""
        self._last_key, self._error, self._wrong = self._key(plan) if plan else (), None, None

    def _key(self, plan: Plan) -> tuple[str, ...]:
        """Return what a host's launch depends on: the request, not the link that the host reported."""
        return (*plan.relaunch_request.to_argv(), plan.target, plan.mode.value)

    async def survey(self, plan: Plan, choice: LaunchSelection, draw: Callable[[], None]) -> None:
        """Connect to the hosts, store their links and plans in `choice`, and `draw` after each answer."""
        from dflash_tui.peers import cluster_launch
        from dflash_tui.peers.transport import NeedsProgram

        request = plan.relaunch_request
        try:
            hosts = await cluster_launch.reach_hosts(request)
            planned = await hosts.plan(request)
            if planned.plan.cluster:
                choice.clusters = {**choice.clusters, request.peers: planned.plan.cluster}
            draw()
            checks, surveyed = await hosts.survey(planned)
        except NeedsProgram as error:
            self._error = self._explain_missing(error)
        except DflashError as error:
            self._error = error
        else:
            choice.surveyed = {**choice.surveyed, planned.plan.argv: surveyed}
            self._wrong = [format_check(check) for check in checks if check.level.value != "ok"]
        draw()

    def _explain_missing(self, error: NeedsProgram) -> DflashError:
        """Return the error for a host without dflash-tui, and store it for the offer to install."""
        from dflash_tui.peers import far_program

        if error.host in self.installed:
            return far_program.build_unheard_error(error)
        self._missing = error
        return UsageError(error.what, evidence=error.evidence, hint="press h and name it again to install it there")

    def describe(self, plan: Plan) -> list[tuple[str, str]]:
        """Return plan rows: the links of the hosts, and their errors."""
        if not (others := plan.relaunch_request.peers):
            return []
        if self._error:
            hint = f"\n→ {self._error.hint}" if self._error.hint else ""
            return [("hosts", f"✗ {self._error.what}{hint}")]
        cluster, names = plan.cluster, ", ".join(others)
        if cluster is None or not cluster.is_named:
            return [("hosts", f"connecting to {names} …")]
        rows = []
        for number, host in enumerate(cluster.hosts):
            link = f"{host.address} on {host.interface}, {', '.join(host.devices) or 'sockets'}"
            rows.append(("" if number else "hosts", f"rank {number} {host.host or 'this machine'}: {link}"))
        rows += [("", f"{far.host}: {text}") for far in plan.ranks for text in far.models]
        if self._wrong is None:
            rows.append(("", f"{names}: being checked …"))
        elif self._wrong:
            rows += [("", line) for line in self._wrong]
        else:
            rows.append(("", f"{pluralize(len(others), 'other host')} checked: nothing is wrong"))
        return rows


class LaunchScreen(SizedScreen[None]):
    """Shows the machine, the recipes, the plan of the highlighted recipe and the running servers."""

    BINDINGS: ClassVar = [
        Binding("enter", "check(True)", "Launch", priority=True, tooltip="Run the checks, then launch the plan"),
        Binding("enter", "unfold", "Show them", priority=True, tooltip="Show the recipes that would not start here"),
        Binding("escape", "unfilter", "All recipes", key_display="esc", tooltip="Show all recipes again"),
        Binding("e", "change('mode')", "Mode", tooltip="Choose the mode: eager, graphs or compile"),
        Binding("exclamation_mark", "change('set_up')", "Fast", key_display="!",
                tooltip="The fast set-up, with split verification, or the published one"),
        Binding("a", "ab", "A/B", tooltip="A/B test: vary one setting and measure which is faster"),
        Binding("f", "tune", "Tune", tooltip="Tune: find the fastest setting on this machine within a budget"),
        *(key for key in COMMON_KEYS if key.key != "1"),
        Binding("plus,equals_sign", "change('tokens')", "Drafts", key_display="+/-",
                tooltip="Draft more or fewer tokens per step; 0 turns speculation off"),
        Binding("minus", "change('tokens', -1)", "Draft one token less", show=False),
        Binding("s", "change('profile')", "Profile", tooltip="Next profile: stock (newest vLLM) or seed (published)"),
        Binding("o", "options", "Options", tooltip="Options: context, memory share, requests, port, any flag"),
        Binding("p", "patches", "Patches", tooltip="Patches: their state, and what they change in vLLM"),
        Binding("d", "check(False)", "Doctor", tooltip="Check whether the launch would work"),
        # Priority: keys typed right after it go to the filter.
        Binding("slash", "filter", "Filter", priority=True, key_display="/", tooltip="Filter the recipes by words"),
        Binding("n", "drafters", "New pair", tooltip="New pair: a published one, or any model's drafter"),
        Binding("v", "change('variant')", "Variant", tooltip="Next variant, for instance another drafter"),
        Binding("g", "change('gpu')", "GPU", tooltip="Next GPU"),
        Binding("m", "change('method')", "Method", tooltip="Next method of speculation, such as mtp, or none"),
        Binding("h", "hosts", "Hosts", tooltip="Hosts: serve together with another machine, over ssh"),
        Binding("i", "details", "Details", tooltip="The whole plan and its command, or the short plan"),
        Binding("k", "keep", "Keep", tooltip="Save these choices as your recipe"),
        Binding("y", "copy", "Copy", tooltip="Copy the command"),
        Binding("w", "attach", "Watch", show=False, tooltip="Watch the newest running server"),
    ]  # fmt: skip

    AUTO_FOCUS = "#recipes"
    GLOSSES: ClassVar = {"the mark of a recipe": MARKS}

    @dataclass
    class Launch(Message):
        """Asks the app to launch a plan."""

        planned: PlannedLaunch

    @dataclass
    class Attach(Message):
        """Asks the app to watch a server."""

        server: Run | FoundServer

    @dataclass
    class Begun(Message):
        """Reports that an A/B or a tune with this id has begun."""

        identity: str

    def __init__(self, now: Callable[[], float], probe: Callable[[], GpuProbe], load: Callable[[], Entries]) -> None:
        super().__init__()
        self.now, self.probe, self.load = now, probe, load
        self.choice, self.hosts = LaunchSelection(), HostSurveys()
        self._was_left = False
        self.wanted = ""  # the recipe to highlight once the list is mounted
        self.detailed = False
        self._held: bool | None = None  # the check that waits until the recipes are sorted: whether it launches
        self.running: list[Run] = []
        self.foreign: list[FoundServer] = []
        self.before: dict[tuple[str, ...], startup_history.MedianSeconds | None] = {}
        self._list: RecipeList | None = None
        self._unpainted = ExitStack()

    async def prepare(self) -> None:
        """Read what the first frame shows, so that it is drawn once; a slow driver's GPUs are drawn later."""
        probing = asyncio.ensure_future(asyncio.to_thread(self.probe))
        classes = self.app.HORIZONTAL_BREAKPOINTS, self.app.VERTICAL_BREAKPOINTS  # set later, all would be styled twice
        for length, edges in zip(self.app.size, classes, strict=True):
            self.add_class(max(edge for edge in edges or () if edge[0] <= length)[1], update=False)
        self.entries = await asyncio.to_thread(self.load)
        self.running = await asyncio.to_thread(registry.list_living_runs)
        with suppress(TimeoutError):
            self.choice.probe = await asyncio.wait_for(probing, _PROBE_PATIENCE)

    def choose(self, name: str) -> None:
        """Highlight the recipe called `name`."""
        self.wanted = name
        if recipes := self._recipes:
            recipes.choose(name)

    def compose(self) -> ComposeResult:
        yield Display(id="head")
        with Vertical(id="left"):
            yield Display(id="machine")
            self._list = RecipeList(self.entries, self.choice)
            yield self._list
            yield MarkedList(id="servers", markup=False)
        with VerticalScroll(id="plan"):
            yield Static(id="text", markup=False)
        yield TooSmall()
        yield Keys()

    @once_composed
    def on_mount(self) -> None:
        for name, title in (("machine", "machine"), ("plan", "plan"), ("servers", "running: tab, ⏎ watches")):
            self.query_one(f"#{name}").border_title = title
        if self.wanted:
            self.call_after_refresh(self.query_one(RecipeList).choose, self.wanted)
        self._unpainted.enter_context(self.app.batch_update())
        self.draw()  # so that the first layout mostly is the last
        self.call_after_refresh(self.draw)
        self.call_after_refresh(self.call_after_refresh, self.paint)
        self.set_interval(2.0, each_in_turn(self.probe_and_list))
        self.set_interval(_SEARCH_INTERVAL, each_in_turn(self.find_foreign))

    def on_screen_resume(self) -> None:
        self.choice.forget_models()  # models may have been downloaded since
        self.choice.verified = verification.list_verifications()
        if self._was_left:
            self.look_around()

    def paint(self) -> None:
        """Paint the first frame, which is complete now, and start the slower searches."""
        self._unpainted.close()
        self.refresh(layout=True)
        self.call_after_refresh(self.draw)
        self.call_after_refresh(self.look_around)

    def look_around(self) -> None:
        """Search for GPUs that answer late, earlier speeds, and servers of other programs."""
        if self._was_left or self.choice.probe is None:
            self.probe_and_list()
        self.load_speeds()
        self.find_foreign()
        if self._was_left:
            self.reload_entries()

    def on_screen_suspend(self) -> None:
        self._was_left = True

    @work(exclusive=True, group="entries")
    async def reload_entries(self) -> None:
        """Reload the recipes if any were added or removed, such as the winner of an A/B."""
        entries = await asyncio.to_thread(self.load)
        if (recipes := self._recipes) and entries.keys() != self.entries.keys():
            self.entries = entries
            recipes.reload(entries)

    @work(exclusive=True, group="look")
    async def probe_and_list(self) -> None:
        """Read the GPUs and the running servers in a thread."""
        if not self.is_active and self.choice.probe:
            return
        self.running, before = await asyncio.to_thread(registry.list_living_runs), self.running
        if self.running != before:
            self.draw()
        self.choice.probe = await asyncio.to_thread(self.probe)
        if recipes := self._recipes:
            recipes.sort_for_machine()
        self.draw()
        if self._held is not None:
            held, self._held = self._held, None
            self.action_check(held)
        await self._load_earlier_starts()

    @work(exclusive=True, group="speeds")
    async def load_speeds(self) -> None:
        """Read the speed of each recipe's newest run in a thread."""
        if not await asyncio.to_thread(registry.list_runs):
            return
        from dflash_tui.monitoring import recording

        self.choice.measured = await asyncio.to_thread(recording.measure_newest_speeds)
        self.draw()

    @work(exclusive=True, group="foreign")
    async def find_foreign(self) -> None:
        """Search this machine for foreign servers."""
        from dflash_tui.monitoring import foreign_server

        if self.is_active:
            self.foreign, before = await foreign_server.find_foreign_servers(), self.foreign
            if self.foreign != before:
                self.draw()

    async def _load_earlier_starts(self) -> None:
        """Estimate the time to ready from earlier starts of the same kind."""
        if isinstance(recipe := self.chosen, Recipe):
            try:
                plan = self.choice.plan(recipe).plan
            except DflashError:  # the plan pane shows the error
                return
            if (ready := await asyncio.to_thread(startup_history.estimate_ready, plan)) != self.before.get(plan.kind):
                self.before[plan.kind] = ready
                self._draw_plan()

    @while_open
    def draw(self) -> None:
        state = f"{pluralize(len(self.running), 'server')} running" if self.running else "no server running"
        place = f" on {host}" if (host := read_called_name()) else ""
        driver = f" · driver {probe.driver}" if (probe := self.choice.probe) and probe.driver else ""
        head = Content.assemble(("dflash-tui", "bold"), f" {__version__}{place}{driver} · {state}")
        self.query_one("#head", Display).show(head)
        machine = self.query_one("#machine", Display)
        width = machine.content_size.width or self.app.size.width  # the app's width before layout
        rows = 3 if self.has_class("-narrow") and self.has_class("-short") else 8  # heights set in the style sheet
        machine.show(render_machine(probe, self.choice.choose_cards(self._recipe), width, rows))
        servers = self.query_one("#servers", MarkedList)
        width = servers.content_size.width or machine.content_size.width or self.app.size.width
        row = servers.highlighted
        servers.set_options(render_servers(self.running[::-1], self.foreign, self.now(), width))
        servers.highlighted = row if row is not None and row < servers.option_count else None
        self.set_class(servers.option_count > 0, "-servers")
        self.query_one(RecipeList).draw()
        self._draw_plan()

    def _draw_plan(self) -> None:
        if not self.query("#text"):
            return
        entry, text = self.chosen, self.query_one("#text", Static)
        width = self.query_one("#plan").scrollable_content_region.width - 1  # less a blank before the scrollbar
        try:
            if isinstance(entry, Recipe):
                content = self._render_plan(entry, width)
            else:
                content = render_error(entry, _NOT_LOADED) if entry else self._render_nothing(width)
        except DflashError as error:
            content = render_error(error, _NOT_LOADED)
        if content != text.content:
            text.update(content)

    def _render_nothing(self, width: int) -> Content:
        recipes = self.query_one(RecipeList)
        if recipes.is_on_fold:
            names = textwrap.fill(", ".join(recipes.folded), max(20, width))
            return Content(f"enter shows the recipes that would not start here:\n{names}")
        if recipes.filtered:
            return Content("no recipe matches all these words; esc shows all")
        return Content("no recipe was found; n lists pairs to make one of, dflash-tui recipes new makes a file")

    def _render_plan(self, recipe: Recipe, width: int) -> Content:
        planned = self.choice.plan(recipe)
        self.ask_hosts(planned.plan)
        if self.detailed:
            return render_details(planned, width)
        return render_plan(
            planned,
            self.choice.suited(recipe),
            hosts=self.hosts.describe(planned.plan),
            verified=self.choice.verified.get(recipe.name),
            before=self.before.get(planned.plan.kind),
            width=width,
            height=self.query_one("#plan").scrollable_content_region.height or 100,  # 100 before layout
        )

    def action_details(self) -> None:
        self.detailed = not self.detailed
        self._draw_plan()

    @property
    def chosen(self) -> Entry | None:
        """The highlighted recipe or its load error; None if the list is empty or the panel is closing."""
        return self._recipes.chosen if self._recipes else None

    @property
    def _recipes(self) -> RecipeList | None:
        """The list if it has children; cached, because every key in the footer asks for it."""
        return self._list if self._list and self._list.children else None

    @property
    def _recipe(self) -> Recipe | None:
        return entry if isinstance(entry := self.chosen, Recipe) else None

    @on(RecipeList.Highlighted)
    def _highlighted(self) -> None:
        self.query_one("#plan", VerticalScroll).scroll_home(animate=False)
        self._draw_plan()
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        recipes = self._recipes
        filtering, filtered = (recipes.filtering, recipes.filtered) if recipes else (False, False)
        if filtering or action == "unfilter":
            return filtered and action == "unfilter"
        if action == "filter":
            return bool(recipes and recipes.entries)
        if action == "unfold":
            return bool(recipes and recipes.is_on_fold)
        if action == "change":
            return self.choice.can_change(self._recipe, str(parameters[0]))
        return action not in _OF_RECIPE or self._recipe is not None

    def action_change(self, what: str, step: int = 1) -> None:
        """Select the next or previous value of a part of the launch."""
        with showing_errors(self.app):
            self.choice.change(self._recipe, what, step)
        self.draw()
        self.refresh_bindings()

    async def action_filter(self) -> None:
        await self.query_one(RecipeList).open_filter()

    def action_unfilter(self) -> None:
        self.query_one(RecipeList).close_filter(keep=False)

    def action_copy(self) -> None:
        if planned := self._plan():
            self.app.copy_to_clipboard(format_command(planned.plan))
            self.notify("the command is in the clipboard, if the terminal allows OSC 52")

    @on(OptionList.OptionSelected, "#servers")
    def _watch_chosen(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        servers: list[Run | FoundServer] = [*self.running[::-1], *self.foreign]
        self.post_message(self.Attach(servers[event.option_index]))

    def action_attach(self) -> None:
        if newest := registry.choose_newest(self.running):
            self.post_message(self.Attach(newest))
        elif self.foreign:
            self.post_message(self.Attach(self.foreign[0]))
        else:
            self.notify("no server is running", severity="warning")

    def action_ab(self) -> None:
        from dflash_tui.tui.dialogs.experiments import NewExperiment

        if (planned := self._plan()) and self.is_alone(planned.plan):
            self.app.push_screen(NewExperiment(planned.plan, self._explain_unsuited()), self._begun)

    def action_tune(self) -> None:
        from dflash_tui.tui.dialogs.experiments import NewTune

        if (planned := self._plan()) and self.is_alone(planned.plan):
            self.app.push_screen(NewTune(planned.plan, self._explain_unsuited()), self._begun)

    def _explain_unsuited(self) -> str:
        suited = self.choice.suited(self._recipe) if self._recipe else None
        return suited.why if suited and suited.suits is Suitability.NO else ""

    def _begun(self, identity: str | None) -> None:
        if identity:
            self.post_message(self.Begun(identity))

    def action_options(self) -> None:
        from dflash_tui.tui.dialogs.options import OptionsDialog

        if isinstance(recipe := self.chosen, Recipe):
            self.app.push_screen(OptionsDialog(self.choice, recipe), lambda _: self.draw())

    def action_patches(self) -> None:
        from dflash_tui.tui.dialogs.patches import PatchScreen

        if planned := self._plan():
            self.app.push_screen(PatchScreen(planned.plan))

    def action_unfold(self) -> None:
        if self._recipes:
            self._recipes.unfold()

    def action_check(self, launching: bool) -> None:
        """Show the checks of the plan; when launching, launch if none fails."""
        from dflash_tui.tui.dialogs.doctor import Doctor

        if self.choice.probe is None:  # another recipe may stand first once they are sorted
            self._held = launching
            return
        if (recipe := self._recipe) is None:
            return

        def launch(reason: str | None) -> None:
            if launching and reason is not None:
                self.post_message(self.Launch(doctor.planned._replace(forced=reason)))

        with showing_errors(self.app):
            port = lifecycle.find_free_port(recipe.port) if launching else None
            planned = self.choice.plan(recipe, port)
            if self.has_hosts(planned.plan):
                doctor = Doctor(planned, launching=launching, change=partial(self.choice.take_changes, recipe, port))
                self.app.push_screen(doctor, launch)

    def _plan(self) -> PlannedLaunch | None:
        """Return the plan of the highlighted recipe; show the error and return None if planning fails."""
        with showing_errors(self.app):
            return self.choice.plan(self._recipe) if self._recipe else None
        return None

    @cached_property
    def entries(self) -> Entries:
        """All recipes; loaded on first use, so a replay without the launch screen never reads them."""
        return self.load()

    def action_drafters(self) -> None:
        """Choose a target and drafter from a list, and make a recipe of them."""
        from dflash_tui.presentation.recipe_text import choose_place
        from dflash_tui.tui.dialogs.drafters import DrafterDialog

        def derive(choice: DrafterChoice | None) -> None:
            if choice:
                self.derive(choice.target, choice.drafter, choice.method)

        self.app.push_screen(DrafterDialog(choose_place(self.choice.cards)), derive)

    @work(exclusive=True, group="derive")
    async def derive(self, target: str, drafter: str, method: Method | None) -> None:
        """Make a recipe from the models' own configuration files, and highlight it."""
        from dflash_tui.launch import recipe_files
        from dflash_tui.presentation import recipe_text

        self.notify(f"reading the config.json of {target} …", markup=False)
        with showing_errors(self.app):
            name = await recipe_files.add_recipe_of_models(target, drafter, method, recipe_text.schema_text())
            self._show_new(name, await asyncio.to_thread(self.load))
            self.notify(f"{name} is now your recipe; it was not run yet", markup=False)

    def _show_new(self, name: str, entries: Entries) -> None:
        self.entries = entries
        self.query_one(RecipeList).reload(entries)
        self.query_one(RecipeList).choose(name)

    def action_keep(self) -> None:
        """Write the current selection as a new recipe, and highlight it."""
        from dflash_tui.launch import recipe_files

        if planned := self._plan():
            with showing_errors(self.app):
                path = recipe_files.keep_setting(planned)
                self._show_new(path.stem, self.load())
                self.notify(f"written to {path}", markup=False)

    def action_hosts(self) -> None:
        """Choose the other hosts of the highlighted recipe."""
        from dflash_tui.tui.dialogs.hosts import build_host_dialog, list_used_hosts

        if not (recipe := self._recipe):
            return

        def choose(hosts: tuple[str, ...] | None) -> None:
            if hosts is not None:
                self.hosts.begin(None)
                self.choice.choose_peers(recipe, hosts)
                self.draw()

        used = list_used_hosts(registry.list_runs())
        self.app.push_screen(build_host_dialog(self.choice.request(recipe).peers, used), choose)

    def ask_hosts(self, plan: Plan) -> None:
        """Survey the other hosts of a plan, unless it was just surveyed."""
        if self.is_active and self.hosts.wants(plan):
            self._survey_hosts(plan)

    def has_hosts(self, plan: Plan) -> bool:
        """Return True if all hosts of a plan have answered; otherwise notify."""
        if plan.cluster is not None and plan.relaunch_request.peers and not plan.cluster.is_named:
            self.notify(f"no answer from {', '.join(plan.relaunch_request.peers)} yet", severity="warning")
            return False
        return True

    def is_alone(self, plan: Plan) -> bool:
        """Return True if a plan is single-host (required for experiments); otherwise notify."""
        if plan.relaunch_request.peers:
            where = f"dflash-tui ab {plan.recipe} --peer {plan.relaunch_request.peers[0]}"
            self.notify(f"the panel measures this machine alone (h); over hosts: {where}", severity="warning")
            return False
        return True

    @work(exclusive=True, group="hosts")
    async def _survey_hosts(self, plan: Plan) -> None:
        """Survey the other hosts once the plan has been shown for a moment."""
        self.hosts.begin(plan)
        await asyncio.sleep(_HOSTS_SETTLED)
        await self.hosts.survey(plan, self.choice, self.draw)
        if (missing := self.hosts.take_missing()) and self.is_current:
            from dflash_tui.peers import far_program

            offer = far_program.describe_offer(missing)
            question = Confirm(f"Install dflash-tui on {missing.host}?", offer, "install it")
            ask(self.app, question, partial(self.install_program, missing.host))

    @work(group="install")
    async def install_program(self, host: str) -> None:
        """Install dflash-tui on a host, then survey it again."""
        from dflash_tui.peers import far_program

        self.notify(f"installing dflash-tui on {host}: the wheel goes over ssh, then pip fetches what it needs")
        with showing_errors(self.app):
            self.notify(f"dflash-tui is on {host}: {await far_program.install_program(host)}", markup=False)
            self.hosts.installed.add(host)
            self.hosts.begin(None)
            self.draw()
