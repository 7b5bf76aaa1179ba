"""The doctor dialog: what a check says may be done is done by a key."""

import pytest

from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.request import LaunchChanges
from dflash_tui.tui.dialogs.doctor import read_way
from tests.support.preflight_situations import a_gpu
from tests.tui.panel import app, shows, text, wait_for


async def test_a_key_takes_the_setting_that_a_fix_names():
    """The published set-up of an RTX 5090 laptop cannot start; what mends it is one key, with what it costs."""
    recipe = recipe_loader.find_recipe("gemma-4-26b-a4b")
    panel = app({recipe.name: recipe}, probe=GpuProbe((a_gpu(Hardware.RTX_5090_LAPTOP),), "580.95"))
    async with panel.run_test(size=(120, 36)) as pilot:
        await wait_for(pilot, lambda: bool(panel.launch_screen.choice.cards))
        await pilot.press("s", "d")
        await shows(pilot, "✗ recipe: broken", "`o` kv-cache-dtype=null", "2.4 GiB", "o set it")
        await pilot.press("o")
        await shows(pilot, "! recipe: experimental", "broken without --set kv-cache-dtype")
        assert panel.launch_screen.choice.request(recipe).settings == {"kv-cache-dtype": "null"}
        assert "o set it" not in text(panel)


@pytest.mark.parametrize(
    ("fix", "kind", "changes"),
    [
        ("stop it, or --set a=0.7 --set b-c=2, or --set d=1", "set", LaunchChanges(settings={"a": "0.7", "b-c": "2"})),
        ("--set a=1 (2.4 GiB), or --profile stock", "profile", LaunchChanges(profile="stock")),
        ("--variant x (19 GB)", "variant", LaunchChanges(variant="x")),
        ("drop a flag with --set NAME=null", "set", LaunchChanges()),
        ("a variant, or --set target.model=…", "set", LaunchChanges()),
    ],
)
def test_the_changes_that_a_fix_names(fix, kind, changes):
    assert read_way(fix, kind) == changes
