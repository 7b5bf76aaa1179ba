"""The command line and the launch screen, asked for the same, plan the same: server, GPUs and all."""

from collections.abc import Iterator

import pytest

from dflash_tui.common import paths
from dflash_tui.common.errors import RecipeError
from dflash_tui.launch import planner
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.machine import nvml
from dflash_tui.machine.gpus import Gpu, GpuProbe
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.tui.launch_selection import LaunchSelection
from tests.support import command_line
from tests.support.preflight_situations import a_gpu

PAIR = ("gemma-4-31b", "gb10-pair")  # a server on two hosts, with one GPU on each
RECIPES = [(path.stem, "") for path in sorted(paths.bundled_folder("recipes").glob("[!_]*.yaml"))]


def machines(name: str) -> Iterator[list[Gpu]]:
    """Yield machines for a recipe: none or one GPU of a class that it knows, and several of the last such class."""
    recipe = recipe_loader.load_recipe(paths.bundled_folder("recipes") / f"{name}.yaml")
    classes = [*recipe.hardware] or [Hardware.H200]
    for hardware, count in ((classes[0], 0), *((each, 1) for each in classes), (classes[-1], 2), (classes[-1], 4)):
        yield [a_gpu(hardware, index) for index in range(count)]


@pytest.fixture
def machine(monkeypatch):
    """Return a function that puts GPUs into the machine."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def has(*cards: Gpu) -> None:
        monkeypatch.setattr(nvml, "probe_gpus", lambda: GpuProbe(cards, "580.95"))

    return has


def by_command(name: str, variant: str) -> PlannedLaunch:
    return command_line.planned(name, *(["--variant", variant] if variant else []))


def select(name: str, variant: str) -> tuple[LaunchSelection, Recipe]:
    recipe, choice = recipe_loader.find_recipe(name), LaunchSelection()
    choice.probe = nvml.probe_visible_gpus()
    while choice.request(recipe).variant != (variant or None):
        choice.change(recipe, "variant")
    return choice, recipe


def by_panel(name: str, variant: str) -> PlannedLaunch:
    choice, recipe = select(name, variant)
    return choice.plan(recipe)


@pytest.mark.parametrize(("name", "variant"), [*RECIPES, PAIR])
def test_command_line_and_panel_make_same_plan(name, variant, machine):
    """The request, the GPUs and the memory on them, too; and a request that is kept leads to its plan again."""
    for cards in machines(name):
        machine(*cards)
        planned = by_panel(name, variant)
        assert planned == by_command(name, variant), cards
        assert planned.plan.request is not None
        assert planner.plan_launch_here(planned.plan.request) == planned, cards


@pytest.mark.parametrize(("name", "variant"), RECIPES)
def test_launch_outline_agrees_with_its_plan(name, variant, machine):
    for cards in machines(name):
        machine(*cards)
        choice, recipe = select(name, variant)
        for chosen in (None, *(card.index for card in cards)):
            choice.gpu = chosen
            outline, planned = choice.outline(recipe), choice.plan(recipe)
            assert outline.resolved == planned.resolved, cards
            assert outline.memory == (planned.memory if planned.gpus else None), cards
            assert outline.tokens == planned.plan.num_speculative_tokens, cards


def test_recipe_with_broken_patch_gets_no_outline(machine):
    machine(a_gpu(Hardware.GB10))
    choice, recipe = select("gemma-4-31b", "")
    own = paths.user_patches_folder() / f"{next(iter(choice.plan(recipe).resolved.patches))}.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("title: [")
    for judge in (select("gemma-4-31b", "")[0].outline, select("gemma-4-31b", "")[0].plan):
        with pytest.raises(RecipeError, match=own.name):
            judge(recipe)
