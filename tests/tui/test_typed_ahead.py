"""Text, keys that edit it and enter that come at once, as over a slow ssh or on a busy machine: each has its turn."""

import os
import signal
import threading

import pytest
from textual.events import Focus, Paste
from textual.widgets import Input, OptionList

from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.tui.app import DflashApp
from dflash_tui.tui.dialogs.doctor import Doctor
from dflash_tui.tui.dialogs.drafters import DrafterDialog
from dflash_tui.tui.dialogs.new_experiment import NewExperiment, PlannedExperiment
from dflash_tui.tui.dialogs.options import OptionsDialog
from dflash_tui.tui.dialogs.peers import PeerDialog
from dflash_tui.tui.dialogs.runs import RunList
from tests.tui.conftest import a_recipe
from tests.tui.panel import app, press_at_once, shows, text, wait_for
from tests.tui.test_ab_key import the_recipe

RECIPE = recipe_loader.find_recipe("gemma-4-31b")


def typing(panel: DflashApp) -> bool:
    """Return whether a field takes what is typed."""
    return isinstance(panel.focused, Input) and panel.focused.is_mounted


@pytest.mark.parametrize("key", ["a", "f"])
async def test_what_varies_is_what_was_typed_before_enter(key):
    recipe = the_recipe({})
    panel = app({recipe.name: recipe})
    async with panel.run_test(size=(120, 36)) as pilot:
        await pilot.press(key)
        await wait_for(pilot, lambda: isinstance(panel.screen, NewExperiment))
        dialog = panel.screen
        assert isinstance(dialog, NewExperiment)
        await wait_for(pilot, lambda: dialog.planned is not None)
        press_at_once(panel, "v", *"old", "ctrl+u", *"n=4,8", "backspace", "7", "enter")
        await wait_for(pilot, lambda: dialog.vary == "n=4,7" and not dialog.typing)


async def test_enter_launches_what_the_filter_before_it_found():
    panel = app({name: a_recipe(name=name) for name in ("a-first", "b-other", "c-found")})
    async with panel.run_test(size=(120, 36)) as pilot:
        await wait_for(pilot, lambda: panel.launch_screen.query_one(OptionList).highlighted == 0)
        press_at_once(panel, "slash", *"foundx", "backspace", "enter", "enter")
        await wait_for(pilot, lambda: isinstance(panel.screen, Doctor))
        assert isinstance(panel.screen, Doctor)
        assert panel.screen.plan.recipe == "c-found"
        assert panel.launch_screen.query_one("#filter", Input).value == "found"


async def test_enter_launches_what_the_keys_before_it_chose():
    panel = app({name: a_recipe(name=name) for name in ("a", "b", "c")})
    async with panel.run_test(size=(120, 36)) as pilot:
        await wait_for(pilot, lambda: panel.launch_screen.query_one(OptionList).highlighted == 0)
        press_at_once(panel, "down", "down", "enter")
        await wait_for(pilot, lambda: isinstance(panel.screen, Doctor))
        assert isinstance(panel.screen, Doctor)
        assert panel.screen.plan.recipe == "c"


@pytest.mark.parametrize(("key", "dialog"), [("r", RunList), ("o", OptionsDialog), ("a", NewExperiment)])
async def test_enter_launches_nothing_behind_a_key_that_opens_a_dialog(key, dialog, monkeypatch):
    opened, push_screen = list[type[object]](), DflashApp.push_screen

    def record(panel, screen, *args, **more):
        opened.append(type(screen))
        return push_screen(panel, screen, *args, **more)

    monkeypatch.setattr(DflashApp, "push_screen", record)
    panel = app({RECIPE.name: RECIPE})
    async with panel.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        press_at_once(panel, key, "enter")
        await wait_for(pilot, lambda: dialog in opened)
        for _ in range(5):
            await pilot.pause()
        assert Doctor not in opened


async def test_a_plan_that_comes_late_closes_no_field(monkeypatch):
    """It is the one of what varied before; what was typed is planned anew."""
    may_plan, was_planned, plan_now = threading.Event(), threading.Event(), NewExperiment.plan_now

    def plan_late(dialog: NewExperiment) -> PlannedExperiment:
        may_plan.wait(60)
        planned = plan_now(dialog)
        was_planned.set()
        return planned

    monkeypatch.setattr(NewExperiment, "plan_now", plan_late)
    recipe = the_recipe({})
    panel = app({recipe.name: recipe})
    async with panel.run_test(size=(120, 36)) as pilot:
        await pilot.press("a")
        await wait_for(pilot, lambda: isinstance(panel.screen, NewExperiment))
        dialog = panel.screen
        assert isinstance(dialog, NewExperiment)
        await pilot.press("v")
        await wait_for(pilot, lambda: typing(panel))
        may_plan.set()
        await wait_for(pilot, was_planned.is_set)
        for _ in range(5):
            await pilot.pause()
        press_at_once(panel, "ctrl+u", *"n=4,7", "enter")
        await wait_for(pilot, lambda: dialog.planned is not None and not dialog.typing)
        assert dialog.vary == "n=4,7"


async def test_an_option_is_what_was_typed_before_enter_also_right_behind_the_enter_that_opens_its_field():
    panel = app({RECIPE.name: RECIPE})
    async with panel.run_test(size=(120, 36)) as pilot:
        await pilot.press("o")
        await wait_for(pilot, lambda: isinstance(panel.screen, OptionsDialog) and panel.screen.focused is not None)

        def settings() -> dict[str, str]:
            return panel.launch_screen.choice.request(RECIPE).settings

        press_at_once(panel, "enter", "ctrl+u", *"4096", "enter")
        await wait_for(pilot, lambda: settings() == {"max-model-len": "4096"})
        await wait_for(pilot, lambda: isinstance(panel.focused, OptionList))
        await pilot.press("enter")
        await wait_for(pilot, lambda: typing(panel))
        press_at_once(panel, *"x", "ctrl+u", Paste("2048"), "enter")
        await wait_for(pilot, lambda: settings() == {"max-model-len": "2048"})


async def test_a_model_is_looked_up_as_it_was_typed_before_enter(monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(DrafterDialog, "look_up", lambda _, model: asked.append(model))
    panel = app({"toy": a_recipe()})
    async with panel.run_test(size=(120, 36)) as pilot:
        await pilot.press("n")
        await wait_for(pilot, lambda: isinstance(panel.screen, DrafterDialog) and typing(panel))
        press_at_once(panel, "ctrl+u", *"owner/big", "enter")
        await wait_for(pilot, lambda: bool(asked))
        drafters = panel.screen.query_one(OptionList)
        drafters.display = True
        panel.screen.set_focus(drafters)
        await wait_for(pilot, lambda: drafters.has_focus and not typing(panel))
        press_at_once(panel, "slash", "ctrl+u", *"owner/next", "enter")
        await wait_for(pilot, lambda: len(asked) > 1)
    assert asked == ["owner/big", "owner/next"]


async def test_hosts_that_cannot_be_are_refused_as_they_were_typed_and_the_reason_stays():
    panel = app({"toy": a_recipe()})
    async with panel.run_test(size=(120, 36)) as pilot:
        panel.push_screen(PeerDialog((), []))
        await wait_for(pilot, lambda: isinstance(panel.screen, PeerDialog) and typing(panel))
        press_at_once(panel, *"-bad", "enter")
        await shows(pilot, "✗")
        await pilot.pause()
        assert "✗" in text(panel)
        await pilot.press("ctrl+u")
        await wait_for(pilot, lambda: "✗" not in text(panel))


async def test_recipes_are_filtered_by_what_was_typed_before_enter():
    panel = app({"toy": a_recipe(), RECIPE.name: RECIPE})
    async with panel.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "of 2")
        press_at_once(panel, "slash", *"tox", "backspace", "y", "enter")
        await wait_for(pilot, lambda: [field.value for field in panel.screen.query(Input)] == ["toy"])
        await wait_for(pilot, lambda: isinstance(panel.focused, OptionList))


async def test_no_letter_is_lost_where_the_news_of_the_focus_comes_behind_it():
    """Textual selects all of a field that gets the focus, so that the next letter would take its place."""
    panel = app({"toy": a_recipe(), RECIPE.name: RECIPE})
    async with panel.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "of 2")
        await pilot.press("slash", "t", "o")
        field = panel.screen.query_one("#filter", Input)
        field.post_message(Focus())
        await pilot.pause()
        await pilot.press("y")
        assert field.value == "toy"
        await pilot.press("enter", "slash", "x")
        assert field.value == "x"


def test_what_waits_in_the_terminal_of_a_stopped_panel_is_taken_in_its_order(terminal):
    panel = terminal()
    panel.until(b"demo-cpu")
    panel.until(b"Quit")
    panel.type("a")
    panel.until(b"of each arm")
    panel.type("v")
    panel.until(b"also variant")
    os.kill(panel.pid, signal.SIGSTOP)
    os.waitpid(panel.pid, os.WUNTRACED)
    panel.type("\x15spec=off,on\r")
    os.kill(panel.pid, signal.SIGCONT)
    panel.until(b"boots: ")
    panel.until(b"off on on off")
