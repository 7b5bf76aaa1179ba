"""The catalogue on the launch screen: its rows below the recipes, what is known of a pair, and enter on one."""

import json
from typing import Any

from dflash_tui.machine.gpus import Gpu, GpuProbe
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.derivation import catalogue
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Recipe, Status
from dflash_tui.tui.app import DflashApp
from dflash_tui.tui.dialogs.basic import ErrorDialog
from dflash_tui.tui.launch_selection import Suitability
from dflash_tui.tui.widgets.recipe_list import RecipeList, load_entries
from tests.support.preflight_situations import a_gpu
from tests.tui.panel import NO_GPU, shows, text, wait_for

CARD = Gpu(
    0, "NVIDIA GB10", capability="12.1", hardware=Hardware.GB10, memory_total=119 << 30, memory_used=0, unified=True
)
PAIRS = catalogue.load_catalogue().pairs


def panel_with_catalogue(probe: GpuProbe = NO_GPU) -> DflashApp:
    return DflashApp(now=lambda: 0.0, probe=lambda: probe, load=load_entries)


def model(**config: Any) -> dict[str, bytes]:
    return {"config.json": json.dumps(config).encode(), "model.safetensors": bytes(2_000_000)}


async def test_pairs_stand_below_the_recipes_and_say_what_is_known(hub):
    panel = panel_with_catalogue(GpuProbe((CARD,)))
    async with panel.run_test(size=(120, 36)) as pilot:
        rows = panel.screen.query_one(RecipeList)
        await wait_for(pilot, lambda: rows.place.budget is not None)
        recipes = recipe_loader.list_recipe_files()
        assert {*rows.visible_names[: len(recipes)]} == {*recipes}
        assert len(rows.visible_names) == len(recipes) + len(PAIRS)
        rows.choose("qwen3.8-27b/dflash2")
        await shows(
            pilot,
            "z-lab/Qwen3.8-27B-DFlash2",
            "24.27 decode tok/s, 1x gb10, n=8, vLLM 0.28.0",
            "59.8 GiB",
            "⏎ Make a recipe",
        )
        keys = text(panel).splitlines()[-1]
        assert ("⏎ Make a recipe" in keys, "Mode" in keys, "Doctor" in keys) == (True, False, False)
        await pilot.press("e", "m", "plus", "y", "a", "d")  # keys of a recipe do nothing here
        assert panel.screen is panel.launch_screen
        await pilot.press("slash", "m", "t", "p", "space", "f", "i", "t", "s")
        fitting = {"qwen3.8-27b/mtp", "gemma-4-12b/mtp"}
        await wait_for(
            pilot, lambda: fitting < set(rows.visible_names) and all("/mtp" in name for name in rows.visible_names)
        )
        assert "glm-5.3-flash/mtp" not in rows.visible_names


async def test_what_suits_the_gpu_best_stands_first_and_is_highlighted(hub):
    """Verified before reported, then what may run, then the demo of a CPU, and what does not fit last."""
    panel = panel_with_catalogue(GpuProbe((CARD,)))
    async with panel.run_test(size=(120, 36)) as pilot:
        rows = panel.screen.query_one(RecipeList)
        await wait_for(pilot, lambda: panel.launch_screen.choice.probe is not None and bool(rows.border_subtitle))
        listed = [entry for entry in rows.entries.values() if isinstance(entry, Recipe)]
        assert [*rows.entries][: len(listed)] == [recipe.name for recipe in listed]
        marks = [rows.choice.suited(recipe).suits for recipe in listed if not recipe.for_cpu]
        assert marks == sorted(marks, key=list(Suitability).index)
        assert len({*marks}) > 1
        statuses = [rows.choice.plan(recipe).resolved.standing.status for recipe in listed[: marks.count(marks[0])]]
        assert statuses == sorted(statuses, key=list(Status).index)
        assert [recipe.name for recipe in listed].index("demo-cpu") == len(marks) - marks.count(Suitability.NO)
        assert rows.chosen is listed[0]
        await pilot.press("down")
        panel.launch_screen.probe_and_list()
        await pilot.pause()
        assert rows.chosen is listed[1]


async def test_of_those_that_nobody_reported_one_with_a_published_gain_stands_first(hub):
    panel = panel_with_catalogue(GpuProbe((a_gpu(Hardware.GB10),)))
    async with panel.run_test(size=(120, 36)) as pilot:
        rows = panel.screen.query_one(RecipeList)
        await wait_for(pilot, lambda: isinstance(rows.chosen, Recipe) and rows.chosen.name == "gemma-4-31b")


async def test_recipes_that_fit_are_found_by_that_word(hub):
    """Also where no GPU is, by which no pair is judged."""
    panel = panel_with_catalogue()
    async with panel.run_test(size=(120, 36)) as pilot:
        rows = panel.screen.query_one(RecipeList)
        await shows(pilot, "the CPU demo")
        await pilot.press("slash", *"fits")
        await wait_for(pilot, lambda: rows.visible_names == ["demo-cpu"])


async def test_enter_on_a_pair_makes_a_recipe_of_it(hub):
    """By what its models say, which is an error in words where they cannot be read."""
    panel = panel_with_catalogue()
    async with panel.run_test(size=(120, 36)) as pilot:
        panel.launch_screen.choose("qwen3.8-27b/dflash2")
        await shows(pilot, "makes it a recipe")
        await pilot.press("enter")
        await wait_for(pilot, lambda: isinstance(panel.screen, ErrorDialog))
        await shows(pilot, "Qwen/Qwen3.8-27B")
        await pilot.press("escape")
        shape = {"hidden_size": 5120, "num_hidden_layers": 64, "vocab_size": 248320}
        hub.repos = {
            "Qwen/Qwen3.8-27B": model(architectures=["Qwen3_5ForConditionalGeneration"], **shape),
            "z-lab/Qwen3.8-27B-DFlash2": model(
                architectures=["DFlash2DraftModel"], block_size=8, mask_token_id=4, hidden_size=5120
            ),
        }
        await wait_for(pilot, lambda: panel.screen is panel.launch_screen)
        await pilot.press("enter")
        name = "qwen3.8-27b-qwen3.8-27b-dflash2"
        await wait_for(pilot, lambda: getattr(panel.launch_screen.chosen, "name", "") == name)
        recipe = recipe_loader.find_recipe(name)
        assert (recipe.method, recipe.num_speculative_tokens, recipe.oldest_vllm) == (Method.DFLASH, 7, "0.28.0")
        assert not hub.sent("model.safetensors")
