"""The launch screen: what will happen on enter, before anything happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option

from dflash_tui import __version__
from dflash_tui.core import engine as engines
from dflash_tui.core import plan as plans
from dflash_tui.core import recipe as recipes
from dflash_tui.core import server
from dflash_tui.core.plan import Plan
from dflash_tui.core.recipe import Mode, Recipe
from dflash_tui.core.server import Run
from dflash_tui.errors import DflashError
from dflash_tui.text import plural
from dflash_tui.tui import planview
from dflash_tui.tui.dialogs import ErrorDialog
from dflash_tui.tui.widgets import Display, TooSmall

if TYPE_CHECKING:  # pynvml costs 80 ms that the first paint is spared
    from dflash_tui.core.gpu import Probe

Entries = dict[str, Recipe | DflashError]
_MOST_TOKENS = 64


class LaunchScreen(Screen[None]):
    """Shows the machine, the recipes, the plan of the highlighted one and the running servers."""

    BINDINGS: ClassVar = [
        Binding("enter", "launch", "Launch", priority=True, tooltip="Do what the plan says"),
        Binding("e", "mode", "Eager/compile", tooltip="Switch between eager and compile"),
        Binding(
            "plus,equals_sign",
            "tokens(1)",
            "Drafts",
            key_display="+/-",
            tooltip="More or fewer drafted tokens per step",
        ),
        Binding("minus", "tokens(-1)", "One drafted token less", show=False),
        Binding("y", "copy", "Copy", tooltip="Copy the command"),
        Binding("a", "attach", "Attach", tooltip="Watch the newest running server"),
        Binding("1", "app.show('launch')", "Launch screen", show=False),
        Binding("2", "app.show('live')", "Live", tooltip="The run that is watched"),
        Binding("question_mark", "app.keys", "Help", key_display="?"),
        Binding("q", "app.leave", "Quit", tooltip="Leave the panel; servers keep running"),
    ]

    class Launch(Message):
        """Somebody wants this plan launched."""

        def __init__(self, recipe: Recipe, plan: Plan) -> None:
            super().__init__()
            self.recipe, self.plan = recipe, plan

    class Attach(Message):
        """Somebody wants to watch this run."""

        def __init__(self, run: Run) -> None:
            super().__init__()
            self.run = run

    def __init__(self, now: Callable[[], float], probe: Callable[[], Probe], entries: Entries) -> None:
        super().__init__()
        self.now, self.probe, self.entries = now, probe, entries
        self.changes: dict[str, tuple[Mode, int]] = {}
        self.machine: Probe | None = None
        self.running: list[Run] = []

    def compose(self) -> ComposeResult:
        yield Display(id="head")
        with Container(id="body"):
            with Vertical(id="left"):
                yield Display(id="machine")
                with Vertical(id="list"):
                    yield Static(id="columns")
                    yield OptionList(id="recipes", markup=False)
                yield Display(id="servers")
            with VerticalScroll(id="plan"):
                yield Static(id="text", markup=False)
        yield TooSmall()
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one("#machine").border_title = "machine"
        self.query_one("#list").border_title = "recipes"
        self.query_one("#plan").border_title = "plan"
        self.query_one("#servers").border_title = "running"
        self.query_one(OptionList).add_options([Option("", id=str(index)) for index in range(len(self.entries))])
        self.query_one(OptionList).highlighted = 0 if self.entries else None
        self.query_one(OptionList).focus()
        self.draw()
        self.call_after_refresh(self.look)
        self.set_interval(2.0, self.look)

    def on_screen_resume(self) -> None:
        self.look()

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    @work(exclusive=True, group="look")
    async def look(self) -> None:
        """Look at the machine and for running servers, away from the screen's own thread."""
        if not self.is_active and self.machine:
            return
        self.running = await asyncio.to_thread(living)
        self.draw()
        self.machine = await asyncio.to_thread(self.probe)
        self.draw()

    def draw(self) -> None:
        """Bring every part up to date; a worker may come back when the panel is closing."""
        if not self.query("#head, #plan"):
            return
        count = plural(len(self.running), "server")
        state = f"{count} running" if self.running else "no server running"
        driver = f" · driver {self.machine.driver}" if self.machine and self.machine.driver else ""
        head = Content.assemble(("dflash-tui", "bold"), f" {__version__}{driver} · {state}")
        self.query_one("#head", Display).show(head)
        self.query_one("#machine", Display).show(planview.machine(self.machine))
        now = self.now()
        servers = [planview.server_text(run, now) for run in reversed(self.running)]
        self.query_one("#servers", Display).show(Content("\n").join(servers))
        self.set_class(bool(self.running), "-servers")
        self._draw_recipes()
        self._draw_plan()
        self.refresh_bindings()

    def _draw_recipes(self) -> None:
        table = self.query_one(OptionList)
        width = table.scrollable_content_region.width - 4
        self.query_one("#columns", Static).update(
            Content(f"  {planview.columns('recipe', 'mode', 'n', 'status', width)}"), layout=False
        )
        for index, (name, entry) in enumerate(self.entries.items()):
            shown = planview.row(name, entry, width)
            if table.get_option_at_index(index).prompt != shown:
                table.replace_option_prompt_at_index(index, shown)

    def _draw_plan(self) -> None:
        entry = self.chosen
        text = self.query_one("#text", Static)
        if entry is None:
            text.update(Content("no recipe was found"))
        elif isinstance(entry, DflashError):
            text.update(planview.error_text(entry))
        else:
            try:
                plan = self.plan_of(entry)
                engine = engines.find(Path(plan.engine_folder))
                text.update(planview.plan_text(entry, plan, engine))
            except DflashError as error:
                text.update(planview.error_text(error))

    @property
    def chosen(self) -> Recipe | DflashError | None:
        """The highlighted recipe, why its file does not load, or None when there is none."""
        index = self.query_one(OptionList).highlighted
        return None if index is None else list(self.entries.values())[index]

    def plan_of(self, recipe: Recipe, port: int | None = None) -> Plan:
        """Return the plan of `recipe` with the mode and the drafts chosen here."""
        mode, tokens = self.changes.get(recipe.name, (recipe.mode, recipe.drafter.num_speculative_tokens))
        return plans.make(recipe, mode=mode, num_speculative_tokens=tokens, port=port)

    @on(OptionList.OptionHighlighted)
    def _highlighted(self) -> None:
        self.query_one("#plan", VerticalScroll).scroll_home(animate=False)
        self._draw_plan()

    def _change(self, mode: Mode, tokens: int) -> None:
        recipe = self.chosen
        if isinstance(recipe, Recipe):
            self.changes[recipe.name] = (mode, tokens)
            self._draw_plan()

    def action_mode(self) -> None:
        if isinstance(recipe := self.chosen, Recipe):
            plan = self.plan_of(recipe)
            other = Mode.COMPILE if plan.mode is Mode.EAGER else Mode.EAGER
            self._change(other, plan.num_speculative_tokens)

    def action_tokens(self, more: int) -> None:
        if isinstance(recipe := self.chosen, Recipe):
            plan = self.plan_of(recipe)
            self._change(plan.mode, max(1, min(_MOST_TOKENS, plan.num_speculative_tokens + more)))

    def action_copy(self) -> None:
        if isinstance(recipe := self.chosen, Recipe):
            self.app.copy_to_clipboard(plans.command(self.plan_of(recipe)))
            self.notify("the command is in the clipboard, if the terminal allows OSC 52")

    def action_attach(self) -> None:
        if self.running:
            self.post_message(self.Attach(self.running[-1]))
        else:
            self.notify("no server is running", severity="warning")

    def action_launch(self) -> None:
        recipe = self.chosen
        if not isinstance(recipe, Recipe):
            self.notify("this recipe does not load; the right side says why", severity="warning")
            return
        try:
            self.post_message(self.Launch(recipe, self.plan_of(recipe, server.free_port(recipe.port))))
        except DflashError as error:
            self.app.push_screen(ErrorDialog(error))


def load_all() -> Entries:
    """Return every recipe by name, or why its file does not load."""
    found: Entries = {}
    for name, path in recipes.files().items():
        try:
            found[name] = recipes.load(path)
        except DflashError as error:
            found[name] = error
    return found


def living() -> list[Run]:
    """Return the runs whose server lives, oldest first."""
    return [run for run in server.runs() if server.alive(run)]


def probe() -> Probe:
    """Return what NVML says."""
    from dflash_tui.core import gpu  # noqa: PLC0415 - 80 ms that the first paint need not wait for

    return gpu.probe()
