"""Whatever somebody else writes: on the screens of the panel it stays text, and its row."""

import pytest
from msgspec.structs import replace
from textual.widgets import Static

from dflash_tui.common.errors import DflashError, RecipeError
from dflash_tui.experiments import store
from dflash_tui.machine.gpus import Gpu, GpuProbe, GpuProcess
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.runs import registry
from dflash_tui.tui.dialogs.basic import ErrorDialog
from tests.support import escapes, hostile_home
from tests.tui.conftest import a_recipe
from tests.tui.panel import NO_GPU, app, text, wait_for

SIZE = (120, 36)


def checked(panel) -> None:
    """Fail when anything on the screen acts, or there are more rows than the terminal has."""
    drawn = text(panel)
    assert not escapes.acting(drawn)
    assert not escapes.shown(drawn, *SIZE)[1]
    assert len(drawn.splitlines()) <= SIZE[1]
    assert escapes.SEEN[:5] in drawn, "nobody hostile is seen here"


async def test_the_launch_screen():
    """A recipe that cannot be read, one that says everything, GPUs and what runs on them."""
    said = escapes.all_of_them()
    card = Gpu(0, said, hardware=Hardware.H200, processes=(GpuProcess(7, said, 1 << 30),), trouble=said)
    found: dict[str, Recipe | DflashError] = {
        "bad": RecipeError(f"bad.yaml:1: {said}"),
        "toy": replace(a_recipe(), title=said, why=said),
    }
    panel = app(found, probe=GpuProbe(gpus=(card,), driver=said))
    async with panel.run_test(size=SIZE) as pilot:
        await wait_for(pilot, lambda: escapes.SEEN in text(panel))
        for key in ("down", "up"):
            await pilot.press(key)
            await pilot.pause()
            checked(panel)
        panel.push_screen(ErrorDialog(DflashError(said, evidence=said, hint=said)))
        await pilot.pause()
        checked(panel)


async def test_a_run_and_its_list(tmp_path):
    """A failed run whose log, names and errors say everything, and the list that it stands in."""
    hostile_home.made(escapes.all_of_them(), tmp_path)
    panel = app()
    async with panel.run_test(size=SIZE) as pilot:
        panel.attach(registry.find_run(hostile_home.RUN))
        await wait_for(pilot, lambda: "FAILED" in text(panel) and escapes.SEEN in text(panel))
        checked(panel)
        await pilot.press("r")
        await wait_for(pilot, lambda: "1 finished, and the sample" in text(panel))
        assert not escapes.acting(text(panel))


@pytest.mark.parametrize("key", ["", "v"])
async def test_an_experiment(key, tmp_path):
    """Its verdict and its boots: arms, engines and errors of anybody's."""
    hostile_home.made(escapes.all_of_them(), tmp_path)
    panel = app()
    async with panel.run_test(size=SIZE) as pilot:
        panel.show_experiment(store.list_experiments()[0].id)
        await wait_for(pilot, lambda: escapes.SEEN[:5] in text(panel))
        if key:
            await pilot.press(key)
            await wait_for(pilot, lambda: panel.current_mode == "ab" and escapes.SEEN[:5] in text(panel))
        checked(panel)


async def test_uncleaned_escapes_are_stopped_when_drawn():
    """A text that came past all readers moves nothing, and its row keeps its width."""
    panel = app(probe=NO_GPU)
    async with panel.run_test(size=SIZE) as pilot:
        shown = Static(f"{escapes.SEEN}\x1b[2J\x9b2J\x1b]0;owned\x07 end", markup=False)
        await panel.screen.mount(shown, before=0)
        await wait_for(pilot, lambda: "owned end" in text(panel))
        checked(panel)


def test_panel_crash_report_hides_secrets(capsys):
    """The report is Textual's own, with local variables; it is cleaned on its way out."""
    token = "hf_" + "a" * 30
    app().error_console.print(f"ValueError: HTTP 401 for {token} \x1b]0;owned\x07")
    told = capsys.readouterr().err
    assert "ValueError: HTTP 401" in told
    assert token not in told
    assert not escapes.acting(told.replace("\n", ""))
