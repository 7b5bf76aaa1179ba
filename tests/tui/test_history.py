"""Earlier starts side by side on the panel: kinds with n, median and spread, and what their time went into."""

import re

import msgspec
import pytest

from dflash_tui.monitoring import startup_history
from dflash_tui.monitoring.startup_history import RecordedStart
from dflash_tui.tui.dialogs.runs import RunList
from tests.support import recorded_startups
from tests.tui.conftest import HOSTILE
from tests.tui.panel import app, text, wait_for


def some() -> list[RecordedStart]:
    """Return recorded starts as history has them: three compiled ones, one from the cache, an eager pair, another's."""
    cold = [recorded_startups.start(recorded_startups.COMPILED, factor) for factor in (1.0, 0.9, 1.2)]
    cached = msgspec.structs.replace(recorded_startups.start(recorded_startups.COMPILED, 0.5), cache="cached")
    eager = [
        recorded_startups.start("h200-vllm-0.26.0/g26-dflash-eager", factor, mode="eager") for factor in (0.8, 1.0)
    ]
    of = {"recipe": "gemma-4-26b-a4b", "setup": "stock n=15", "synthetic": "random weights"}
    mine = [msgspec.structs.replace(start, **of)
            for start in (*cold, cached, *eager)]  # fmt: skip
    other = msgspec.structs.replace(
        recorded_startups.start(recorded_startups.COMPILED), recipe=HOSTILE * 4, first_request=None
    )
    return [*mine, other]


@pytest.fixture
def known(monkeypatch) -> list[RecordedStart]:
    found = some()
    monkeypatch.setattr(startup_history, "list_starts", lambda: found)
    return found


async def test_history_compares_starts_by_count_median_spread(known):
    """By key from the list of runs; nothing is wider than the screen, a name with markup is only text."""
    panel = app()
    async with panel.run_test(size=(60, 20)) as pilot:
        await pilot.press("r")
        await wait_for(pilot, lambda: isinstance(panel.screen, RunList))
        await pilot.press("h")
        await wait_for(pilot, lambda: "7 starts on this machine" in text(panel))
        await pilot.pause()
        shown = str(panel.screen.query_one("#found").render())
        rows = [row.split() for row in shown.splitlines()]
        # By hand: 162.4 s until the recorded one is up, 3 s for its first request; times 0.9, 1, 1.2 and 0.5.
        assert re.search(r"compile, cold +3 starts +ready in 2:45\s+\(2:28 – 3:18\)", shown)
        assert ["compile,", "cached", "1", "start", "ready", "in", "1:22"] in rows
        assert "(random weights" in shown
        assert re.search(r"→ compile, cold .* 1:22 later .* compile, cached", " ".join(shown.split()))
        assert ["compile,", "cold", "1", "start", "never", "answered"] in rows
        assert HOSTILE[:9] in shown
        bars = [row.strip() for row in shown.splitlines() if row.strip().startswith("█") and " " not in row.strip()]
        assert len(bars) == 4
        pane = panel.screen.query_one("#checks")
        assert [row for row in shown.splitlines() if len(row) > pane.size.width] == []
        assert pane.max_scroll_x == 0
        await pilot.press("escape")
        assert isinstance(panel.screen, RunList)
