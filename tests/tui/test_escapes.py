"""Whatever somebody else writes: on the screens of the panel it stays text, and its row."""

from msgspec.structs import replace
from textual.widgets import Static

from dflash_tui.common.errors import DflashError, RecipeError
from dflash_tui.machine.gpus import Gpu, GpuProbe, GpuProcess
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.tui.dialogs.basic import ErrorDialog
from tests.support import escapes
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
