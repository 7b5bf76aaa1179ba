"""How values become columns, axes and bars of a chart."""

import math

from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult
from textual.content import Content

from dflash_tui.tui.widgets.chart import Chart, ChartLine, round_axis_limit, split_line


def test_flat_line_keeps_ends_and_gaps():
    points = [(0.0, 1.0), (1.0, 1.0), (2.0, 1.0), (3.0, 5.0), (4.0, 1.0), (9.0, 1.0), (10.0, 1.0), (11.0, 1.0)]
    pieces = list(split_line(points, gap=1.5, step=0.1))
    assert pieces == [[(0.0, 1.0), (2.0, 1.0), (3.0, 5.0), (4.0, 1.0)], [(9.0, 1.0), (11.0, 1.0)]]
    assert list(split_line([], gap=1.5, step=0.1)) == []


def test_an_axis_ends_at_a_round_number():
    assert [round_axis_limit(value) for value in (0, -1, math.inf, 0.7, 9, 21, 37, 101)] == [
        1,
        1,
        1,
        0.8,
        10,
        25,
        40,
        200,
    ]


class Host(App[None]):
    def compose(self) -> ComposeResult:
        yield Chart("speed", top=10, id="chart")


async def drawn(theme: str) -> tuple[Text, str]:
    """Return what is drawn of a rising and a level line, and the title."""
    panel = Host()
    async with panel.run_test(size=(60, 16)) as pilot:
        panel.theme = theme
        await pilot.pause()
        chart = panel.query_one(Chart)
        lines = [ChartLine([float(n) for n in range(50)], "primary", "one"), ChartLine([5.0] * 50, "accent", "other")]
        chart.show(lines, 600)
        await pilot.pause()
        shown = chart.render()
        assert isinstance(shown, Text)
        return shown, Content.from_markup(str(chart.border_title)).plain


async def test_ansi_theme_chart_has_axes_without_background():
    """Nothing can be blended with a colour that nobody knows: black boxes without axes came of it."""
    shown, _ = await drawn("ansi-dark")
    assert {span.style.bgcolor for span in shown.spans if isinstance(span.style, Style)} == {None}
    axis = shown.plain.index("50")
    styles = [span.style for span in shown.spans if span.start <= axis < span.end]
    assert [style for style in styles if isinstance(style, Style) and style.color] == []


async def test_chart_lines_differ_in_shape_and_legend(monkeypatch):
    monkeypatch.setenv("DFLASH_TUI_MARKER", "braille")
    shown, title = await drawn("textual-dark")
    assert "•" in shown.plain
    assert any("⠀" < sign <= "⣿" for sign in shown.plain)
    assert title == "speed  ━ one  • other"
