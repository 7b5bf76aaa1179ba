"""`f` on the launch screen: what a tune would try, begun with enter, driven by a process of its own to its end."""

import re

import pytest
from textual.pilot import Pilot

from dflash_tui.common import paths
from dflash_tui.experiments import store, tune_schedule
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.runs import registry, server_process
from dflash_tui.tui.app import DflashApp, format_farewell
from dflash_tui.tui.dialogs.experiments import NewTune
from tests.support import fake_engine
from tests.support.fake_runs import free_port
from tests.support.values import present
from tests.tui.panel import NO_GPU, shown_as, shows, text, wait_for

pytestmark = pytest.mark.usefixtures("nothing_left")


def the_recipe(words: dict[int, list[str]]) -> Recipe:
    fake_engine.make(free_port(18_700), words)
    return recipe_loader.find_recipe(fake_engine.RECIPE)


def a_panel(words: dict[int, list[str]] | None = None) -> DflashApp:
    recipe = the_recipe(words or {})
    return DflashApp(probe=lambda: NO_GPU, load=lambda: {recipe.name: recipe})


async def planned(pilot: Pilot[str], axes: str = "") -> NewTune:
    """Open the dialog, with these axes if they are given."""
    await pilot.press("f")
    await wait_for(pilot, lambda: isinstance(pilot.app.screen, NewTune))
    if axes:
        names = {",": "comma", "=": "equals_sign", " ": "space"}
        await pilot.press("v", "end", "enter", "ctrl+u", *[names.get(key, key) for key in axes], "enter")
    screen = shown_as(pilot.app, NewTune)
    await wait_for(pilot, lambda: screen.planned is not None)
    return screen


async def test_tune_asks_budget_and_axes_before_beginning():
    panel = a_panel()
    async with panel.run_test(size=(120, 36)) as pilot:
        screen = await planned(pilot)
        assert screen.planned
        assert screen.planned.design.tuning
        assert (screen.planned.design.tuning.budget, "mode=compile,eager" in text(panel)) == (1800.0, True)
        await pilot.press("plus")
        await wait_for(pilot, lambda: "45:00 of boots" in text(panel) and screen.planned is not None)
        await pilot.press(*["minus"] * 9)
        await wait_for(pilot, lambda: "10:00 of boots" in text(panel) and screen.planned is not None)
        await pilot.press("v", "end", "enter", "n", "equals_sign", "3", "enter")
        await wait_for(pilot, lambda: screen.planned is not None and screen.planned.design.tuning is not None)
        assert screen.planned.design.tuning.axes == ("n=3",)
        await pilot.press("v", "end", "enter", "ctrl+u", "p", "o", "r", "t", "equals_sign", "1", "enter")
        await shows(pilot, "✗ port")
        assert "--vary" not in text(panel)
        await pilot.press("enter")
        assert (isinstance(panel.screen, NewTune), store.list_experiments()) == (True, [])
        await pilot.press("escape")


@pytest.mark.long
async def test_tune_key_finds_best_and_k_keeps():
    """The field narrows on the screen of the tune, which says at its end what was found; no server is left."""
    panel = a_panel({7: ["pace=0.05"], 4: ["pace=0.02"]})
    async with panel.run_test(size=(120, 36)) as pilot:
        await planned(pilot, "n=7,4")
        await pilot.press("enter")
        await wait_for(pilot, lambda: "TUNE RUNNING" in text(panel))
        folder = store.experiment_folder(store.list_experiments()[0].id)
        farewell = format_farewell([], [store.read_progress(folder)])
        assert "dflash-tui tune attach" in farewell
        await wait_for(pilot, lambda: "▲ n=4" in text(panel))
        await pilot.press("k")
        await wait_for(pilot, (paths.user_recipes_folder() / "fake-tuned.yaml").exists)
        await wait_for(pilot, lambda: "TUNE FINISHED" in text(panel))
        # Beside others' work the verdict may be refused, in a longer sentence that is wrapped.
        await wait_for(pilot, lambda: bool(re.search(r"published\W+(?:setting|one)|ahead\W+so\W+far", text(panel))))
        assert panel.current_mode == "ab"
        await pilot.press("v")
        assert panel.current_mode == "ab"
        await pilot.press("1", "3")
        await wait_for(pilot, lambda: "TUNE FINISHED" in text(panel))
    assert recipe_loader.find_recipe("fake-tuned").num_speculative_tokens == 4
    report = present(store.read_report(folder))
    assert report.tune
    # What is shown to be faster is kept by itself, too; beside others' work it may not be shown.
    assert ("fake-tuned-2" in recipe_loader.list_recipe_files()) is tune_schedule.is_worth_keeping(report.tune)
    assert not [run for run in registry.list_runs() if server_process.list_processes(run)]
