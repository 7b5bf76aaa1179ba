"""A drafter for a model that has no recipe: what the catalogue and the hub know is listed, and one becomes a recipe."""

import pytest
from textual.widgets import Input, OptionList

from dflash_tui.engines import model_config
from dflash_tui.engines.model_config import TreeDrafter
from dflash_tui.engines.model_hub import Access, HubAccessError
from dflash_tui.launch import recipe_files
from dflash_tui.planning.methods import Method
from dflash_tui.tui.dialogs.drafters import DrafterDialog
from tests.tui.conftest import a_recipe
from tests.tui.panel import app, shows, text, wait_for

HOSTILE = "z/[red]evil[/red]"
TREE = [TreeDrafter("z/big-DFlash", Method.DFLASH, "0.28.0"), TreeDrafter(HOSTILE, gated=True)]


@pytest.fixture
def asked(monkeypatch) -> list[tuple[str, ...]]:
    """Let the hub answer; return what was asked for and what became a recipe."""
    calls: list[tuple[str, ...]] = []

    async def find_tree_drafters(model):
        calls.append(("look", model))
        if model == "owner/silent":
            raise HubAccessError(Access.UNREACHABLE, "no answer within 10 s")
        return [] if model == "owner/alone" else TREE

    async def add_recipe_of_models(target, drafter, method, schema):
        calls.append((target, drafter, str(method)))
        return "toy"

    monkeypatch.setattr(model_config, "find_tree_drafters", find_tree_drafters)
    monkeypatch.setattr(recipe_files, "add_recipe_of_models", add_recipe_of_models)
    return calls


async def look(pilot, model: str) -> None:
    """Open the dialog and look for drafters of a model."""
    await wait_for(pilot, lambda: "the CPU demo" in text(pilot.app))
    await pilot.press("n")
    await wait_for(pilot, lambda: isinstance(pilot.app.screen, DrafterDialog) and bool(pilot.app.screen.choices))
    await pilot.press("slash")
    pilot.app.screen.query_one(Input).value = model
    await pilot.pause()
    await pilot.press("enter")


async def test_the_chosen_drafter_becomes_a_recipe(asked):
    panel = app({"toy": a_recipe()})
    async with panel.run_test(size=(60, 20)) as pilot:
        await look(pilot, "owner/big")
        await shows(pilot, "z/big-DFlash", "dflash, vLLM ≥ 0.28.0", HOSTILE, "gated")
        await pilot.press("enter")
        await wait_for(pilot, lambda: panel.screen is panel.launch_screen and len(asked) > 1)
    assert asked == [("look", "owner/big"), ("owner/big", "z/big-DFlash", "None")]


async def test_catalogue_drafters_come_first_without_hub(asked, monkeypatch):
    async def silent(model):
        raise HubAccessError(Access.UNREACHABLE, "no answer within 10 s")

    monkeypatch.setattr(model_config, "find_tree_drafters", silent)
    panel = app({"toy": a_recipe()})
    async with panel.run_test(size=(120, 36)) as pilot:
        await look(pilot, "google/gemma-4-31B-it")
        await shows(pilot, "RedHatAI/gemma-4-31B-it-speculator.dflash", "was not read")
        assert panel.screen.query_one(OptionList).option_count > 2
        await pilot.press("slash")
        await wait_for(pilot, lambda: panel.screen.query_one(Input).has_focus)
        await pilot.press("escape", "escape")
        await wait_for(pilot, lambda: panel.screen is panel.launch_screen)
    assert asked == []


@pytest.mark.parametrize(("model", "words"), [("owner/alone", "no drafter is known"), ("owner/silent", "no answer")])
async def test_missing_drafters_and_silent_hub_are_reported(asked, model, words):
    panel = app({"toy": a_recipe()})
    async with panel.run_test(size=(60, 20)) as pilot:
        await look(pilot, model)
        await shows(pilot, words)
        assert panel.screen.query_one(Input).has_focus
    assert asked == [("look", model)]
