"""A key of the environment that a log, names and answers quote, whole and in disguise: no screen shows it."""

from dflash_tui.common.secrets import own_secrets
from dflash_tui.runs import registry
from tests.support import hostile_home, planted
from tests.tui.panel import app, text, wait_for

SIZE = (120, 36)


async def test_no_screen_shows_it(tmp_path, monkeypatch):
    """The failure of a run, its log's pane, the list of runs and a replay."""
    monkeypatch.setenv("VLLM_API_KEY", planted.KEY)
    own_secrets.read_own_secrets()  # as every command does when it begins
    hostile_home.made(planted.ALL, tmp_path)
    panel = app()
    async with panel.run_test(size=SIZE) as pilot:
        panel.attach(registry.find_run(hostile_home.RUN))
        await wait_for(pilot, lambda: "FAILED" in text(panel) and "[left out]" in text(panel))
        for key in ("l", "G", "r"):
            assert not planted.is_in(text(panel)), key
            await pilot.press(key)
            await pilot.pause()
        await wait_for(pilot, lambda: "1 finished, and the sample" in text(panel))
        assert not planted.is_in(text(panel))
