"""The launch screen: what it shows before anything happens, and what its keys do."""

import threading

import pytest
from msgspec.structs import replace
from textual.events import Key
from textual.message import Message

from dflash_tui.common.errors import RecipeError
from dflash_tui.machine.gpus import Gpu, GpuProbe
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.tui.app import DflashApp
from dflash_tui.tui.dialogs.doctor import Doctor
from dflash_tui.tui.screens.launch import LaunchScreen
from dflash_tui.tui.widgets.recipe_list import RecipeList
from tests.support.waiting import PATIENCE
from tests.tui.conftest import HOSTILE, a_recipe
from tests.tui.panel import NO_GPU, app, shows, text, wait_for

GB10 = Gpu(
    0,
    "NVIDIA GB10",
    capability="12.1",
    hardware=Hardware.GB10,
    memory_total=119 << 30,
    memory_used=7 << 30,
    unified=True,
    temperature_c=47,
    throttle=("power cap",),
)


async def test_a_slow_driver_holds_nothing_up():
    answered = threading.Event()

    def probe() -> GpuProbe:
        answered.wait(PATIENCE)
        return NO_GPU

    panel = DflashApp(now=lambda: 0.0, probe=probe, load=lambda: {"toy": a_recipe()})
    async with panel.run_test(size=(120, 36)) as pilot:
        try:
            await shows(pilot, "looking for GPUs", "toy", "dflash n=7")
        finally:
            answered.set()
        await shows(pilot, "the CPU demo")


async def test_early_enter_checks_first_sorted_recipe():
    """The GPU's recipe comes first by name; without a GPU the one for the CPU does."""
    answered, toy = threading.Event(), a_recipe(name="zoo")
    other = recipe_loader.find_recipe("gemma-4-31b")

    def probe() -> GpuProbe:
        answered.wait(PATIENCE)
        return NO_GPU

    panel = DflashApp(now=lambda: 0.0, probe=probe, load=lambda: {other.name: other, toy.name: toy})
    async with panel.run_test(size=(120, 36)) as pilot:
        try:
            await shows(pilot, "looking for GPUs")
            await pilot.press("d")
        finally:
            answered.set()
        await wait_for(pilot, lambda: isinstance(panel.screen, Doctor))
        assert isinstance(panel.screen, Doctor)
        assert panel.screen.planned.plan.recipe == "zoo"


@pytest.mark.parametrize("size", [(60, 20), (120, 36)])
async def test_each_gpu_has_row_at_every_size(size):
    """Facts that do not fit are left out, what slows it down never."""
    busy = replace(GB10, name="NVIDIA GeForce RTX 5090 Laptop GPU", unified=False, utilisation=0.71, power_w=90.0)
    panel = app({"toy": a_recipe()}, probe=GpuProbe((busy,), "580.95"))
    async with panel.run_test(size=size) as pilot:
        await shows(pilot, "0 RTX 5090 Laptop  119 GiB, 6 %", "power cap")
        await wait_for(pilot, lambda: panel.screen.query_one("#machine").content_size.height == 1)


async def test_burst_of_keys_goes_to_filter():
    """As a slow connection hands them over: `e` would change the mode, `+` the drafts, and enter would launch."""
    panel = app({"toy": a_recipe(), "one+two": a_recipe(name="one+two")})
    async with panel.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "⏎ Launch")
        for key in "/one+two\r":
            panel.post_message(Key({"/": "slash", "+": "plus", "\r": "enter"}.get(key, key), key))
        await shows(pilot, "⏎ Launch", "esc All recipes")
        assert panel.launch_screen.query_one(RecipeList).visible_names == ["one+two"]


async def test_driver_failure_is_explained_in_full():
    why = "the running NVIDIA driver and its library do not match, as after an update; reboot to load the new driver"
    panel = app({"toy": a_recipe()}, probe=GpuProbe(why_none=why))
    async with panel.run_test(size=(120, 36)) as pilot:
        await wait_for(pilot, lambda: "the CPU demo" in text(panel))
        rows = [row.split("│")[1].strip() for row in text(panel).split("\n")[2:4]]
        assert " ".join(rows) == why


async def test_mode_and_drafts_change_the_command():
    panel = app({"toy": a_recipe()})
    async with panel.run_test(size=(120, 40)) as pilot:
        await pilot.press("e", "plus", "plus", "minus")
        await pilot.pause()
        plan = panel.launch_screen.choice.plan(a_recipe()).plan
        assert (plan.mode, plan.num_speculative_tokens) == (Mode.COMPILE, 8)
        await shows(pilot, "dflash n=8 (recipe: 7) · compile (recipe: eager)")
        await pilot.press("y")
        assert "--enforce-eager" not in panel.clipboard
        assert '"num_speculative_tokens": 8' in panel.clipboard


async def test_no_drafts_are_offered_without_speculation():
    panel = app({"toy": a_recipe()})
    async with panel.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "+/- Drafts")
        choice, toy = panel.launch_screen.choice, a_recipe()
        while choice.request(toy).method is not Method.NONE:
            await pilot.press("m")
            await pilot.pause()
        await wait_for(pilot, lambda: "+/- Drafts" not in text(panel))


async def test_broken_recipe_is_listed_but_not_launched():
    panel = app({"broken": RecipeError(f"broken.yaml:3: {HOSTILE}: expected a number", hint="correct it")})
    messages: list[Message] = []
    async with panel.run_test(size=(200, 60), message_hook=messages.append) as pilot:
        await pilot.press("enter", "e", "plus", "y")
        await shows(pilot, "does not load")
        await wait_for(pilot, lambda: HOSTILE in text(panel).replace("\n", ""))
        assert panel.current_mode == "launch"
    assert not [message for message in messages if isinstance(message, LaunchScreen.Launch)]


async def test_no_recipe_at_all_is_reported():
    panel = app({})
    async with panel.run_test() as pilot:
        await pilot.press("enter", "e", "y", "a")
        await wait_for(pilot, lambda: "no recipe was found" in text(panel))
