"""What the launch screen makes of a recipe on this or that GPU, without a screen."""

import pytest

from dflash_tui.machine.gpus import Gpu, GpuProbe
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Mode, SetUp
from dflash_tui.tui.launch_selection import LaunchSelection, Suitability
from dflash_tui.tui.render.plan import render_plan
from tests.support.preflight_situations import a_gpu
from tests.tui.conftest import a_recipe

ROWS = ["fits", "fetch", "speed", "ready", "context", "port"]


def on(*cards: Gpu) -> LaunchSelection:
    choice = LaunchSelection()
    choice.probe = GpuProbe(tuple(cards), "580.95")
    return choice


@pytest.mark.parametrize(
    ("hardware", "name", "suits"),
    [
        (Hardware.H200, "qwen3.5-27b", Suitability.YES),
        (Hardware.GB10, "laguna-xs-2.1", Suitability.MAYBE),
        (Hardware.RTX_5090_LAPTOP, "qwen3.5-27b", Suitability.NO),
    ],
)
def test_a_recipe_suits_or_not(hardware, name, suits):
    found = on(a_gpu(hardware)).suited(recipe_loader.find_recipe(name))
    assert found.suits is suits, found.why
    assert found.why


def test_only_cpu_recipe_suits_without_gpu():
    choice = LaunchSelection()
    recipe = recipe_loader.find_recipe("qwen3.5-27b")
    assert choice.suited(recipe).why.startswith("looking for GPUs")
    choice.probe = GpuProbe(why_none="no driver")
    assert choice.suited(recipe).suits is Suitability.NO
    assert choice.suited(a_recipe()).suits is Suitability.YES
    assert choice.plan(recipe).plan.hardware is next(iter(recipe.hardware))


@pytest.mark.parametrize(("width", "height"), [(76, 11), (56, 27), (97, 50)], ids=["80x24", "120x36", "200x60"])
@pytest.mark.parametrize(("hardware", "name"), [(Hardware.GB10, "gemma-4-31b"), (Hardware.H200, "qwen3.5-27b")])
def test_the_short_plan_fits_its_pane(hardware, name, width, height):
    recipe, choice = recipe_loader.find_recipe(name), on(a_gpu(hardware))
    shown = render_plan(choice.plan(recipe), choice.suited(recipe), width=width, height=height).plain.split("\n")
    assert len(shown) <= height
    labels = [line.split()[0] for line in shown if line[:1].isalpha()]
    assert [label for label in labels if label in ROWS] == ROWS
    assert shown[-1].startswith("i ")


def test_recipe_needing_newer_driver_is_unsuitable():
    recipe, choice = recipe_loader.find_recipe("qwen3.5-27b"), on(a_gpu(Hardware.H200))
    assert choice.suited(recipe).suits is Suitability.YES
    choice.probe = GpuProbe((a_gpu(Hardware.H200),), "570.86")
    assert (choice.suited(recipe).suits, "needs driver 580" in choice.suited(recipe).why) == (Suitability.NO, True)


def test_the_fast_set_up_is_toggled():
    choice, recipe = on(a_gpu(Hardware.H200)), recipe_loader.find_recipe("gemma-4-26b-a4b")
    assert choice.plan(recipe).plan.set_up is SetUp.FAST
    assert choice.can_change(recipe, "set_up")
    choice.change(recipe, "set_up")
    assert (choice.plan(recipe).plan.set_up, choice.plan(recipe).plan.patches) == (SetUp.PUBLISHED, ())
    choice.change(recipe, "set_up")
    assert choice.plan(recipe).plan.set_up is SetUp.FAST
    assert not choice.can_change(recipe_loader.find_recipe("qwen3.5-27b"), "set_up")


def test_gpu_with_most_free_memory_comes_first():
    choice = on(a_gpu(Hardware.H200, used=100 << 30), a_gpu(Hardware.H200, 1), Gpu(2, trouble="lost"))
    recipe = recipe_loader.find_recipe("qwen3.5-27b")
    assert choice.plan(recipe).plan.env["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    choice.change(None, "gpu")
    assert choice.plan(recipe).plan.env["CUDA_VISIBLE_DEVICES"] == "GPU-0"
    choice.change(recipe, "profile")
    assert choice.plan(recipe).plan.env["CUDA_VISIBLE_DEVICES"] == "0"  # vLLM before 0.24 takes no UUIDs
    assert on(a_gpu(Hardware.H200)).plan(recipe).plan.env["CUDA_VISIBLE_DEVICES"] == "GPU-0"
    assert "CUDA_VISIBLE_DEVICES" not in choice.plan(a_recipe()).plan.env


def test_manual_choices_survive_gpu_change():
    choice, recipe = on(a_gpu(Hardware.H100)), recipe_loader.find_recipe("qwen3.5-27b")
    choice.change(recipe, "mode")
    choice.change(recipe, "tokens", -64)
    choice.probe = GpuProbe((a_gpu(Hardware.H200),))
    plan = choice.plan(recipe).plan
    assert (plan.mode, plan.num_speculative_tokens, plan.drafter) == (Mode.EAGER, 0, "")


def test_method_key_cycles_methods_with_their_drafts():
    choice, recipe = on(a_gpu(Hardware.H100)), recipe_loader.find_recipe("gemma-4-26b-a4b")
    choice.change(recipe, "tokens")
    drafts = []
    for _ in range(6):
        choice.change(recipe, "method")
        plan = choice.plan(recipe).plan
        drafts.append((plan.method.value, plan.num_speculative_tokens))
    assert drafts == [("mtp", 4), ("eagle3", 3), ("ngram", 5), ("suffix", 24), ("none", 0), ("dflash", 15)]
