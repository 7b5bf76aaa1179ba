"""What the command palette finds beside Textual's own commands: screens, recipes and runs."""

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
    """What the palette does with the panel that it belongs to."""

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
        """Watch a run that lives, play one that has ended."""


class Command(NamedTuple):
    """A line of the palette: what it is called, what it does in words, and what does it."""

    name: str
    about: str
    act: Callable[[], object]


class Places(Provider):
    """Finds screens at once, and recipes and runs by their names."""

    async def startup(self) -> None:
        self.runs = await asyncio.to_thread(registry.list_runs)

    async def discover(self) -> Hits:
        for command in self._screens():
            yield DiscoveryHit(command.name, command.act, help=command.about)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for command in (*self._screens(), *self._recipes(), *self._runs()):
            if score := matcher.match(command.name):
                found = matcher.highlight(command.name) if "[" not in command.name else Content(command.name)
                yield Hit(score, found, command.act, text=command.name, help=command.about)

    @property
    def panel(self) -> Panel:
        """The panel that the palette belongs to; no other app has this provider."""
        return cast("Panel", self.app)

    def _screens(self) -> Iterator[Command]:
        yield Command("Runs", "switch to another run, play an ended one, export", self.panel.action_runs)
        yield Command("History", "compare starts: eager and compile, cold and cached", self._history)
        yield Command(
            "Launch screen", "recipes and what launching one would do", partial(self.panel.action_show, "launch")
        )
        yield Command("Live screen", "the run that is watched", partial(self.panel.action_show, "live"))
        yield Command("Replay the sample", "a run recorded on a real H200", self._sample)
        yield Command("Light or dark", "switch between our two themes", self.panel.action_theme)

    def _history(self) -> None:
        self.app.push_screen(HistoryScreen())

    def _sample(self) -> None:
        self.panel.open_run(recording.find_recording(recording.SAMPLE))

    def _recipes(self) -> Iterator[Command]:
        for name, entry in self.panel.launch_screen.entries.items():
            about = entry.title if isinstance(entry, Recipe) else "this file does not load"
            yield Command(f"Recipe: {name}", escape_markup(about), partial(self.panel.choose, name))

    def _runs(self) -> Iterator[Command]:
        for run in reversed(self.runs):
            what = "watch" if server_process.is_alive(run) else "play"
            yield Command(
                f"Run: {run.id}", escape_markup(f"{what} {run.plan.recipe}"), partial(self.panel.open_run, run)
            )


def escape_markup(text: str) -> str:
    """Return text that the palette, which reads help as markup, shows as it is."""
    return text.replace("[", "\\[")
