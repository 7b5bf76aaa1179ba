"""Draws recorded runs for README and docs: `python -m tools.draw_docs [NAME …]`, without names all of them."""

import asyncio
import os
import sys
from pathlib import Path

from dflash_tui.monitoring import recording
from dflash_tui.monitoring.recording import Player
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.tui.app import DflashApp
from tests.support.recordings import RUNS
from tests.tui.panel import NO_GPU, text, wait_for

# What is drawn: the recording, columns and rows, seconds after the launch.
PICTURES = {
    "replay": ("sample", 120, 36, 230.0),
    "h200-eager": (str(RUNS / "h200-eager.zip"), 120, 36, 285.0),
    "h200-compile": (str(RUNS / "h200-compile.zip"), 120, 36, 305.0),
    "h200-compile-starting": (str(RUNS / "h200-compile.zip"), 120, 36, 110.0),
    "h200-compile-80x24": (str(RUNS / "h200-compile.zip"), 80, 24, 305.0),
}


# What is laid over the launch screen: the recipe, the key, and words that are there when all has been looked at.
DIALOGS = {
    "doctor": ("demo-cpu", "d", "r check again"),
    "patch-diff": ("demo-cpu", "p", "+++ b/"),
}


async def draw(name: str, folder: Path) -> None:
    """Write the replay screen at that moment as an SVG."""
    of, columns, rows, at = PICTURES[name]
    player = Player(recording.find_recording(of), at=at, clock=lambda: 0.0)
    panel = DflashApp(player=player, probe=lambda: NO_GPU)
    async with panel.run_test(size=(columns, rows)) as pilot:
        await wait_for(pilot, lambda: not player.behind)
        for _ in range(2):  # the first drawing gives the charts their size
            panel.replay_screen.view.draw()
            await pilot.pause(0.2)
        (folder / f"{name}.svg").write_text(panel.export_screenshot(title="dflash-tui replay"), encoding="utf-8")


async def draw_dialog(name: str, folder: Path) -> None:
    """Write what a key shows of a recipe on a machine without a GPU where nothing is installed yet, as an SVG."""
    recipe, key, words = DIALOGS[name]
    panel = DflashApp(load=lambda: {recipe: recipe_loader.find_recipe(recipe)}, probe=lambda: NO_GPU)
    async with panel.run_test(size=(120, 36)) as pilot:
        await wait_for(pilot, lambda: recipe in text(panel))
        await pilot.press(key)
        await wait_for(pilot, lambda: words in text(panel))
        await pilot.pause(0.2)
        (folder / f"{name}.svg").write_text(panel.export_screenshot(title="dflash-tui"), encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("DFLASH_TUI_MARKER", "block")  # every font has it
    names = sys.argv[1:] or [*PICTURES, *DIALOGS]
    for wanted in [name for name in names if name in PICTURES]:
        asyncio.run(draw(wanted, Path("docs")))
    for kind in ("DATA", "CACHE", "STATE", "CONFIG"):  # nothing of whoever draws is in the pictures
        os.environ[f"XDG_{kind}_HOME"] = f"/nonexistent/{kind.lower()}"
    os.environ["HF_HOME"] = "/nonexistent/cache/huggingface"
    for wanted in [name for name in names if name in DIALOGS]:
        asyncio.run(draw_dialog(wanted, Path("docs")))
