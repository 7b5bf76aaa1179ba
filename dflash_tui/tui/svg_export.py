"""Draws reports as SVG: the panel's screen without a terminal."""

from __future__ import annotations

import asyncio
import os

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
    return asyncio.run(_ab(replace(report, comparisons=list_verdicts(report))))


def draw_run(name: str) -> str:
    """Return how the run that `name` means stood at its end, as SVG.

    Raises:
        DflashError: there is no such run, or it cannot be read.
    """
    os.environ.setdefault("DFLASH_TUI_MARKER", "block")
    recorded = recording.find_recording(name)
    return asyncio.run(_run(Player(recorded, at=recorded.last_event_time() - recorded.started_at, clock=lambda: 0.0)))


def draw_playback(report: ExperimentReport, arm: str = "", prompt: str = "") -> str:
    """Return two arms of an experiment at the moment at which the faster one is done, as SVG.

    Raises:
        UsageError: nothing of them can be played, or no arm or prompt is called so.
    """
    os.environ.setdefault("DFLASH_TUI_MARKER", "block")
    moment = 0.0
    screen = PlaybackScreen(report, arm, prompt, lambda: moment)
    moment = min(screen.pair.a.seconds, screen.pair.b.seconds)
    return asyncio.run(_playback(screen))


async def _playback(screen: PlaybackScreen) -> str:
    panel = DflashApp(playback=screen, load=dict)
    async with panel.run_test(size=_PLAYBACK_SIZE) as pilot:
        while not screen.is_active:
            await pilot.pause(0.02)
        for _ in range(3):
            screen.draw()
            await pilot.pause()
        return panel.export_screenshot(title="dflash-tui A/B")


async def _ab(report: ExperimentReport) -> str:
    panel = DflashApp(load=dict)
    async with panel.run_test(size=_SIZE) as pilot:
        panel.compare_screen.begin(report)
        panel.switch_mode("compare")
        for _ in range(3):  # the first drawing gives the parts their size
            await pilot.pause()
            panel.compare_screen.draw()
        return panel.export_screenshot(title=f"dflash-tui {'tune' if report.tune else 'A/B'}")


async def _run(player: Player) -> str:
    panel = DflashApp(player=player, load=dict)
    async with panel.run_test(size=_SIZE) as pilot:
        while player.behind:
            await pilot.pause(0.02)
        for _ in range(3):
            await pilot.pause()
            panel.replay_screen.view.draw()
        return panel.export_screenshot(title="dflash-tui run")
