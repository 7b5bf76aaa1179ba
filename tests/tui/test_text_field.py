"""What is typed right behind the key that opens a field."""

from textual.app import App, ComposeResult

from dflash_tui.tui.widgets.basic import TextField


class FieldApp(App[None]):
    AUTO_FOCUS = None

    def compose(self) -> ComposeResult:
        yield TextField("before", id="field")


async def test_first_typed_letter_replaces_field_value():
    app = FieldApp()
    async with app.run_test() as pilot:
        field = app.query_one(TextField)
        field.display = False
        field.open()
        await pilot.press("a", "b")
        assert (field.value, field.display) == ("ab", True)
