"""Commands of the command palette beside Textual's own: screens, recipes and runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, Protocol, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from dflash_tui.monitoring import recording
from dflash_tui.planning.recipe import Recipe
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import Run
from dflash_tui.tui.screens.launch import LaunchScreen
from dflash_tui.tui.screens.startup_history import HistoryScreen


class Panel(Protocol):
    """The methods of the panel that the palette calls."""

    launch_screen: LaunchScreen

    def action_runs(self) -> None:
        """List the runs."""

    def action_show(self, mode: str) -> None:
        """Show a screen by its name."""

    def action_theme(self) -> None:
        """Switch to the other theme."""

    def choose(self, name: str) -> None:
        """Highlight a recipe on the launch screen."""

    def open_run(self, run: Run) -> None:
        """Watch a run whose server is running, replay a finished one."""


class Command(NamedTuple):
    """A command of the palette: its name, its help and its function."""

    name: str
    about: str
    run: Callable[[], object]


class PanelCommands(Provider):
    """Lists the screens, and finds recipes and runs by their names."""

    async def startup(self) -> None:
        self.runs = await asyncio.to_thread(registry.list_runs)

    async def discover(self) -> Hits:
        for command in self._screens():
            yield DiscoveryHit(command.name, command.run, help=command.about)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for command in (*self._screens(), *self._recipes(), *self._runs()):
            if score := matcher.match(command.name):
                name = matcher.highlight(command.name) if "[" not in command.name else Content(command.name)
                yield Hit(score, name, command.run, text=command.name, help=command.about)

    @property
    def panel(self) -> Panel:
        """The panel that the palette belongs to; no other app has this provider."""
        return cast("Panel", self.app)

    def _screens(self) -> Iterator[Command]:
        yield Command("Runs", "watch, replay or export a run", self.panel.action_runs)
        yield Command("History", "compare starts: eager and compile, cold and cached", self._history)
        yield Command(
            "Launch screen", "recipes, and the plan of the highlighted one", partial(self.panel.action_show, "launch")
        )
        yield Command("Live screen", "the run being watched", partial(self.panel.action_show, "live"))
        yield Command("Replay the sample", "a run recorded on a real H200", self._sample)
        yield Command("Light or dark", "switch between the light and the dark theme", self.panel.action_theme)

    def _history(self) -> None:
        self.app.push_screen(HistoryScreen())

    def _sample(self) -> None:
        self.panel.open_run(recording.find_recording(recording.SAMPLE))

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
    """Escape markup, which the palette would interpret in help texts."""
    return text.replace("[", "\\[")
