"""The catalogue on the launch screen: its rows below the recipes, what is known of a pair, and enter on one."""

import json
from typing import Any

import pytest
from textual.color import Color

from dflash_tui.machine.gpus import Gpu, GpuProbe
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.derivation import catalogue
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Recipe, Status
from dflash_tui.presentation import recipe_text
from dflash_tui.presentation.recipe_text import Place
from dflash_tui.tui.app import DARK, LIGHT, DflashApp
from dflash_tui.tui.dialogs.basic import ErrorDialog
from dflash_tui.tui.launch_selection import Suitability
from dflash_tui.tui.widgets.recipe_list import RecipeList, load_entries, render_catalogue_pair
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


def test_a_blank_stands_behind_the_name_of_each_fact():
    known = catalogue.load_catalogue()
    for pair in PAIRS:
        drawn = render_catalogue_pair(pair, Place(), 60).plain
        for name, _ in recipe_text.list_pair_facts(known, pair, Place()):
            assert f"\n{name} " in drawn


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


@pytest.mark.parametrize(
    ("hardware", "name"),
    [
        (Hardware.RTX_5090_LAPTOP, "gemma-4-26b-a4b"),  # which the guide names, not what fits by arithmetic alone
        (Hardware.GB10, "gemma-4-31b"),  # 2.79 times as fast as without speculation; gemma-4-26b-a4b was slower
    ],
)
async def test_of_those_that_nobody_reported_one_with_a_published_gain_stands_first(hub, hardware, name):
    panel = panel_with_catalogue(GpuProbe((a_gpu(hardware),)))
    async with panel.run_test(size=(120, 36)) as pilot:
        rows = panel.screen.query_one(RecipeList)
        await wait_for(pilot, lambda: isinstance(rows.chosen, Recipe) and rows.chosen.name == name)


async def test_the_recipe_that_the_filter_found_stays_highlighted_without_it(hub):
    panel = panel_with_catalogue(GpuProbe((CARD,)))
    async with panel.run_test(size=(120, 36)) as pilot:
        rows = panel.screen.query_one(RecipeList)
        await wait_for(pilot, lambda: rows.place.budget is not None)
        await pilot.press("slash", *"qwen3-coder", "enter")
        await wait_for(pilot, lambda: isinstance(rows.chosen, Recipe) and rows.chosen.name == "qwen3-coder-next")
        every = [*rows.entries]
        await pilot.press("escape")
        await wait_for(pilot, lambda: rows.visible_names == every)
        assert rows.chosen is rows.entries["qwen3-coder-next"]
        rows.choose("qwen3.8-27b")
        await pilot.pause()
        assert rows.chosen is rows.entries["qwen3.8-27b"]


async def test_recipes_that_fit_are_found_by_that_word(hub):
    """Also where no GPU is, by which no pair is judged."""
    panel = panel_with_catalogue()
    async with panel.run_test(size=(120, 36)) as pilot:
        rows = panel.screen.query_one(RecipeList)
        await shows(pilot, "the CPU demo")
        await pilot.press("slash", *"fits")
        await wait_for(pilot, lambda: rows.visible_names == ["demo-cpu"])


def luminance(color: Color) -> float:
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color.normalized]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


@pytest.mark.parametrize("theme", [DARK.name, LIGHT.name])
async def test_the_dimmed_row_of_a_pair_can_be_read_under_the_cursor(hub, theme):
    panel = panel_with_catalogue()
    panel.theme = theme
    async with panel.run_test(size=(120, 36)) as pilot:
        panel.launch_screen.choose("qwen3.8-27b/dflash2")
        await shows(pilot, "makes it a recipe")
        await pilot.pause()
        strips = panel.screen._compositor.render_strips(panel.size)
        drawn = [segment.style for strip in strips for segment in strip if "qwen3.8-27b/dflash2  " in segment.text]
        style = drawn[0]
        assert style
        assert style.color
        assert style.bgcolor
        pair = sorted(luminance(Color.from_rich_color(each)) for each in (style.color, style.bgcolor))
        assert (pair[1] + 0.05) / (pair[0] + 0.05) > 3


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
