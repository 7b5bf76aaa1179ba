"""Draws two answers side by side without a terminal: the screen of the panel as SVG."""

from __future__ import annotations

import asyncio
import os

from dflash_tui.experiments.analysis.report import Comparison, ExperimentReport
from dflash_tui.tui.app import DflashApp
from dflash_tui.tui.screens.playback import PlaybackScreen, build_playback

_SIZE = (100, 30)


def export_playback(report: ExperimentReport, comparison: Comparison | None, prompt: str = "") -> str:
    """Return two arms of an experiment that write the same answer, at the moment at which the faster one is done.

    Args:
        report: the experiment, with the boots that are over.
        comparison: the arms that are compared; None where there is no verdict yet.
        prompt: the kind of the prompt; empty for the one whose ratio is the median.

    Raises:
        UsageError: nothing of them can be played, or no prompt is called so.
    """
    os.environ.setdefault("DFLASH_TUI_MARKER", "block")  # every font has it
    clock = [0.0]
    screen = build_playback(report, comparison, prompt, lambda: clock[0])
    clock[0] = min(screen.pair.a.seconds, screen.pair.b.seconds)
    return asyncio.run(_draw(screen))


async def _draw(screen: PlaybackScreen) -> str:
    panel = DflashApp(playback=screen, load=dict)
    async with panel.run_test(size=_SIZE) as pilot:
        while not screen.is_active:
            await pilot.pause(0.02)
        for _ in range(3):  # the first drawing gives the parts their size
            screen.draw()
            await pilot.pause()
        return panel.export_screenshot(title="dflash-tui A/B")
