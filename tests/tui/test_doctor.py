"""The doctor dialog: what a check says may be done is done by a key."""

from dflash_tui.launch.preflight.check import fail_check, warn_check
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.request import LaunchChanges, hint_setting
from dflash_tui.runs import lifecycle
from dflash_tui.tui.dialogs.doctor import Doctor
from tests.support import command_line
from tests.support.preflight_situations import a_gpu
from tests.tui.panel import app, shows, text, wait_for


async def test_fix_key_applies_suggested_setting(monkeypatch):
    """The published set-up of an RTX 5090 laptop cannot start; one key sets what mends it."""
    monkeypatch.setattr(lifecycle, "find_free_port", lambda port: port)  # a server may have it here
    recipe = recipe_loader.find_recipe("gemma-4-26b-a4b")
    panel = app({recipe.name: recipe}, probe=GpuProbe((a_gpu(Hardware.RTX_5090_LAPTOP),), "580.95"))
    async with panel.run_test(size=(120, 36)) as pilot:
        await wait_for(pilot, lambda: bool(panel.launch_screen.choice.cards))
        await pilot.press("s", "d")
        await shows(pilot, "✗ recipe: broken", "`o` kv-cache-dtype=null", "o set it")
        await pilot.press("o")
        await shows(pilot, "! recipe: experimental", "broken without --set kv-cache-dtype")
        assert panel.launch_screen.choice.request(recipe).settings == {"kv-cache-dtype": "null"}
        await wait_for(pilot, lambda: "o set it" not in text(panel))


def test_fix_key_applies_first_change_skipping_examples():
    advice = ("drop a flag with ", hint_setting("NAME", "null", is_example=True), ", or ", hint_setting("a", "1"))
    planned = command_line.planned("demo-cpu")
    dialog = Doctor(planned, launching=True)
    dialog.checks = [fail_check("flags", "wrong", advice), warn_check("drafts", "many", hint_setting("b", "2"))]
    assert (dialog._find_way("o").settings, dialog._find_way("v")) == ({"a": "1"}, LaunchChanges())
