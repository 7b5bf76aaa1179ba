"""A list whose marks have colours, which are those of the cursor where it stands."""

from textual.app import App, ComposeResult
from textual.content import Content
from textual.widgets.option_list import Option

from dflash_tui.tui.app import DARK, LIGHT
from dflash_tui.tui.widgets.basic import MarkedList


class Listing(App[None]):
    """Two runs that failed."""

    def compose(self) -> ComposeResult:
        yield MarkedList(*(Option(Content.assemble(("✗ ", "$error"), name)) for name in ("one", "two")))

    def on_mount(self) -> None:
        for theme in (DARK, LIGHT):
            self.register_theme(theme)


async def test_a_mark_has_the_colour_of_the_cursor_below_it():
    panel = Listing()
    async with panel.run_test(size=(20, 5)) as pilot:
        panel.theme = DARK.name
        rows = panel.query_one(MarkedList)
        rows.focus()
        for place in (0, 1):
            rows.highlighted = place
            await pilot.pause()
            lines = [rows.render_line(y) for y in (0, 1)]
            colours = [
                {segment.style and segment.style.color for segment in line if segment.text.strip()} for line in lines
            ]
            assert [len(colours[y]) for y in (place, 1 - place)] == [1, 2]
            assert "".join(segment.text for segment in lines[place]).split() == ["✗", ("one", "two")[place]]
