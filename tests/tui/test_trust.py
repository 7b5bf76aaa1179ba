"""In the panel: a recipe that is not shipped is asked about before a launch, an A/B and its resuming."""

import errno
import os

import pytest
from msgspec.structs import replace

from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError, ServerFailed
from dflash_tui.experiments import controller, store
from dflash_tui.experiments.design import Design
from dflash_tui.launch import recipe_trust
from dflash_tui.launch import session as launch_session
from dflash_tui.launch.planner import LaunchJob
from dflash_tui.launch.recipe_trust import Untrusted
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.tui.app import DflashApp
from dflash_tui.tui.dialogs.basic import TrustDialog, ask_trust
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

    async def refuse(job: LaunchJob, *_) -> None:
        started.append(job.planned.plan.recipe)
        raise ServerFailed("enough")

    monkeypatch.setattr(launch_session, "check_and_launch", refuse)
    return started


def want(panel: DflashApp, recipe: Recipe) -> None:
    """Ask for a launch as the launch screen and the remedies do, when the checks are over."""
    planned = command_line.planned(recipe.name)
    panel.post_message(LaunchScreen.Launch(planned.resolved, planned.plan))


@pytest.mark.parametrize("size", [(120, 36), (80, 24)])
async def test_a_launch_is_asked_about_once(recipe, launches, size):
    panel = app({"fake": recipe})
    async with panel.run_test(size=size) as pilot:
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


async def test_a_long_list_leaves_the_keys_on_the_screen(recipe):
    hostile = replace(recipe, env={f"UNKNOWN_{number}": "[red]x[/]" for number in range(40)})
    panel = app({"fake": recipe})
    async with panel.run_test(size=(80, 24)) as pilot:
        ask_trust(panel, hostile, [command_line.planned("fake").plan], lambda: None)
        await wait_for(pilot, lambda: isinstance(panel.screen, TrustDialog))
        await shows(pilot, "Run fake?", "UNKNOWN_0=[red]x[/]", "cancel")


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
            await pilot.press("r")
            await wait_for(pilot, lambda: isinstance(panel.screen, TrustDialog) and PRELOAD in text(panel))
            assert resumed == []
            await pilot.press(key)
            await wait_for(pilot, lambda: not isinstance(panel.screen, TrustDialog))
        await wait_for(pilot, lambda: resumed == ["fake"])


async def test_an_answer_that_cannot_be_kept_is_said(recipe, launches, monkeypatch):
    def full(_untrusted):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recipe_trust, "trust_shown", full)
    panel = app({"fake": recipe})
    async with panel.run_test(size=(120, 36)) as pilot:
        want(panel, recipe)
        await wait_for(pilot, lambda: isinstance(panel.screen, TrustDialog))
        await pilot.press("y")
        await wait_for(pilot, lambda: os.strerror(errno.ENOSPC) in text(panel))
    assert launches == []


async def test_another_edition_of_a_patch_that_comes_during_the_question_is_not_trusted(recipe):
    """The yes is for what was shown; what took its place is asked about again."""
    shipped = (paths.bundled_folder("patches") / "cpu-expand-kernel.yaml").read_text()
    paths.user_patches_folder().mkdir(parents=True)
    mine = paths.user_patches_folder() / "mine.yaml"
    mine.write_text(shipped.replace("# dflash-tui: cpu-expand-kernel", "# shown"))
    plans = [replace(command_line.planned("fake").plan, patches=("mine",))]
    shown = recipe_trust.find_untrusted(recipe, plans)
    assert len(shown.names) == 2
    gone_on: list[int] = []
    panel = app({"fake": recipe})
    async with panel.run_test(size=(120, 36)) as pilot:
        ask_trust(panel, recipe, plans, lambda: gone_on.append(1))
        await wait_for(pilot, lambda: isinstance(panel.screen, TrustDialog))
        mine.write_text(shipped.replace("# dflash-tui: cpu-expand-kernel", "# evil"))
        await pilot.press("y")
        await wait_for(pilot, lambda: gone_on == [1])
    [patch] = recipe_trust.find_untrusted(recipe, plans).ingredients
    assert patch.text.startswith("mine changes ")
    mine.write_text(shipped.replace("# dflash-tui: cpu-expand-kernel", "# shown"))
    assert recipe_trust.find_untrusted(recipe, plans) == Untrusted()


async def test_kinds_stand_out_without_colours(recipe, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    panel = app({"fake": recipe})
    async with panel.run_test(size=(80, 24)) as pilot:
        ask_trust(panel, recipe, [command_line.planned("fake").plan], lambda: None)
        await wait_for(pilot, lambda: isinstance(panel.screen, TrustDialog) and PRELOAD in text(panel))
        bold = [
            segment.text
            for strip in panel.screen._compositor.render_strips()
            for segment in strip
            if segment.style and segment.style.bold
        ]
        assert any(part.strip() == "variable" for part in bold)
