"""Pictures of the main screens. Everything that moves by itself is held still; update with `--snapshot-update`."""

from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot

from dflash_tui.common.errors import DflashError, RecipeError
from dflash_tui.events import AnyEvent, Counters, HealthChanged, MemorySampled, ProcessorsSampled, Sampled
from dflash_tui.monitoring import recording
from dflash_tui.monitoring.recording import Player
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.tui.app import DflashApp
from dflash_tui.tui.screens import launch
from tests.tui.conftest import a_recipe, a_run
from tests.tui.panel import NO_GPU, app, feed, shows, wait_for

pytest.importorskip("pytest_textual_snapshot")
pytestmark = pytest.mark.usefixtures("no_folders")


@pytest.fixture(autouse=True)
def fixed(monkeypatch):
    monkeypatch.setattr(launch, "__version__", "0.0.0")


def fed(events: list[AnyEvent], theme: str = "") -> Callable[[Pilot[str]], Awaitable[None]]:
    async def act(pilot: Pilot[str]) -> None:
        await feed(pilot, a_run(), events)
        if theme:
            pilot.app.theme = theme
            await pilot.pause()

    return act


def test_launch(snap_compare):
    entries: dict[str, Recipe | DflashError] = {
        "toy": a_recipe(),
        "gemma-4-31b-it-dflash-nvfp4": a_recipe(name="gemma", synthetic="", title="A recipe with a long name"),
        "mine": RecipeError("mine.yaml:4: port: expected a number"),
    }

    async def act(pilot):
        await wait_for(pilot, lambda: pilot.app.launch_screen.choice.probe is not None)
        await pilot.pause()

    assert snap_compare(app(entries), terminal_size=(120, 36), run_before=act)


def test_starting(snap_compare, starting):
    assert snap_compare(app(now=starting[1]), terminal_size=(120, 36), run_before=fed(starting[0]))


def test_live(snap_compare, live):
    assert snap_compare(app(now=live[1]), terminal_size=(120, 36), run_before=fed(live[0]))


def at_rest(live, *, cpu: bool) -> tuple[list[AnyEvent], float]:
    """Return a server that is ready and was asked nothing, with the processors that it keeps busy or without."""
    events, _ = live
    warm = next(event.at for event in events if isinstance(event, HealthChanged))
    events = [event for event in events if event.at <= warm and not isinstance(event, Sampled)]
    for second in range(60):
        events.append(Sampled(warm + second, Counters(8.0, 20.0, 3.0, 21.0, 5.0, (1.0,) * 7)))
        events.append(MemorySampled(warm + second, 700 << 20, 8 << 30, "resident"))
        events += [ProcessorsSampled(warm + second, 0.1 + second % 20 / 12, 2, 37)] if cpu else []
    return events, warm + 60


def test_ready_and_not_asked(text_compare, live):
    events, now = at_rest(live, cpu=True)
    assert text_compare(app(now=now), terminal_size=(60, 20), run_before=fed(events))


def test_log_wrapped(text_compare, live):
    async def act(pilot: Pilot[str]) -> None:
        await feed(pilot, a_run(), live[0])
        await pilot.press("l", "w")
        await shows(pilot, "36 routes; z opens", "w Wrap")
        await pilot.pause(0.2)

    assert text_compare(app(now=live[1]), terminal_size=(80, 24), run_before=act)


def test_live_80x24(text_compare, live):
    assert text_compare(app(now=live[1]), terminal_size=(80, 24), run_before=fed(live[0]))


def test_failure(snap_compare, failed):
    assert snap_compare(app(now=failed[1]), terminal_size=(120, 36), run_before=fed(failed[0]))


def sample(at: float) -> DflashApp:
    """Return a panel that stands in the shipped recording, so many seconds after its launch."""
    player = Player(recording.find_recording("sample"), at=at, clock=lambda: 0.0)
    return DflashApp(player=player, probe=lambda: NO_GPU, load=dict)


async def caught_up(pilot: Pilot[str]) -> None:
    assert isinstance(pilot.app, DflashApp)
    screen = pilot.app.replay_screen
    await wait_for(pilot, lambda: screen.is_active and screen.player is not None and not screen.player.behind)
    for _ in range(2):  # the first drawing gives the charts their size
        screen.view.draw()
        await pilot.pause()


def test_replay(snap_compare):
    assert snap_compare(sample(190), terminal_size=(120, 36), run_before=caught_up)


def test_too_small(text_compare):
    assert text_compare(app(), terminal_size=(50, 12))
