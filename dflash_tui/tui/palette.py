"""Commands of the command palette: the screen's actions with their keys, screens, recipes and runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, cast

from textual import work
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from dflash_tui.common.errors import DflashError
from dflash_tui.diagnosis.explanation import Explanation, format_explanation
from dflash_tui.diagnosis.log_source import LogSource
from dflash_tui.diagnosis.posted_log import explain_log
from dflash_tui.monitoring.recording import SAMPLE, find_recording
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.basic import ListDialog, is_below_screen
from dflash_tui.tui.dialogs.runs import HistoryScreen
from dflash_tui.tui.screens.launch import LaunchScreen
from dflash_tui.tui.widgets.basic import render_error


class Panel(Protocol):
    """The methods of the panel that the palette calls."""

    launch_screen: LaunchScreen

    def action_chat(self) -> None:
        """Open the chat with a server."""

    def action_runs(self) -> None:
        """List the runs."""

    def action_show(self, mode: str) -> None:
        """Show a screen by its name."""

    def choose(self, name: str) -> None:
        """Highlight a recipe on the launch screen."""

    def open_run(self, run: Run) -> None:
        """Watch a run if its server is running, otherwise replay it."""


class Command(NamedTuple):
    """A command of the palette: name, help, function."""

    name: str
    about: str
    run: Callable[[], object]


class PanelCommands(Provider):
    """Lists the actions of the screen and the other screens; finds recipes and runs by name."""

    async def startup(self) -> None:
        self.runs = await asyncio.to_thread(registry.list_runs)

    async def discover(self) -> Hits:
        for command in self._commands():
            yield DiscoveryHit(command.name, command.run, help=command.about)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for command in (*self._commands(), *self._recipes(), *self._runs()):
            words = command.name + f" {command.about}" * (query.lower() in command.about.lower())
            if score := matcher.match(words):
                name = matcher.highlight(command.name) if "[" not in command.name else Content(command.name)
                yield Hit(score, name, command.run, text=command.name, help=command.about)

    @property
    def panel(self) -> Panel:
        """The panel; no other app uses this provider."""
        return cast("Panel", self.app)

    def _commands(self) -> Iterator[Command]:
        actions = list(self._actions())
        names = {action.name for action in actions}
        yield from actions
        yield from (command for command in self._screens() if command.name not in names)

    def _actions(self) -> Iterator[Command]:
        """Yield the actions of the screen's keys, those common to all screens last; omits the palette itself."""
        done = {"command_palette", "app.command_palette"}
        active = self.screen.active_bindings.values()
        for node, binding, enabled, _ in sorted(active, key=lambda binding: is_below_screen(binding.node)):
            text = binding.tooltip or (binding.description if binding.show else "")
            if enabled and text and binding.action not in done:
                done.add(binding.action)
                about = f"{self.app.get_key_display(binding)}  {escape_markup(text)}"
                yield Command(binding.description, about, partial(self.app.run_action, binding.action, node))

    def _screens(self) -> Iterator[Command]:
        push, panel = self.app.push_screen, self.panel
        yield Command("Runs", "watch, replay or export a run", panel.action_runs)
        yield Command("History", "compare starts: eager and compile, cold and cached", lambda: push(HistoryScreen()))
        yield Command(
            "Launch screen", "recipes, and the plan of the highlighted one", partial(panel.action_show, "launch")
        )
        yield Command("Tune", "find the fastest setting of the highlighted recipe", self._tune)
        yield Command("Explain a log", "why any vLLM failed, from its log file", lambda: push(LogDialog()))
        yield Command("Live screen", "the run being watched", partial(panel.action_show, "live"))
        yield Command("Chat", "talk with the server that is watched, or the newest", panel.action_chat)
        yield Command(
            "Replay the sample", "a run recorded on a real H200", lambda: panel.open_run(find_recording(SAMPLE))
        )
        yield Command("Theme", "choose among all themes", self.app.search_themes)
        yield Command("Screenshot", "save the screen as an SVG file in the current folder", self._save_screenshot)

    def _save_screenshot(self) -> None:
        """Save to the current folder, where exports go: over ssh there is no downloads folder."""
        try:
            self.app.notify(f"saved {self.app.save_screenshot(path='.')}")
        except OSError as error:
            self.app.notify(f"not saved: {error.strerror}; choose another folder", severity="error")

    def _tune(self) -> None:
        self.panel.action_show("launch")
        self.panel.launch_screen.action_tune()

    def _recipes(self) -> Iterator[Command]:
        for name, entry in self.panel.launch_screen.entries.items():
            about = entry.title if isinstance(entry, Recipe) else "this file cannot be loaded"
            yield Command(f"Recipe: {name}", escape_markup(about), partial(self.panel.choose, name))

    def _runs(self) -> Iterator[Command]:
        for run in reversed(self.runs):
            verb = "watch" if server_process.is_alive(run) else "replay"
            yield Command(
                f"Run: {run.id}", escape_markup(f"{verb} {run.plan.recipe}"), partial(self.panel.open_run, run)
            )


def escape_markup(text: str) -> str:
    """Escape markup, which the palette would render in help texts."""
    return text.replace("[", "\\[")


class LogDialog(ListDialog[None]):
    """Asks for a log file, and explains why its server failed."""

    HEADING: ClassVar = "explain a log"

    def __init__(self) -> None:
        super().__init__()
        self.explanation: Explanation | None = None

    def on_mount(self) -> None:
        self.open_field(placeholder="log file of any vLLM, docker or journalctl")

    def on_resize(self) -> None:
        """Re-wrap the text."""
        if self.explanation:
            self.show_detail(format_explanation(self.explanation, self.row_width))

    def action_take(self) -> None:
        """Explain the log of the typed name."""
        if name := self.field.value.strip():
            self.read(str(Path(name).expanduser().absolute()))

    @work(exclusive=True)
    async def read(self, name: str) -> None:
        """Read a log in a thread and explain it."""
        self.show_detail(f"reading {name} …")
        try:
            self.explanation = await asyncio.to_thread(lambda: explain_log(LogSource(name)))
        except DflashError as error:
            self.explanation = None
            self.show_detail(render_error(error))
        else:
            self.on_resize()
            self.detail.focus()
