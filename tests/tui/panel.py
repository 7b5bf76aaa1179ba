"""Drives the panel in tests: start it, wait for something, read what is on the screen."""

from collections.abc import Callable, Iterable

from textual.pilot import Pilot

from dflash_tui.core.events import AnyEvent
from dflash_tui.core.gpu import Probe
from dflash_tui.core.recipe import Recipe
from dflash_tui.core.server import Run
from dflash_tui.errors import DflashError
from dflash_tui.tui.app import DflashApp

NO_GPU = Probe(why_none="no NVIDIA GPU: the driver is not installed")


def app(entries: dict[str, Recipe | DflashError] | None = None, now: float = 0.0, probe: Probe = NO_GPU) -> DflashApp:
    """Return a panel with these recipes, at a clock that stands still."""
    return DflashApp(now=lambda: now, probe=lambda: probe, load=lambda: dict(entries or {}))


async def feed(pilot: Pilot[str], run: Run, events: Iterable[AnyEvent]) -> None:
    """Show `run` with these events on the run screen."""
    panel = pilot.app
    assert isinstance(panel, DflashApp)
    panel.run_screen.begin(run)
    for event in (*run.prepared, run.launched, *events):
        panel.run_screen.take(event)
    panel.switch_mode("live")
    await wait_for(pilot, lambda: panel.run_screen.is_active and not panel.run_screen.changed)
    panel.run_screen.draw()
    await pilot.pause()
    # The classes that the first drawing set have given the charts their size; now they get their columns.
    panel.run_screen.draw()
    await pilot.pause()


async def wait_for(pilot: Pilot[str], true: Callable[[], bool]) -> None:
    """Let the panel work until something holds."""
    for _ in range(200):
        if true():
            return
        await pilot.pause(0.05)
    raise AssertionError("it did not happen")


def text(panel: DflashApp) -> str:
    """Return what is on the screen, as one reads it."""
    width, _ = panel.size
    strips = panel.screen._compositor.render_strips(panel.size)
    return "\n".join("".join(segment.text for segment in strip)[:width].rstrip() for strip in strips)
