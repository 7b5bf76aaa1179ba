"""Screens opened while the panel closes: Textual mounts none of their children, and calls `on_mount` all the same."""

import importlib
import inspect
import pkgutil

import pytest
from textual.app import ComposeResult
from textual.containers import Container
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from dflash_tui import tui
from dflash_tui.tui.screens.run import ViewScreen
from dflash_tui.tui.widgets.basic import once_composed
from tests.tui.panel import app, wait_for


def list_composing_widgets() -> list[type[Widget]]:
    """Return the panel's own widgets that have children and do something when they are mounted."""
    modules = [importlib.import_module(each.name) for each in pkgutil.walk_packages(tui.__path__, "dflash_tui.tui.")]
    members = {member for module in modules for _, member in inspect.getmembers(module, inspect.isclass)}
    own = [each for each in members if issubclass(each, Widget) and each.__module__.startswith("dflash_tui.tui.")]
    composing = [each for each in own if "compose" in {name for base in each.__mro__[:-1] for name in vars(base)}]
    return sorted((each for each in composing if "on_mount" in vars(each)), key=lambda each: each.__qualname__)


WIDGETS = list_composing_widgets()


def test_the_screens_are_found():
    assert len([each for each in WIDGETS if issubclass(each, Screen)]) > 15


@pytest.mark.parametrize("widget", [each for each in WIDGETS if "query" in inspect.getsource(each.on_mount)])  # type: ignore[attr-defined]
async def test_a_widget_without_its_children_is_mounted_without_an_error(widget):
    """Its own fields are not needed either: nothing of it is drawn any more."""
    orphan = widget.__new__(widget)
    Screen.__init__(orphan) if issubclass(widget, Screen) else Widget.__init__(orphan)
    orphan.on_mount()


class Partial(Screen[None]):
    """A screen that does something with a part of it when it is mounted."""

    def compose(self) -> ComposeResult:
        yield Container(Static(id="part"))

    @once_composed
    def on_mount(self) -> None:
        self.query_one("#part").border_title = "there"


async def test_a_widget_with_some_of_its_children_is_mounted_without_an_error_while_the_panel_closes(monkeypatch):
    """On a busy machine Textual has mounted those of the first level alone by then."""
    panel, screen = app(), Partial()
    async with panel.run_test():
        await panel.push_screen(screen)
        assert screen.query_one("#part").border_title == "there"
        await screen.query_one("#part").remove()
        with pytest.raises(NoMatches):
            screen.on_mount()
        with monkeypatch.context() as closing:
            closing.setattr(panel, "_running", False)
            screen.on_mount()


@pytest.mark.parametrize("mode", ["launch", "live", "replay", "ab", "compare"])
async def test_a_screen_is_drawn_whichever_of_its_parts_are_gone(mode, monkeypatch):
    """A worker may come back while the panel closes, and Textual takes the widgets away one by one."""
    panel, gone, detach = app(), [], Widget._detach
    async with panel.run_test() as pilot:
        await panel.switch_mode(mode)
        await wait_for(pilot, lambda: panel.screen.is_current and bool(panel.screen.query("*")))
        screens = (panel.launch_screen, panel.run_screen, panel.replay_screen, panel.ab_screen, panel.compare_screen)
        [screen] = [each for each in screens if each is panel.screen]
        draw = screen.view.draw if isinstance(screen, ViewScreen) else screen.draw

        def detach_and_draw(widget: Widget) -> None:
            detach(widget)
            gone.append(widget)
            draw()

        monkeypatch.setattr(Widget, "_detach", detach_and_draw)
    monkeypatch.undo()
    assert len(gone) > 5
