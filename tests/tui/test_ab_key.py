"""`a` on the launch screen: what an A/B would do, begun with enter, driven by a process of its own to the verdict."""

import re
import threading

import pytest
from textual.pilot import Pilot

from dflash_tui.experiments import controller, store
from dflash_tui.experiments.design import Design
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.presentation import verdict_text
from dflash_tui.runs import registry, server_process
from dflash_tui.tui.app import DflashApp, format_farewell
from dflash_tui.tui.dialogs.basic import Confirm
from dflash_tui.tui.dialogs.experiments import ExperimentDialog, NewExperiment
from tests.support import fake_engine, waiting
from tests.support.fake_runs import free_port
from tests.support.values import present
from tests.tui.conftest import a_recipe
from tests.tui.panel import NO_GPU, app, panel_of, shown_as, shows, text, wait_for

pytestmark = pytest.mark.usefixtures("nothing_left")


def the_recipe(words: dict[int, list[str]]) -> Recipe:
    """Make an engine that is a process and nothing more, and return its recipe."""
    fake_engine.make(free_port(18_600), words)
    return recipe_loader.find_recipe(fake_engine.RECIPE)


async def planned(pilot: Pilot[str], vary: str = "") -> None:
    """Open the dialog, with something else varied if that is given."""
    await pilot.press("a")
    await wait_for(pilot, lambda: isinstance(pilot.app.screen, NewExperiment))
    if vary:
        names = {",": "comma", "=": "equals_sign"}
        await pilot.press("v", "end", "enter", "ctrl+u", *[names.get(key, key) for key in vary], "enter")
    await wait_for(pilot, lambda: isinstance(pilot.app.screen, NewExperiment) and pilot.app.screen.planned is not None)


async def patient(pilot: Pilot[str], words: str) -> None:
    """Wait for words on the screen: a driver launches and stops servers meanwhile."""
    panel = panel_of(pilot)
    await wait_for(pilot, lambda: words in text(panel))


@pytest.mark.parametrize("key", ["a", "f"])
async def test_varied_setting_is_chosen_or_typed(key):
    """Escape leaves the field, then the list, and nothing has changed."""
    panel = app({"toy": a_recipe()})
    async with panel.run_test(size=(60, 20)) as pilot:
        await pilot.press(key)
        await wait_for(pilot, lambda: isinstance(pilot.app.screen, ExperimentDialog))
        dialog = shown_as(panel, ExperimentDialog)
        await shows(pilot, "⏎ begin", "? help")
        await pilot.press("v")
        await shows(pilot, "what varies", "mode=eager,compile", "spec=on,off", "patch.", "another …")
        await pilot.press("end", "enter", "ctrl+u", *"nonsense")
        await shows(pilot, "nonsense")
        await pilot.press("escape", "escape")
        await wait_for(pilot, lambda: panel.screen is dialog)
        assert "nonsense" not in dialog.vary
        await pilot.press("escape")
        await wait_for(pilot, lambda: panel.screen is panel.launch_screen)


async def test_ab_key_and_enter_lead_to_verdict():
    """Both arms are launched by a driver of its own, and what its report says comes by itself; no server is left."""
    recipe = the_recipe({7: ["pace=0.01"], 4: ["pace=0.03"]})
    panel = DflashApp(probe=lambda: NO_GPU, load=lambda: {recipe.name: recipe})
    async with panel.run_test(size=(120, 36)) as pilot:
        await planned(pilot, "n=7,4")
        await pilot.press("h")
        await patient(pilot, "boots    2 boots: 7 4")
        await pilot.press("enter")
        await patient(pilot, "A/B RUNNING SYNTHETIC")
        folder = store.experiment_folder(store.list_experiments()[0].id)
        farewell = format_farewell([], [store.read_progress(folder)])
        assert "continues in the background\n  watch: dflash-tui ab attach" in farewell
        await patient(pilot, "arms, medians of boots")
        report = present(store.read_report(folder))
        await patient(pilot, verdict_text.format_headline(report, report.comparisons[0])[:60])
    assert not [run for run in registry.list_runs() if server_process.list_processes(run)]


async def test_repeated_keys_begin_one_experiment(monkeypatch):
    """While its driver is launched nothing is planned anew or begun again, and it is not lost."""
    recipe = the_recipe({})
    begun, go_on = list[Design](), threading.Event()

    def slow(design: Design) -> str:
        begun.append(design)
        go_on.wait(waiting.PATIENCE)
        store.create_experiment(design)
        return design.id

    monkeypatch.setattr(controller, "start_experiment", slow)
    panel = DflashApp(probe=lambda: NO_GPU, load=lambda: {recipe.name: recipe})
    async with panel.run_test(size=(120, 36)) as pilot:
        await planned(pilot, "n=7,4")
        await pilot.press("enter", "enter")
        await wait_for(pilot, lambda: bool(begun))
        await pilot.press("enter", "h", "plus", "v")
        assert isinstance(panel.screen, NewExperiment)
        assert (panel.screen.boots, panel.screen.planned) == (2, None)
        go_on.set()
        await patient(pilot, "A/B INTERRUPTED")
    assert [design.order for design in begun] == [(0, 1, 1, 0)]
    assert [design.id for design in store.list_experiments()] == [begun[0].id]


async def test_confirmed_stop_halts_experiment_until_resume():
    """`S` ends the driver and its server, `r` goes on where it stopped."""
    recipe = the_recipe({7: ["pace=0.05"], 4: ["pace=0.05"]})
    panel = DflashApp(probe=lambda: NO_GPU, load=lambda: {recipe.name: recipe})
    async with panel.run_test(size=(120, 36)) as pilot:
        await planned(pilot, "n=7,4")
        await pilot.press("enter")
        await wait_for(pilot, lambda: re.search(r"request \d+ of|, \d+ requests? answered", text(panel)) is not None)
        await pilot.press("S")
        await wait_for(pilot, lambda: isinstance(panel.screen, Confirm))
        await pilot.press("y")
        await patient(pilot, "A/B HALTED")
        assert not [run for run in registry.list_runs() if server_process.list_processes(run)]
        await patient(pilot, "⏎ Resume")
        await pilot.press("enter")
        await patient(pilot, "A/B RUNNING")


async def test_ab_dialog_previews_experiment():
    """Quick or honest, more boots, what is varied; a mistake is said, and escape leaves all as it is."""
    panel = app({"toy": a_recipe()})
    async with panel.run_test(size=(80, 24)) as pilot:
        await pilot.press("a")
        await shows(pilot, "2 boots of each arm", "honest")
        await pilot.press("h")
        await shows(pilot, "1 boot of each arm", "quick: ", "suggestive")
        await pilot.press("plus", "plus")
        await wait_for(pilot, lambda: "3 boots of each arm" in text(panel))
        await pilot.press("v", "end", "enter", "ctrl+u", *"port", "enter")
        await shows(pilot, "✗")
        await pilot.press("enter")  # begins nothing
        dialog = shown_as(panel, NewExperiment)
        await pilot.press("v", "down", "down", "enter")
        await wait_for(pilot, lambda: dialog.vary == "mode=eager,compile")
        await pilot.press("o")
        await shows(pilot, "options of the A/B", "rounds", "temperature")
        await pilot.press(*"round", "equals_sign", "3", "enter")
        await shows(pilot, "an A/B has no option round")
        await pilot.press("o", "ctrl+u", *"rounds", "equals_sign", "3", "enter")
        await wait_for(pilot, lambda: dialog.options == "rounds=3")
        await pilot.press("escape")
        assert panel.launch_screen.is_active
    assert not store.list_experiments()


@pytest.mark.parametrize("key", ["a", "f"])
async def test_dialog_says_recipe_would_not_start(key):
    panel = app({"gemma-4-31b": recipe_loader.find_recipe("gemma-4-31b")})
    async with panel.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "1 recipe that would not start here")
        await pilot.press("enter", key)
        await wait_for(pilot, lambda: re.search("✗ {4,}no GPU here; it is for gb10", text(panel)) is not None)
