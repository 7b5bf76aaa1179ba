"""Draws the README's picture from the shipped sample: `python -m tests.picture [FILE [COLUMNSxROWS [SECONDS]]]`."""

import asyncio
import os
import sys
from pathlib import Path

from dflash_tui.core import recording
from dflash_tui.core.player import Player
from dflash_tui.tui.app import DflashApp
from tests.tui.panel import NO_GPU, wait_for


async def draw(path: Path, columns: int, rows: int, at: float) -> None:
    """Write the replay screen so many seconds after the launch as an SVG."""
    player = Player(recording.find("sample"), at=at, clock=lambda: 0.0)
    panel = DflashApp(player=player, probe=lambda: NO_GPU)
    async with panel.run_test(size=(columns, rows)) as pilot:
        await wait_for(pilot, lambda: not player.behind)
        for _ in range(2):  # the first drawing gives the charts their size
            panel.replay_screen.draw()
            await pilot.pause(0.2)
        path.write_text(panel.export_screenshot(title="dflash-tui replay sample"), encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("DFLASH_TUI_MARKER", "block")  # every font has it
    file, size, seconds = [*sys.argv[1:], *("docs/replay.svg", "120x36", "152")[len(sys.argv) - 1 :]]
    width, height = (int(number) for number in size.split("x"))
    asyncio.run(draw(Path(file), width, height, float(seconds)))
