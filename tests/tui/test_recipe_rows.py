"""The table of recipes at any width: no two rows are alike, and what is left out is the least."""

import pytest

from dflash_tui.launch import planner
from dflash_tui.tui.app import DflashApp
from dflash_tui.tui.render.plan import render_servers
from dflash_tui.tui.widgets import recipe_list
from dflash_tui.tui.widgets.recipe_list import RecipeRow
from tests.tui.conftest import a_recipe, a_run
from tests.tui.panel import app, shows, text, wait_for

FAMILY = tuple(
    RecipeRow(
        "✓", f"company-internal-llama-3.3-70b-instruct-{letter}-dflash-fp8-tp4", "161 here", "50", "≥62 GB", "mtp"
    )
    for letter in "abcdef"
)


async def test_the_highlighted_of_many_is_seen_and_its_place():
    panel = app({f"recipe-{number:02}": a_recipe(name=f"recipe-{number:02}") for number in range(40)})
    async with panel.run_test(size=(60, 20)) as pilot:
        await shows(pilot, "1 of 40 ↓")
        await pilot.press("end")
        await shows(pilot, "↑ 40 of 40", "recipe-39")
        assert "↓" not in _border(panel)


def _border(panel: DflashApp) -> str:
    return next(line for line in text(panel).splitlines() if "of 40" in line)


@pytest.mark.parametrize("width", [49, 90])
def test_running_servers_are_told_apart_and_keep_their_port(width):
    runs = [a_run(recipe=recipe.name, port=8000 + place) for place, recipe in enumerate(FAMILY)]
    lines = [row.plain for row in render_servers(runs, [], runs[0].started_at + 60, width)]
    names, ports = zip(*(line.split("  :") for line in lines), strict=True)
    assert (len(set(names)), [port[:4] for port in ports]) == (6, ["8000", "8001", "8002", "8003", "8004", "8005"])
    assert max(map(len, lines)) <= width


async def test_each_recipe_is_judged_once_and_what_has_not_changed_is_not_drawn_again(monkeypatch):
    """Only the highlighted one is worth a plan; the screen is drawn again every 2 s."""
    planned: list[str] = []
    outlined: list[str] = []
    plan_launch, outline_launch = planner.plan_launch, planner.outline_launch

    def count_plans(request, *args, **options):
        planned.append(request.recipe)
        return plan_launch(request, *args, **options)

    def count_outlines(recipe, *args):
        outlined.append(recipe.name)
        return outline_launch(recipe, *args)

    monkeypatch.setattr(planner, "plan_launch", count_plans)
    monkeypatch.setattr(planner, "outline_launch", count_outlines)
    names = [f"recipe-{number}" for number in range(6)]
    panel = app({name: a_recipe(name=name) for name in names})
    async with panel.run_test(size=(120, 36)) as pilot:
        await wait_for(pilot, lambda: panel.launch_screen.choice.probe is not None)
        await shows(pilot, "dflash")
        drawn: list[object] = []
        monkeypatch.setattr(recipe_list, "render_recipe_rows", lambda *a: drawn.append(a))
        for _ in range(3):
            panel.launch_screen.draw()
        assert drawn == []
    assert sorted(outlined) == names
    assert set(planned) == {names[0]}
