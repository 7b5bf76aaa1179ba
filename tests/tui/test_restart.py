"""A server that the panel launched and that failed: what is launched again, what is not, and what `S` does."""

from collections.abc import Callable

import psutil
import pytest
from textual.pilot import Pilot

from dflash_tui.launch import session
from dflash_tui.planning import startup_optimizations
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.run_state import startup
from dflash_tui.runs import registry
from dflash_tui.runs.run import Run
from dflash_tui.tui.app import DflashApp
from dflash_tui.tui.dialogs.basic import Confirm
from dflash_tui.tui.screens.launch import LaunchScreen
from tests.support import command_line, fake_engine
from tests.support.fake_runs import free_port
from tests.tui.panel import NO_GPU, shows, wait_for

pytestmark = pytest.mark.usefixtures("nothing_left")


async def launched(pilot: Pilot[str], *settings: str) -> DflashApp:
    """Launch the stand-in with these settings of `restart`, as the launch screen does after the checks."""
    panel = pilot.app
    assert isinstance(panel, DflashApp)
    planned = command_line.planned(fake_engine.RECIPE, *(word for name in settings for word in ("--set", name)))
    panel.post_message(LaunchScreen.Launch(planned))
    return panel


async def warm(pilot: Pilot[str], number: int) -> Run:
    """Return the run of the launch of this number, once the panel shows that it has answered."""
    panel = pilot.app
    assert isinstance(panel, DflashApp)

    def is_warm() -> bool:
        runs = registry.list_runs()
        shown = panel.run_screen.view.run
        return len(runs) > number and shown == runs[number] and panel.run_screen.view.state.warm_at is not None

    await wait_for(pilot, is_warm)
    return registry.list_runs()[number]


@pytest.fixture
def panel_of() -> Callable[..., DflashApp]:
    """Return a function that makes an engine with these launches, and a panel with its recipe."""

    def start(launches: dict[int, list[str]] | None = None) -> DflashApp:
        fake_engine.make(free_port(18_900), launches=launches)
        recipe = recipe_loader.find_recipe(fake_engine.RECIPE)
        return DflashApp(probe=lambda: NO_GPU, load=lambda: {recipe.name: recipe})

    return start


async def test_a_killed_server_is_launched_again(panel_of):
    """As a run of its own that names the one before, which the panel shows; then it gives up and says why."""
    async with panel_of().run_test(size=(120, 36)) as pilot:
        await launched(pilot, "restart.times=1", "restart.wait_s=1")
        psutil.Process((await warm(pilot, 0)).pid).kill()
        await shows(pilot, "launching again in 1 s")
        second = await warm(pilot, 1)
        psutil.Process(second.pid).kill()
        await shows(pilot, "not launched again")
    first, second = registry.list_runs()
    assert second.restarted_from == first.id


async def test_hanging_start_is_relaunched_with_spawn(panel_of, monkeypatch):
    """By the panel that launched it, without a key."""
    monkeypatch.setattr(startup_optimizations, "_explain_spawn", lambda *_: "")  # as on a GPU
    monkeypatch.setattr(startup, "QUIET_SECONDS", 0.2)
    monkeypatch.setattr(startup, "STALL_SECONDS", 0.5)
    monkeypatch.setattr(session, "HUNG_SECONDS", 1.0)
    async with panel_of({0: ["hangs"]}).run_test(size=(120, 36)) as pilot:
        await launched(pilot)
        second = await warm(pilot, 1)
    first = registry.list_runs()[0]
    assert second.restarted_from == first.id
    assert second.plan.relaunch_request.settings == {"start.fork": "false"}


async def test_stop_while_it_waits_ends_the_restarts(panel_of):
    async with panel_of().run_test(size=(120, 36)) as pilot:
        panel = await launched(pilot, "restart.times=2", "restart.wait_s=600")
        psutil.Process((await warm(pilot, 0)).pid).kill()
        await shows(pilot, "launching again in 600 s")
        await pilot.press("S")
        await wait_for(pilot, lambda: isinstance(panel.screen, Confirm))
        await pilot.press("y")
        await shows(pilot, "not launched again")
    assert len(registry.list_runs()) == 1
