"""Draws reports as SVG: the panel's screen without a terminal."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from msgspec.structs import replace

from dflash_tui.experiments.analysis.report import ExperimentReport, list_verdicts
from dflash_tui.monitoring import recording
from dflash_tui.monitoring.recording import Player
from dflash_tui.tui.app import DflashApp
from dflash_tui.tui.screens.playback import PlaybackScreen

_SIZE, _PLAYBACK_SIZE = (120, 44), (100, 30)


def draw_experiment(report: ExperimentReport) -> str:
    """Return the verdict of an A/B or a tune as SVG."""
    os.environ.setdefault("DFLASH_TUI_MARKER", "block")  # every font has it
    panel = DflashApp(load=dict)

    def begin() -> bool:
        panel.compare_screen.begin(replace(report, comparisons=list_verdicts(report)))
        panel.switch_mode("compare")
        return True

    return asyncio.run(_draw(panel, "tune" if report.tune else "A/B", _SIZE, begin, panel.compare_screen.draw))


def draw_run(name: str) -> str:
    """Return how the run that `name` means stood at its end, as SVG.

    Raises:
        DflashError: there is no such run, or it cannot be read.
    """
    os.environ.setdefault("DFLASH_TUI_MARKER", "block")
    recorded = recording.find_recording(name)
    player = Player(recorded, at=recorded.last_event_time() - recorded.started_at, clock=lambda: 0.0)
    panel = DflashApp(player=player, load=dict)
    return asyncio.run(_draw(panel, "run", _SIZE, lambda: not player.behind, panel.replay_screen.view.draw))


def draw_playback(report: ExperimentReport, arm: str = "", prompt: str = "") -> str:
    """Return two arms of an experiment at the moment at which the faster one is done, as SVG.

    Raises:
        UsageError: nothing of them can be played, or no arm or prompt is called so.
    """
    os.environ.setdefault("DFLASH_TUI_MARKER", "block")
    moment = 0.0
    screen = PlaybackScreen(report, arm, prompt, lambda: moment)
    moment = min(screen.pair.a.seconds, screen.pair.b.seconds)
    panel = DflashApp(playback=screen, load=dict)
    return asyncio.run(_draw(panel, "A/B", _PLAYBACK_SIZE, lambda: screen.is_active, screen.draw))


async def _draw(
    panel: DflashApp, title: str, size: tuple[int, int], begin: Callable[[], bool], draw: Callable[[], None]
) -> str:
    """Return the screen once `begin` is true, drawn three times: the first drawing gives the parts their size."""
    async with panel.run_test(size=size) as pilot:
        while not begin():
            await pilot.pause(0.02)
        for _ in range(3):
            await pilot.pause()
            draw()
        await pilot.pause()
        return panel.export_screenshot(title=f"dflash-tui {title}")
