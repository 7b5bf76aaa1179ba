"""Draws reports as SVG: renders the panel's screen without a terminal."""

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
    panel, shown = DflashApp(load=dict), replace(report, comparisons=list_verdicts(report))

    def begin() -> None:
        panel.compare_screen.begin(shown)
        panel.switch_mode("compare")

    title = "tune" if report.tune else "A/B"
    return asyncio.run(_draw(panel, title, panel.compare_screen.draw, begin=begin))


def draw_run(name: str) -> str:
    """Return the end of the run called `name` as SVG; raise DflashError if it cannot be read."""
    recorded = recording.find_recording(name)
    player = Player(recorded, at=recorded.last_event_time() - recorded.started_at, clock=lambda: 0.0)
    panel = DflashApp(player=player, load=dict)
    return asyncio.run(_draw(panel, "run", panel.replay_screen.view.draw, lambda: not player.behind))


def draw_playback(report: ExperimentReport, arm: str = "", prompt: str = "") -> str:
    """Return the playback of two arms when the faster one has finished, as SVG."""
    moment = 0.0
    screen = PlaybackScreen(report, arm, prompt, lambda: moment)
    moment = min(screen.pair.a.seconds, screen.pair.b.seconds)
    panel = DflashApp(playback=screen, load=dict)
    return asyncio.run(_draw(panel, "A/B", screen.draw, lambda: screen.is_active, size=_PLAYBACK_SIZE))


async def _draw(
    panel: DflashApp,
    title: str,
    draw: Callable[[], None],
    is_ready: Callable[[], bool] = lambda: True,
    *,
    begin: Callable[[], None] = lambda: None,
    size: tuple[int, int] = _SIZE,
) -> str:
    os.environ.setdefault("DFLASH_TUI_MARKER", "block")  # every font has it
    async with panel.run_test(size=size) as pilot:
        begin()
        while not is_ready():
            await pilot.pause(0.02)
        for _ in range(3):  # the first drawing determines the sizes of the parts
            await pilot.pause()
            draw()
        await pilot.pause()
        return panel.export_screenshot(title=f"dflash-tui {title}")
