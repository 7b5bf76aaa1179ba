"""Drives the panel in tests: start it, wait for something, read what is on the screen."""

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Static

from dflash_tui.common.errors import DflashError
from dflash_tui.diagnosis.postmortem import Postmortem
from dflash_tui.events import AnyEvent
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.runs.run import Run
from dflash_tui.tui.app import DflashApp
from tests.support.waiting import PATIENCE

Kind = TypeVar("Kind", bound=Screen[Any])
NO_GPU = GpuProbe(why_none="no NVIDIA GPU: the driver is not installed")


def app(
    entries: dict[str, Recipe | DflashError] | None = None, now: float = 0.0, probe: GpuProbe = NO_GPU
) -> DflashApp:
    """Return a panel with these recipes, at a clock that stands still."""
    return DflashApp(now=lambda: now, probe=lambda: probe, load=lambda: dict(entries or {}))


async def feed(pilot: Pilot[str], run: Run, events: Iterable[AnyEvent]) -> None:
    """Show `run` with these events on the run screen."""
    panel = panel_of(pilot)
    panel.run_screen.view.begin(run)
    for event in (*run.prepared, run.launched, *events):
        panel.run_screen.view.take(event)
    panel.switch_mode("live")
    await wait_for(pilot, lambda: panel.run_screen.is_active and not panel.run_screen.view.changed)
    panel.run_screen.view.draw()
    await pilot.pause()
    # The classes that the first drawing set have given the charts their size; now they get their columns.
    panel.run_screen.view.draw()
    await pilot.pause()


async def wait_for(pilot: Pilot[str], true: Callable[[], bool]) -> None:
    """Let the panel work until something holds."""
    panel, deadline = pilot.app, time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, text(panel) if isinstance(panel, DflashApp) else "it did not happen"
        await pilot.pause(0.05)


async def shows(pilot: Pilot[str], *parts: str) -> None:
    """Let the panel work until all of these stand on the screen, wrapped or not; it draws one thing after the other."""
    panel, deadline = pilot.app, time.monotonic() + PATIENCE
    assert isinstance(panel, DflashApp)
    while missing := [part for part in parts if not any(part in seen(panel) for seen in (text, words, said))]:
        assert time.monotonic() < deadline, f"{missing} not in\n{text(panel)}"
        await pilot.pause(0.05)


def panel_of(pilot: Pilot[str]) -> DflashApp:
    """Return the panel that a pilot drives."""
    assert isinstance(pilot.app, DflashApp)
    return pilot.app


def shown_as(panel: App[str], kind: type[Kind]) -> Kind:
    """Return the screen that is shown, which is of that kind."""
    assert isinstance(panel.screen, kind)
    return panel.screen


def text(panel: DflashApp) -> str:
    """Return what is on the screen, as one reads it."""
    width, _ = panel.size
    strips = panel.screen._compositor.render_strips(panel.size)
    return "\n".join("".join(segment.text for segment in strip)[:width].rstrip() for strip in strips)


def words(panel: DflashApp) -> str:
    """Return the words on the screen, however they are wrapped."""
    return " ".join(word for word in text(panel).split() if word != "│")


def said(panel: DflashApp) -> str:
    """Return the messages that are shown, one per line, however they are wrapped."""
    return "\n".join(str(toast.render()) for toast in panel.screen.query("Toast"))


async def failure_of(run: Run) -> tuple[Postmortem, str, str]:
    """Open the panel on a failed run; return what it found, the words on the screen, and what `f` would change.

    The last is empty when nothing is offered.
    """
    panel = DflashApp(run, probe=lambda: NO_GPU)
    async with panel.run_test(size=(120, 36)) as pilot:
        await wait_for(pilot, lambda: panel.run_screen.view.failure is not None)
        # What the system says of the end comes last.
        await wait_for(pilot, lambda: all(worker.is_finished for worker in panel.workers if worker.group == "observe"))
        panel.run_screen.view.draw()
        await wait_for(pilot, lambda: "✗ FAILED" in text(panel) and "cause" in text(panel))
        await pilot.pause()
        found, seen, offered = panel.run_screen.view.failure, words(panel), ""
        assert found is not None
        if found.remedies:
            await pilot.press("f")
            await wait_for(pilot, lambda: "changes of vLLM" in words(panel))
            offered = str(panel.screen.query_one("#about", Static).content)
            await pilot.press("escape")
            await pilot.pause()
            assert panel.screen is panel.run_screen
    return found, seen, offered
