"""In the panel: a recipe that is not shipped is asked about before a launch, an A/B and its resuming."""

import errno
import os

import pytest

from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError, ServerFailed
from dflash_tui.experiments import controller, store
from dflash_tui.experiments.design import Design
from dflash_tui.launch import recipe_trust
from dflash_tui.launch import session as launch_session
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.tui.app import DflashApp
from dflash_tui.tui.dialogs.basic import TrustDialog
from dflash_tui.tui.dialogs.experiments import NewExperiment
from dflash_tui.tui.screens.experiment import ExperimentScreen
from dflash_tui.tui.screens.launch import LaunchScreen
from tests.support import command_line, fake_engine
from tests.support.fake_runs import free_port
from tests.tui.panel import app, shows, text, wait_for

PRELOAD = "LD_PRELOAD=/nowhere/evil.so"


@pytest.fixture
def recipe() -> Recipe:
    """A recipe of the user's that loads a library, whose engine is installed."""
    fake_engine.make(free_port(19_700))
    file = paths.user_recipes_folder() / "fake.yaml"
    file.write_text(file.read_text().replace("env:\n", "env:\n  LD_PRELOAD: /nowhere/evil.so\n"))
    return recipe_loader.find_recipe("fake")


@pytest.fixture
def launches(monkeypatch) -> list[str]:
    """Take note of launches, which do nothing."""
    started: list[str] = []

    async def refuse(planned: PlannedLaunch, *_) -> None:
        started.append(planned.plan.recipe)
        raise ServerFailed("enough")

    monkeypatch.setattr(launch_session, "check_and_launch", refuse)
    return started


def want(panel: DflashApp, recipe: Recipe) -> None:
    """Ask for a launch as the launch screen and the remedies do, when the checks are over."""
    planned = command_line.planned(recipe.name)
    panel.post_message(LaunchScreen.Launch(planned))


async def test_a_launch_is_asked_about_once(recipe, launches):
    panel = app({"fake": recipe})
    async with panel.run_test(size=(80, 24)) as pilot:
        await wait_for(pilot, lambda: isinstance(panel.screen, LaunchScreen))
        await shows(pilot, "i details and the command")
        for key in ("n", "escape", "y"):
            want(panel, recipe)
            await wait_for(pilot, lambda: isinstance(panel.screen, TrustDialog))
            await wait_for(pilot, lambda: PRELOAD in text(panel) and "Run fake?" in text(panel))
            assert launches == []
            await pilot.press(key)
            await wait_for(pilot, lambda: not isinstance(panel.screen, TrustDialog))
        await wait_for(pilot, lambda: launches == ["fake"])
        want(panel, recipe)
        await wait_for(pilot, lambda: launches == ["fake", "fake"])


async def test_an_ab_is_asked_about(recipe, monkeypatch):
    begun: list[str] = []

    async def refuse(design: Design, *_) -> None:
        begun.append(design.recipe)
        raise DflashError("enough")

    monkeypatch.setattr(controller, "_prepare_arms", refuse)
    panel = app({"fake": recipe})
    async with panel.run_test(size=(120, 36)) as pilot:
        for key, expected in (("n", []), ("y", ["fake"])):
            await pilot.press("a")
            await wait_for(pilot, lambda: isinstance(panel.screen, NewExperiment) and panel.screen.planned is not None)
            await pilot.press("enter")
            await wait_for(pilot, lambda: isinstance(panel.screen, TrustDialog) and PRELOAD in text(panel))
            await pilot.press(key)
            await wait_for(pilot, lambda: isinstance(panel.screen, NewExperiment) and not panel.screen.beginning)
            assert begun == expected
            await pilot.press("escape")


async def test_resuming_is_asked_about(recipe, monkeypatch):
    """The recipe may have become another since the experiment began."""
    resumed: list[str] = []
    monkeypatch.setattr(controller, "resume_experiment", lambda design: resumed.append(design.recipe))
    design = command_line.experiment("fake")[0]
    store.create_experiment(design)
    panel = app({"fake": recipe})
    async with panel.run_test(size=(120, 36)) as pilot:
        panel.show_experiment(design.id)
        await wait_for(pilot, lambda: isinstance(panel.screen, ExperimentScreen) and panel.screen.view is not None)
        for key in ("n", "y"):
            await pilot.press("enter")
            await wait_for(pilot, lambda: isinstance(panel.screen, TrustDialog) and PRELOAD in text(panel))
            assert resumed == []
            await pilot.press(key)
            await wait_for(pilot, lambda: not isinstance(panel.screen, TrustDialog))
        await wait_for(pilot, lambda: resumed == ["fake"])


async def test_unsaved_trust_answer_is_reported(recipe, launches, monkeypatch):
    def full(_untrusted):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recipe_trust, "trust_contents", full)
    panel = app({"fake": recipe})
    async with panel.run_test(size=(120, 36)) as pilot:
        want(panel, recipe)
        await wait_for(pilot, lambda: isinstance(panel.screen, TrustDialog))
        await pilot.press("y")
        await wait_for(pilot, lambda: os.strerror(errno.ENOSPC) in text(panel))
    assert launches == []
