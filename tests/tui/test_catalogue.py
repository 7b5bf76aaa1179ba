"""The recipes as they suit the machine, and the catalogue's pairs behind `n`, of which one becomes a recipe."""

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
from dflash_tui.tui.dialogs.drafters import DrafterDialog
from dflash_tui.tui.launch_selection import Suitability
from dflash_tui.tui.widgets.recipe_list import FOLD, RecipeList
from tests.tui.panel import NO_GPU, shown_as, shows, wait_for

CARD = Gpu(
    0, "NVIDIA GB10", capability="12.1", hardware=Hardware.GB10, memory_total=119 << 30, memory_used=0, unified=True
)
PAIRS = catalogue.load_catalogue().pairs


def panel_on(probe: GpuProbe = NO_GPU) -> DflashApp:
    return DflashApp(now=lambda: 0.0, probe=lambda: probe)


def model(**config: Any) -> dict[str, bytes]:
    return {"config.json": json.dumps(config).encode(), "model.safetensors": bytes(2_000_000)}


async def open_pairs(pilot, words: str = "") -> DrafterDialog:
    """Open the dialog of pairs, and find those with these words."""
    await pilot.press("n")
    await shows(pilot, "Published pairs")
    dialog = shown_as(pilot.app, DrafterDialog)
    await wait_for(pilot, lambda: len(dialog.choices) == len(PAIRS))
    if words:
        await pilot.press("slash", *words, "enter")
        await wait_for(pilot, lambda: not dialog.is_typing)
    return dialog


async def test_pairs_are_listed_behind_a_key(hub):
    """Those that fit this machine first, with what is known of the highlighted one."""
    panel = panel_on(GpuProbe((CARD,)))
    async with panel.run_test(size=(120, 36)) as pilot:
        await wait_for(pilot, lambda: bool(panel.launch_screen.choice.cards))
        dialog = await open_pairs(pilot)
        fits = [row.pair and dialog._fits(row.pair) for row in dialog.choices]
        assert fits.index(False) == len(fits) - fits.count(False)
        await pilot.press("slash", *"qwen3.8-27b/dflash2")
        await shows(pilot, "z-lab/Qwen3.8-27B-DFlash2", "24.27 decode tok/s, 1x gb10, n=8")
        assert [row.name for row in dialog.choices] == ["qwen3.8-27b/dflash2"]
        await pilot.press("enter")
        await shows(pilot, "⏎ make a recipe")


async def test_best_recipe_for_gpu_is_highlighted_first(hub):
    """Verified before reported, then what may run, then the demo of a CPU; the rest is one line that opens."""
    panel = panel_on(GpuProbe((CARD,)))
    async with panel.run_test(size=(120, 36)) as pilot:
        rows = panel.screen.query_one(RecipeList)
        await wait_for(pilot, lambda: panel.launch_screen.choice.probe is not None and bool(rows.folded))
        assert (rows.visible_names[-1], rows.visible_names[-2]) == (FOLD, "demo-cpu")
        listed = [entry for name in rows.visible_names[:-2] if isinstance(entry := rows.entries[name], Recipe)]
        marks = [rows.choice.suited(recipe).suits for recipe in listed]
        assert marks == sorted(marks, key=list(Suitability).index)
        assert Suitability.NO not in marks
        statuses = [rows.choice.plan(recipe).resolved.standing.status for recipe in listed[: marks.count(marks[0])]]
        assert statuses == sorted(statuses, key=list(Status).index)
        assert rows.chosen is listed[0]
        await pilot.press("down")
        panel.launch_screen.probe_and_list()
        await pilot.pause()
        assert rows.chosen is listed[1]
        await pilot.press("end")
        await shows(pilot, "⏎ Show them", "enter shows the recipes that would not start here")
        await pilot.press("enter")
        await wait_for(pilot, lambda: {*rows.visible_names} == {*rows.entries})
        assert rows.choice.suited(rows.chosen).suits is Suitability.NO


async def test_enter_turns_pair_into_recipe(hub):
    """By what its models say, which is an error in words where they cannot be read."""
    panel = panel_on()
    async with panel.run_test(size=(120, 36)) as pilot:
        await wait_for(pilot, lambda: panel.launch_screen.choice.probe is not None)
        await open_pairs(pilot, "qwen3.8-27b/dflash2")
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
        await open_pairs(pilot, "qwen3.8-27b/dflash2")
        await pilot.press("enter")
        name = "qwen3.8-27b-dflash2"
        await wait_for(pilot, lambda: getattr(panel.launch_screen.chosen, "name", "") == name)
        recipe = recipe_loader.find_recipe(name)
        assert (recipe.method, recipe.num_speculative_tokens, recipe.oldest_vllm) == (Method.DFLASH, 7, "0.28.0")
        assert not hub.sent("model.safetensors")
