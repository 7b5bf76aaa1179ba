"""What is typed right behind the key that opens a field."""

from textual.app import ComposeResult
from textual.events import Key

from dflash_tui.tui.terminal import TerminalApp
from dflash_tui.tui.widgets.text_field import TextField


class FieldApp(TerminalApp):
    AUTO_FOCUS = None

    def compose(self) -> ComposeResult:
        yield TextField("before", id="field")


async def test_no_letter_is_lost_before_the_field_learns_of_its_focus():
    """What was in it is replaced by the first, and the others come behind that."""
    app = FieldApp()
    async with app.run_test() as pilot:
        field = app.query_one(TextField)
        field.display = False
        field.open()
        await app.on_event(Key("a", "a"))  # while the news of the focus are in the field's queue
        assert field.value == "a"
        await pilot.pause()
        assert field.has_focus
        await app.on_event(Key("b", "b"))
        assert (field.value, field.display) == ("ab", True)
