"""Two arms that write the same answer as fast as they did: the screen to show a colleague."""

from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot

from dflash_tui.experiments import store
from dflash_tui.tui.app import DflashApp
from dflash_tui.tui.screens.playback import PlaybackScreen
from tests.support.played_answers import begin_played
from tests.support.values import present
from tests.tui.panel import app, panel_of, shown_as, shows, text, wait_for
from tests.unit.monitoring.test_recording import Clock

HOSTILE = "[/] [red]evil[/red] [@click=app.quit]x[/] \x1b[31m\x1b]0;owned\x07 \u202eback"


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(clock: Clock, prompt: str = "", **how) -> DflashApp:
    """Return a panel that plays an A/B of the first two arms."""
    report = present(store.read_report(store.experiment_folder(begin_played(**how))))
    return DflashApp(playback=PlaybackScreen(report, prompt=prompt, clock=clock), load=dict)


async def at(pilot: Pilot[str], clock: Clock, seconds: float) -> str:
    """Return what is on the screen at that moment."""
    panel = panel_of(pilot)
    await wait_for(pilot, lambda: isinstance(panel.screen, PlaybackScreen) and "verdict on" in text(panel))
    screen = shown_as(panel, PlaybackScreen)
    clock.at = seconds
    for _ in range(2):  # the first drawing gives the parts their size
        screen.draw()
        await pilot.pause()
    return text(panel)


async def test_playback_writes_both_answers_above_ratio(clock):
    panel = opened(clock, "Math")
    async with panel.run_test(size=(120, 36)) as pilot:
        seen = await at(pilot, clock, 0.0)
        assert ("Math, round 1" in seen, "●A" in seen.replace(" ", ""), " — " in seen) == (True, True, True)
        seen = await at(pilot, clock, 3.0)
        screen = shown_as(panel, PlaybackScreen)
        pair = screen.pair
        for answer in (pair.a, pair.b):
            assert f"{answer.count_tokens(3.0)} tokens" in seen
        assert f"{pair.measure_ratio(3.0):.2f}x" in seen
        assert "so far" in seen
        seen = await at(pilot, clock, 99.0)
        assert ("■ A/B" in seen, "so far" in seen, seen.count("✓ done in")) == (True, False, 2)
        assert "▲ compile is faster" in seen


async def test_its_keys(clock):
    panel = opened(clock)
    async with panel.run_test(size=(120, 36)) as pilot:
        seen = await at(pilot, clock, 0.0)
        assert "of 10 prompts" in seen
        await pilot.press("space")
        assert "‖ A/B" in await at(pilot, clock, 50.0)
        await pilot.press("space", "plus")
        await shows(pilot, "playing  ×2")
        assert "■ A/B" in await at(pilot, clock, 150.0)
        await pilot.press("space")
        await shows(pilot, "▶ A/B")
        screen = shown_as(panel, PlaybackScreen)
        place = screen.place
        await pilot.press("right", "right", "left")
        assert screen.place == (place + 1) % 10
        await pilot.press("escape")
        await wait_for(pilot, lambda: panel.screen is panel.compare_screen)


async def test_it_is_opened_from_a_verdict(clock):
    identity, panel = begin_played(), app()
    async with panel.run_test(size=(120, 36)) as pilot:
        panel.show_experiment(identity)
        await wait_for(pilot, lambda: "▲ compile is faster" in text(panel))
        await pilot.press("p")
        await shows(pilot, "verdict on all prompts")
        await pilot.press("escape")
        await wait_for(pilot, lambda: panel.screen is panel.compare_screen)


async def test_hostile_answer_leaves_terminal_alone(clock):
    panel = opened(clock, text=lambda _arm: HOSTILE * 20)
    async with panel.run_test(size=(120, 36)) as pilot:
        seen = await at(pilot, clock, 99.0)
        assert "[/] [red]evil[/red] [@click=app.quit]x[/]" in seen
        assert not {"\x1b", "\x07", "\u202e"} & set(seen)


def moment(clock: Clock, seconds: float) -> Callable[[Pilot[str]], Awaitable[None]]:
    async def act(pilot: Pilot[str]) -> None:
        await at(pilot, clock, seconds)

    return act


def test_playing(snap_compare, clock):
    assert snap_compare(opened(clock), terminal_size=(120, 36), run_before=moment(clock, 3.0))
