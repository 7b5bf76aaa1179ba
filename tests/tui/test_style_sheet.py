"""The style sheet names classes as text, which no rename and no type checker follows."""

import importlib.resources
import pkgutil
import re
from collections import Counter

from textual.css.parse import parse
from textual.dom import DOMNode

from dflash_tui import tui
from dflash_tui.tui.app import DflashApp
from dflash_tui.tui.theme import LIGHT, SCREENS_SHEET
from tests.tui.panel import app


def _names(kind: type[DOMNode]) -> set[str]:
    return {kind.__name__}.union(*(_names(child) for child in kind.__subclasses__()))


def test_each_type_in_the_style_sheet_is_a_class():
    for module in pkgutil.walk_packages(tui.__path__, f"{tui.__name__}."):
        importlib.import_module(module.name)
    sheet = importlib.resources.files(tui).joinpath(DflashApp.CSS_PATH).read_text() + SCREENS_SHEET.read_text()
    sheet = re.sub(r"/\*.*?\*/|\{[^}]*\}", "", sheet, flags=re.DOTALL)
    assert set(re.findall(r"\b[A-Z]\w+", sheet)) - _names(DOMNode) == set()


async def test_styles_are_parsed_once_for_a_theme(monkeypatch):
    """Another screen needs them no second time, another theme does."""
    parsed: Counter[tuple[object, ...]] = Counter()

    def count(scope, css, *args, **settings):
        parsed[scope, css, *args, settings["tie_breaker"]] += 1
        return parse(scope, css, *args, **settings)

    monkeypatch.setattr("textual.css.stylesheet.parse", count)
    panel = app()
    async with panel.run_test() as pilot:
        await panel.switch_mode("live")
        await pilot.pause()
        assert set(parsed.values()) == {1}
        panel.read_other_styles()
        panel.action_keys()
        await pilot.pause()
        assert set(parsed.values()) == {1}
        panel.pop_screen()
        dark = panel.screen.styles.background
        panel.theme = LIGHT.name
        await pilot.pause()
        assert max(parsed.values()) == 2
        assert panel.screen.styles.background != dark
