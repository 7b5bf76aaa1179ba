"""The table of recipes at any width: no two rows are alike, and what is left out is the least."""

import pytest

from dflash_tui.tui.app import DflashApp
from dflash_tui.tui.render.plan import render_servers
from dflash_tui.tui.widgets.recipe_list import RecipeRow
from tests.tui.conftest import a_recipe, a_run
from tests.tui.panel import app, shows, text

FAMILY = tuple(
    RecipeRow(
        "✓", f"company-internal-llama-3.3-70b-instruct-{letter}-dflash-fp8-tp4", "161 here", "50", "≥62 GB", "mtp"
    )
    for letter in "abcdef"
)


async def test_recipe_list_shows_highlighted_row_and_position():
    panel = app({f"recipe-{number:02}": a_recipe(name=f"recipe-{number:02}") for number in range(40)})
    async with panel.run_test(size=(60, 20)) as pilot:
        await shows(pilot, "1 of 40 ↓")
        await pilot.press("end")
        await shows(pilot, "↑ 40 of 40", "recipe-39")
        assert "↓" not in _border(panel)


def _border(panel: DflashApp) -> str:
    return next(line for line in text(panel).splitlines() if "of 40" in line)


@pytest.mark.parametrize("width", [49, 90])
def test_running_servers_show_distinct_names_and_ports(width):
    runs = [a_run(recipe=recipe.name, port=8000 + place) for place, recipe in enumerate(FAMILY)]
    lines = [row.plain for row in render_servers(runs, [], runs[0].started_at + 60, width)]
    names, ports = zip(*(line.split("  :") for line in lines), strict=True)
    assert (len(set(names)), [port[:4] for port in ports]) == (6, ["8000", "8001", "8002", "8003", "8004", "8005"])
    assert max(map(len, lines)) <= width
