"""Sizes of the terminal that come faster than they are drawn."""

import asyncio

from textual.events import Resize
from textual.geometry import Size

from dflash_tui.tui.screens.launch import LaunchScreen
from tests.tui.panel import app, wait_for


async def test_repeated_resizing_settles_at_last_size(monkeypatch):
    """Of two that wait in a screen's queue each has it lay itself out and tell itself its size, for ever."""
    sizes: list[Size] = []
    as_it_does = LaunchScreen.on_resize

    def resized(screen: LaunchScreen) -> None:
        sizes.append(screen.size)
        assert len(sizes) < 100, "it never ends"
        as_it_does(screen)

    panel = app()
    async with panel.run_test(size=(120, 36)) as pilot:
        monkeypatch.setattr(LaunchScreen, "on_resize", resized)
        panel.screen.call_later(asyncio.sleep, 0.5)
        for size in (Size(1, 1), Size(5, 2), Size(200, 1), Size(100, 30)):
            panel.post_message(Resize(size, size))
            await asyncio.sleep(0.05)
            panel.screen.call_later(len, "")  # of two that are side by side in a queue only the last is taken
        await wait_for(pilot, lambda: panel.screen.size == (100, 30))
        await pilot.pause(0.5)
        before = len(sizes)
        await pilot.pause(0.5)
        assert len(sizes) == before
        assert sizes[-1] == panel.screen.size == (100, 30)
