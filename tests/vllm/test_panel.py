"""The panel on real vLLM, driven by keys: launch the demo, send traffic, leave, come back, stop."""

import asyncio
import time
from collections.abc import Callable

import psutil
import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from dflash_tui.events import Health, Phase
from dflash_tui.launch import recipe_trust
from dflash_tui.monitoring import observer
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.runs import registry, server_process
from dflash_tui.tui.app import DflashApp
from dflash_tui.tui.dialogs.basic import Confirm
from dflash_tui.tui.widgets.chart import Chart
from dflash_tui.tui.widgets.log_pane import LogPane
from tests.tui.panel import text

pytestmark = [pytest.mark.vllm, pytest.mark.long]


async def until(pilot: Pilot[str], true: Callable[[], bool], limit: float = 900.0) -> None:
    """Let the panel work until something holds; the limit only ends a test that would hang."""
    deadline = time.monotonic() + limit
    while not true():
        assert time.monotonic() < deadline, text(panel_of(pilot))
        await pilot.pause(0.2)
        await asyncio.sleep(0.2)


def panel_of(pilot: Pilot[str]) -> DflashApp:
    assert isinstance(pilot.app, DflashApp)
    return pilot.app


async def test_launch_traffic_leave_attach_stop(with_engine):
    """Enter launches, `b` makes the figures move, `q` leaves the server, attaching shows the same, `S` ends it."""
    recipe = replace(recipe_loader.find_recipe("toy"), port=8771, bench_scale=0.2)
    recipe_trust.trust_contents(recipe)
    panel = DflashApp(load=lambda: {"toy": recipe})
    async with panel.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: "toy" in text(panel))
        await pilot.press("enter")
        await until(pilot, lambda: panel.run_screen.view.state.health is Health.WARM)
        state = panel.run_screen.view.state
        await until(pilot, lambda: Phase.UP in state.phases)
        assert list(state.phases) == [
            Phase.IMPORT, Phase.RESOLVE, Phase.ENGINE, Phase.WEIGHTS, Phase.DRAFTER,
            Phase.KV_CACHE, Phase.API, Phase.UP,
        ]  # fmt: skip
        await pilot.press("b")
        await until(pilot, lambda: len(state.requests) == 7)  # two warm-ups and five prompts
        assert [r.error for r in state.requests] == [""] * 7
        await until(pilot, lambda: any(r.counters.accepted for r in state.readings))
        await until(
            pilot, lambda: "WARM" in text(panel) and "SYNTHETIC" in text(panel) and "hand-made toy" in text(panel)
        )
        charts = [panel.run_screen.query_one(f"#{name}", Chart) for name in ("tok_s", "acceptance", "memory")]
        await until(pilot, lambda: all(any(v > 0 for line in chart.lines for v in line.values) for chart in charts))
        assert panel.run_screen.query_one(LogPane).rows.matching > 20
        await pilot.press("q")
    assert "dflash-tui attach" in (panel.return_value or "")

    [run] = registry.list_runs()
    assert server_process.is_alive(run)
    members = server_process.list_processes(run)
    again = DflashApp(run=run)
    async with again.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: again.run_screen.view.state.health is Health.WARM)
        await until(pilot, lambda: len(again.run_screen.view.state.requests) == 7)
        await until(pilot, lambda: again.run_screen.view.state.phases == state.phases)
        await pilot.press("S")
        await until(pilot, lambda: isinstance(again.screen, Confirm))
        await pilot.press("y")
        await until(pilot, lambda: again.current_mode == "launch")
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in members)
    assert observer.replay_run(run).status == "stopped"
