"""Whatever somebody else writes: on the screens of the panel it stays text, and its row."""

from textual.widgets import Static

from tests.support import escapes
from tests.tui.panel import NO_GPU, app, text, wait_for

SIZE = (120, 36)


async def test_uncleaned_escapes_are_stopped_when_drawn():
    """A text that came past all readers moves nothing, and its row keeps its width."""
    panel = app(probe=NO_GPU)
    async with panel.run_test(size=SIZE) as pilot:
        shown = Static(f"{escapes.SEEN}\x1b[2J\x9b2J\x1b]0;owned\x07 end", markup=False)
        await panel.screen.mount(shown, before=0)
        await wait_for(pilot, lambda: "owned end" in text(panel))
        drawn = text(panel)
        assert not escapes.acting(drawn)
        assert not escapes.shown(drawn, *SIZE)[1]
        assert len(drawn.splitlines()) <= SIZE[1]


def test_panel_crash_report_hides_secrets(capsys):
    """The report is Textual's own, with local variables; it is cleaned on its way out."""
    token = "hf_" + "a" * 30
    app().error_console.print(f"ValueError: HTTP 401 for {token} \x1b]0;owned\x07")
    told = capsys.readouterr().err
    assert "ValueError: HTTP 401" in told
    assert token not in told
    assert not escapes.acting(told.replace("\n", ""))
