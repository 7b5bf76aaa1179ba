"""The row of keys, the help and the palette."""

from dflash_tui.common.errors import DflashError, RecipeError
from dflash_tui.events import Health, Phase, Step
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.tui.app import DflashApp
from dflash_tui.tui.dialogs.basic import TextDialog, list_keys
from dflash_tui.tui.launch_selection import Suitability
from dflash_tui.tui.palette import PanelCommands
from dflash_tui.tui.screens.launch import LaunchScreen
from tests.tui.conftest import a_recipe, panel_on_run
from tests.tui.panel import app, shows, text, wait_for


async def test_narrow_screen_offers_chat_help_and_quit():
    panel = app({"toy": a_recipe()})
    async with panel.run_test(size=(60, 20)) as pilot:
        await shows(pilot, "4 Chat", "? Help q Quit")
        row = text(panel).splitlines()[-1]
        assert row.startswith("⏎ Launch")
        await pilot.click(offset=(row.index("Help") + 1, 19))
        await wait_for(pilot, lambda: isinstance(panel.screen, TextDialog))


async def test_the_row_fits_the_mode():
    """While one filters, and for what a recipe has only one of."""
    panel = app({"toy": a_recipe(), "other": a_recipe(name="other")})
    async with panel.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "⏎ Launch")
        assert "Profile" not in _last(panel)
        await pilot.press("slash", "t")
        await shows(pilot, "⏎ Keep the filter", "esc All recipes")
        assert "Launch" not in _last(panel)
        await pilot.press("enter")
        await shows(pilot, "⏎ Launch")
        assert "esc All recipes" in _last(panel)


async def test_recipe_keys_are_hidden_without_recipe():
    """An empty list, and a file that does not load."""
    broken: dict[str, Recipe | DflashError] = {"broken": RecipeError("broken.yaml:3: port")}
    for entries in ({}, broken):
        panel = app(entries)
        async with panel.run_test(size=(200, 60)) as pilot:
            await shows(pilot, "n New pair", "? Help q Quit")
            assert [
                word for word in ("Launch", "Mode", "Options", "Tune", "Hosts", "Copy") if word in _last(panel)
            ] == []
            assert ("Filter" in _last(panel)) == bool(entries)


def _last(panel: DflashApp) -> str:
    return text(panel).splitlines()[-1]


async def test_palette_lists_every_action_with_key():
    panel = app({"toy": a_recipe()})
    async with panel.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "⏎ Launch")
        titles = [group.title for group in list_keys(panel.screen)]
        assert titles == ["this screen", "everywhere", *LaunchScreen.GLOSSES]
        (own, everywhere, marks) = (dict(group.keys) for group in list_keys(panel.screen))
        assert {*Suitability} < {*marks}
        assert {"e", "o", "y", "/"} <= set(own)
        assert {"t", "r", "3", "ctrl+p"} <= set(everywhere)
        names = [command.name for command in PanelCommands(panel.screen)._commands()]
        assert {"Launch", "Mode", "Options", "Doctor", "Copy", "Watch", "Theme"} <= set(names)
        assert len(set(names)) == len(names)
        assert "palette" not in names
        await pilot.press("question_mark")
        await shows(pilot, "this screen", "everywhere", "esc close")


async def test_screenshot_needs_no_downloads_folder(tmp_path, monkeypatch):
    """As on a machine that is reached over ssh."""
    monkeypatch.setenv("XDG_DOWNLOAD_DIR", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    panel = app({"toy": a_recipe()})
    async with panel.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "⏎ Launch")
        commands = {command.name: command for command in PanelCommands(panel.screen)._commands()}
        commands["Screenshot"].run()
        await wait_for(pilot, lambda: any(tmp_path.glob("*.svg")))


async def test_help_key_closes_the_help():
    panel = app({"toy": a_recipe()})
    async with panel.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "⏎ Launch")
        await pilot.press("question_mark")
        await wait_for(pilot, lambda: isinstance(panel.screen, TextDialog))
        await pilot.press("question_mark")
        await wait_for(pilot, lambda: isinstance(panel.screen, LaunchScreen))
        assert len(panel.screen_stack) == 1


async def test_start_help_explains_phases(starting):
    async with panel_on_run(starting, size=(80, 24)) as (panel, pilot):
        explained = dict(list_keys(panel.screen)[-1].keys)
        assert {*Phase, *Step, Health.HEALTHY, Health.WARM} <= set(explained)
        await pilot.press("question_mark", "end")
        await shows(pilot, "unattributed  time that the log")
