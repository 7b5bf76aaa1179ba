"""The list of runs and the palette: switching between living runs, ended ones and the sample."""

import subprocess
import sys

import msgspec
import pytest
from textual.widgets import OptionList

from dflash_tui.events import Exited, Stopping
from dflash_tui.machine import processes
from dflash_tui.monitoring import recording
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.runs import RunList, list_run_rows, render_run_rows
from tests.support import recordings
from tests.tui.conftest import HOSTILE, a_recipe, a_run
from tests.tui.panel import app, text, wait_for

LOG = recordings.raw("cpu-vllm-0.32.0/dflash_compile_cold")


def written(name: str, after: float, *events, **changes) -> Run:
    """Write the folder of an ended run that was launched `after` seconds after the others' launch."""
    run = msgspec.structs.replace(a_run(**changes), id=name, started_at=a_run().started_at + after)
    run.folder.mkdir(parents=True)
    (run.folder / "run.json").write_bytes(msgspec.json.encode(run))
    run.log.write_bytes(LOG)
    for event in events:
        run.record(event)
    return run


@pytest.fixture
def living():
    """A run whose process lives in a session of its own."""
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    process = subprocess.Popen(argv, start_new_session=True)
    run = written("20261121-020000-toy", 3600)
    run = msgspec.structs.replace(run, pid=process.pid, born=processes.read_process_identity(process.pid))
    (run.folder / "run.json").write_bytes(msgspec.json.encode(run))
    yield run
    process.kill()
    process.wait()


@pytest.fixture
def ended() -> list[Run]:
    at = a_run().started_at + 300
    return [
        written("20261121-012400-stopped", 0, Stopping(at), Exited(at + 1, 0)),
        written("20261121-012401-died", 1, Exited(at, 1)),
        written("20261121-012402-ended", 2, recipe=HOSTILE),
    ]


def test_runs_are_listed_with_how_they_stand(living, ended):
    rows = list_run_rows(living.started_at + 60)
    assert [row.status for row in rows] == ["running", "exited", "failed", "stopped", "sample"]
    assert rows[0].seconds == 60
    assert 300 < rows[3].seconds < 400
    line = render_run_rows(rows, 110)[0].plain
    for words in ("● running", " toy ", "eager", ":8000", "1:00", "11-21 02:24", "CPU"):
        assert words in line
    again = rows[0]._replace(run=msgspec.structs.replace(living, restarted_from=rows[1].run.id))
    assert " ↻ toy " in render_run_rows([again], 110)[0].plain
    assert all(len(line) <= 70 for line in render_run_rows([*rows, again], 70))


async def chosen(pilot, index: int) -> None:
    """Open the list and take its row `index`."""
    await pilot.press("r")
    await wait_for(pilot, lambda: isinstance(pilot.app.screen, RunList) and pilot.app.screen.rows.option_count > 0)
    pilot.app.screen.query_one(OptionList).highlighted = index
    await pilot.press("enter")
    await pilot.pause()


async def test_broken_run_record_is_listed_last(ended):
    """With its reason; it cannot be chosen."""
    (ended[0].folder / "run.json").write_text("{")
    panel = app({"toy": a_recipe()})
    async with panel.run_test(size=(120, 36)) as pilot:
        await pilot.press("r")
        await wait_for(pilot, lambda: f"✗ {ended[0].id}  its run.json cannot be read" in text(panel))
        await pilot.press("up")  # from the first to the last that can be chosen, the sample
        assert panel.screen.query_one(OptionList).highlighted == len(ended) - 1


async def test_run_list_opens_live_ended_and_shipped(living, ended):
    panel = app({"toy": a_recipe()}, now=living.started_at + 60)
    async with panel.run_test(size=(120, 36)) as pilot:
        await chosen(pilot, 0)
        await wait_for(pilot, lambda: panel.screen is panel.run_screen)
        assert panel.run_screen.view.run == living
        await chosen(pilot, 3)
        await wait_for(pilot, lambda: panel.screen is panel.replay_screen and panel.replay_screen.player is not None)
        assert panel.replay_screen.player
        assert panel.replay_screen.player.recording.id == ended[0].id
        await wait_for(pilot, lambda: "■ STOPPED" in text(panel))
        await chosen(pilot, 4)
        await wait_for(pilot, lambda: "sample" in text(panel))
        assert panel.run_screen.view.run == living  # watched all the while
        await pilot.press("2")
        assert panel.screen is panel.run_screen


async def test_a_run_is_exported_from_the_list(ended, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    panel = app()
    async with panel.run_test(size=(120, 36)) as pilot:
        await pilot.press("r")
        await wait_for(pilot, lambda: isinstance(panel.screen, RunList) and bool(panel.screen.rows))
        await pilot.press("x")
        path = tmp_path / f"{ended[2].id}.zip"
        await wait_for(pilot, path.exists)
        assert recording.read_recording(path).id == ended[2].id
        await pilot.press("x")
        await wait_for(pilot, lambda: "already exists" in text(panel))


@pytest.mark.parametrize(("typed", "found"), [("recipe toy", "Recipe: toy"), ("died", "Run: 20261121-012401-died")])
async def test_the_palette_finds_recipes_and_runs(ended, typed, found):
    panel = app({"other": a_recipe(name="other", title=HOSTILE), "toy": a_recipe()})
    async with panel.run_test(size=(120, 36)) as pilot:
        await pilot.press("ctrl+p", *"other")
        await wait_for(pilot, lambda: HOSTILE in text(panel))
        await pilot.press("escape", "ctrl+p", *["space" if letter == " " else letter for letter in typed])
        await wait_for(pilot, lambda: found in text(panel))
        await pilot.press("down", "enter")
        await wait_for(pilot, lambda: not panel.screen.is_modal)
        if "toy" in found:
            assert panel.launch_screen.query_one("#recipes", OptionList).highlighted == 1
        else:
            assert panel.screen is panel.replay_screen
