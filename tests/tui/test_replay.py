"""The panel playing the shipped sample: the same screens with a clock of their own, and no server to touch."""

import pytest

from dflash_tui.monitoring import recording
from dflash_tui.monitoring.recording import Player
from dflash_tui.tui.app import DflashApp
from tests.tui.panel import NO_GPU, shows, text, wait_for, words
from tests.unit.monitoring.test_recording import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


def playing(clock: Clock, at: float = 0.0, speed: float = 1.0) -> DflashApp:
    player = Player(recording.find_recording("sample"), at=at, speed=speed, clock=clock)
    return DflashApp(player=player, probe=lambda: NO_GPU, load=dict)


async def caught_up(pilot) -> None:
    screen = pilot.app.replay_screen
    await wait_for(pilot, lambda: screen.is_active and not screen.player.behind)
    screen.view.draw()
    await pilot.pause()


async def test_it_says_replay_position_and_speed(clock):
    panel = playing(clock, at=150, speed=4.0)
    async with panel.run_test(size=(80, 24)) as pilot:
        await caught_up(pilot)
        await shows(pilot, "▶ REPLAY", "playing   ×4", "2:30 of 3:19", "sample", "● WARM", "smollm2-135m-instruct")
        for words in ("no GPU", "try n="):
            assert words not in text(panel)
        assert "Stop" not in text(panel)
        assert "Send prompts" not in text(panel)


async def test_keys_pause_seek_and_hurry(clock):
    panel = playing(clock)
    async with panel.run_test(size=(120, 36)) as pilot:
        await caught_up(pilot)
        await shows(pilot, "◐ STARTING")
        await pilot.press("space")
        await shows(pilot, "‖ REPLAY  paused")
        await pilot.press("end")
        await caught_up(pilot)
        await shows(pilot, "REPLAY  end")
        await pilot.press(*["left"] * 3)
        await caught_up(pilot)
        await shows(pilot, "● WARM", "3:04 of 3:19")
        await pilot.press("right", "plus", "plus", "minus")
        await caught_up(pilot)
        await shows(pilot, "paused    ×2  3:09 of 3:19")
        await pilot.press("home", "space")
        clock.at += 2
        await wait_for(pilot, lambda: "playing   ×2  4 s of 3:19" in text(panel))


async def test_space_after_end_starts_over(clock):
    panel = playing(clock, at=1e9)
    async with panel.run_test(size=(120, 36)) as pilot:
        await caught_up(pilot)
        await pilot.press("space")
        await caught_up(pilot)
        await shows(pilot, "playing   ×1  <1 s of 3:19", "STARTING")


async def test_replay_keys_never_reach_server(clock, monkeypatch):
    touched = []
    monkeypatch.setattr("dflash_tui.runs.lifecycle.stop_server", lambda *_: touched.append("stop"))
    monkeypatch.setattr("dflash_tui.runs.run.Run.record", lambda *_: touched.append("record"))
    monkeypatch.setattr("dflash_tui.benchmark.client.send_suite", lambda *_, **__: touched.append("prompts"))
    monkeypatch.setattr("dflash_tui.monitoring.recorder.record_when_free", lambda *_: touched.append("recorder"))
    panel = playing(clock, at=150)
    async with panel.run_test(size=(120, 36)) as pilot:
        await caught_up(pilot)
        await pilot.press("S", "b", "y", "a", "enter")
        await pilot.pause()
        assert panel.screen is panel.replay_screen
        assert not touched
        panel.action_stop()  # as from the palette
        await pilot.pause()
        assert not touched


async def test_replay_pauses_while_other_screen_is_open(clock):
    panel = playing(clock, at=150)
    async with panel.run_test(size=(120, 36)) as pilot:
        await caught_up(pilot)
        await pilot.press("1")
        assert panel.current_mode == "launch"
        clock.at += 5
        await pilot.press("2")
        await caught_up(pilot)
        await shows(pilot, "playing   ×1  2:30 of 3:19")
        await pilot.press("space", "question_mark", "escape")
        await caught_up(pilot)
        await shows(pilot, "paused    ×1  2:30 of 3:19")


async def test_truncated_recording_is_reported(clock, tmp_path):
    folder = recording.find_recording("sample").folder
    for part in folder.iterdir():
        (tmp_path / part.name).write_bytes(part.read_bytes())
    found = recording.read_recording(tmp_path)
    panel = DflashApp(player=Player(found, at=60, clock=clock), probe=lambda: NO_GPU, load=dict)
    (tmp_path / "server.log").unlink()
    (tmp_path / "server.log").mkdir()
    async with panel.run_test(size=(120, 36)) as pilot:
        await wait_for(pilot, lambda: panel.replay_screen.view.error is not None)
        await pilot.press("right", "left", "end", "space")
        panel.replay_screen.view.draw()
        await wait_for(pilot, lambda: f"{tmp_path} cannot be read" in words(panel))
