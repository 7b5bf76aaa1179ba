"""The options of a launch, changed in the panel: the same as `--set`, with the command and the memory that follow."""

from msgspec.structs import replace
from textual.events import Key, Paste
from textual.pilot import Pilot

from dflash_tui.cli.parser import build_parser
from dflash_tui.cli.requests import read_launch_request
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.tui.app import DflashApp
from dflash_tui.tui.dialogs.options import OptionsDialog
from dflash_tui.tui.launch_selection import LaunchSelection
from tests.support.preflight_situations import a_gpu
from tests.tui.panel import app, shows, text, wait_for, words

RECIPE = recipe_loader.find_recipe("gemma-4-31b")


def panel_on(hardware: Hardware) -> DflashApp:
    return app({RECIPE.name: RECIPE}, probe=GpuProbe((a_gpu(hardware),), "580.95"))


async def open_options(pilot: Pilot[str], panel: DflashApp) -> LaunchSelection:
    await wait_for(pilot, lambda: bool(panel.launch_screen.choice.cards))
    await pilot.press("o")
    await wait_for(pilot, lambda: isinstance(panel.screen, OptionsDialog) and panel.screen.focused is not None)
    return panel.launch_screen.choice


async def test_typed_option_previews_its_effect():
    panel = panel_on(Hardware.GB10)
    async with panel.run_test(size=(120, 36)) as pilot:
        await open_options(pilot, panel)
        await shows(pilot, "KV for 16384 tokens")
        await pilot.press("enter", *"4096")
        await shows(pilot, "KV for 4096 tokens", "- --max-model-len 16384", "+ --max-model-len 4096")
        assert panel.launch_screen.choice.request(RECIPE).settings == {}  # nothing is kept before enter
        await pilot.press("enter", "end", "enter", *"kv-cache-dtype=fp8", "enter")
        await shows(pilot, "+ --kv-cache-dtype fp8")
        [last] = [word for word in text(panel).split("\n") if "--kv-cache-dtype" in word]
        assert "- --max-model-len 4096" not in text(panel)  # which was the last line, and is no longer
        assert "\\" not in last
        await pilot.press("home", *["down"] * 4, "enter", *"9001", "enter", "escape")
        await shows(pilot, "max-model-len=4096, kv-cache-dtype=fp8")
        asked = replace(panel.launch_screen.choice.request(RECIPE), gpu=None)
        line = ["plan", RECIPE.name, "--set", "max-model-len=4096", "--set", "kv-cache-dtype=fp8", "--port", "9001"]
        assert asked == read_launch_request(build_parser().parse_args(line))


async def test_pasted_enter_keeps_the_option():
    """As keys in one burst, and as the text of a paste."""
    panel = panel_on(Hardware.H100)
    async with panel.run_test(size=(120, 36)) as pilot:
        choice = await open_options(pilot, panel)
        await pilot.press("enter")
        for key in "2048\r":
            panel.post_message(Key("enter" if key == "\r" else key, key))
        await wait_for(pilot, lambda: choice.request(RECIPE).settings == {"max-model-len": "2048"})
        await pilot.press("enter")
        panel.post_message(Paste("4096\n"))
        await wait_for(pilot, lambda: choice.request(RECIPE).settings == {"max-model-len": "4096"})


async def test_invalid_option_is_dropped_and_x_reverts():
    panel = panel_on(Hardware.H100)
    async with panel.run_test(size=(80, 24)) as pilot:
        choice = await open_options(pilot, panel)
        await pilot.press("end", "enter", *"max-modl-len=1", "enter")
        await shows(pilot, "did you mean --max-model-len")
        await pilot.press("escape", "home", *["down"] * 4, "enter", *"99999", "enter")
        await shows(pilot, "99999 is not a port")
        assert (choice.request(RECIPE).settings, choice.request(RECIPE).port) == ({}, None)
        await pilot.press("escape", "home", "enter", *"2048", "enter")
        await wait_for(pilot, lambda: choice.request(RECIPE).settings == {"max-model-len": "2048"})
        await pilot.press("x")
        assert choice.request(RECIPE).settings == {}
        await pilot.press("escape")
        await shows(pilot, "Gemma 4 31B")
        assert "options" not in words(panel).partition("plan")[2]


async def test_k_keeps_choices_as_recipe():
    recipe = recipe_loader.find_recipe("demo-cpu")
    panel = app({recipe.name: recipe})
    async with panel.run_test(size=(120, 36)) as pilot:
        await wait_for(pilot, lambda: panel.launch_screen.choice.probe is not None)
        await pilot.press("plus", "e", "k")
        await wait_for(pilot, lambda: "demo-cpu-kept" in recipe_loader.list_recipe_files())
        kept = recipe_loader.find_recipe("demo-cpu-kept")
        assert (kept.num_speculative_tokens, kept.mode) == (8, Mode.COMPILE)
        await shows(pilot, "demo-cpu-kept.yaml")
