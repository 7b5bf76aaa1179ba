"""The panel and real run folders: attach, replay, leave, stop. The process is real, what it logs is recorded."""

import asyncio
import re
import subprocess
import sys
import time

import msgspec
import pytest
from textual.widgets import Input

from dflash_tui.launch import recipe_trust
from dflash_tui.machine import processes
from dflash_tui.planning.recipes.recipe import EngineSpec, ModelBuild, Recipe
from dflash_tui.presentation.client_text import Endpoint, format_endpoint
from dflash_tui.runs import server_process
from dflash_tui.runs.run import Run
from dflash_tui.tui.app import DflashApp, format_farewell
from dflash_tui.tui.dialogs.basic import Confirm
from dflash_tui.tui.dialogs.doctor import Doctor
from dflash_tui.tui.screens.run import RunScreen
from tests.support import recordings
from tests.support.fake_runs import free_port
from tests.support.values import present
from tests.tui.conftest import a_recipe, a_run, five_requests, traffic
from tests.tui.panel import NO_GPU, app, shows, text, wait_for

BUILD = ModelBuild("build_demo_pair.py", 2)
LOG = recordings.raw("cpu-vllm-0.32.0/dflash_compile_cold").split(b"Shutting down")[0]


def written(run: Run, log: bytes = LOG) -> Run:
    """Write the folder of `run`, as a launch and a recorder would have."""
    run.folder.mkdir(parents=True)
    (run.folder / "run.json").write_bytes(msgspec.json.encode(run))
    run.log.write_bytes(log)
    for event in (*traffic(run.started_at + 90, 60), *five_requests(run.started_at + 140)):
        run.record(event)
    return run


def a_trusted_recipe(**changes) -> Recipe:
    """Return a recipe that is not shipped, and may be launched."""
    recipe = a_recipe(**changes)
    recipe_trust.trust_contents(recipe)
    return recipe


@pytest.fixture
def running():
    """A run whose process lives in a session of its own, as a server does."""
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    process = subprocess.Popen(argv, start_new_session=True)
    run = a_run(process.pid, processes.read_process_identity(process.pid), port=free_port(18_000))
    yield written(run)
    process.kill()
    process.wait()


async def test_panel_lists_attaches_and_leaves_running_server(running):
    panel = app({"toy": a_recipe(build=BUILD)}, now=running.started_at + 150)
    async with panel.run_test(size=(120, 36)) as pilot:
        await wait_for(pilot, lambda: "● toy" in text(panel))
        await pilot.press("w")
        await wait_for(pilot, lambda: "LongCode" in text(panel))
        assert isinstance(panel.screen, RunScreen)
        assert {f"{running.url}/v1", "model toy"} <= set(re.split("  | · ", text(panel).splitlines()[0]))
        await pilot.press("y")
        await pilot.pause()
        assert panel.clipboard.startswith(f"curl -N {running.url}/v1/chat/completions")
        await pilot.press("q")
    assert server_process.is_alive(running)
    assert panel.return_value == (
        f"toy keeps running on 127.0.0.1:{running.plan.port}\n"
        f"  watch: dflash-tui attach {running.id}\n"
        f"  log:   dflash-tui logs {running.id} -f\n"
        f"  stop:  dflash-tui stop {running.id}\n"
        f"  use:   {format_endpoint(Endpoint.from_run(running))}"
    )


async def test_live_key_watches_newest_server(running):
    """By `2`, which is the live screen."""
    panel = DflashApp(probe=lambda: NO_GPU, load=dict)
    async with panel.run_test(size=(120, 36)) as pilot:
        await wait_for(pilot, lambda: bool(panel.launch_screen.running))
        await pilot.press("2")
        await wait_for(pilot, lambda: isinstance(panel.screen, RunScreen) and panel.run_screen.view.run == running)


async def test_stop_asks_and_only_yes_stops(running):
    panel = DflashApp(run=running, now=time.time, probe=lambda: NO_GPU, load=dict)
    async with panel.run_test(size=(120, 36)) as pilot:
        await wait_for(pilot, lambda: "LongCode" in text(panel))
        await pilot.press("S")
        await wait_for(pilot, lambda: isinstance(panel.screen, Confirm))
        await pilot.press("n")
        assert server_process.is_alive(running)
        await pilot.press("S")
        await wait_for(pilot, lambda: isinstance(panel.screen, Confirm))
        await pilot.press("y")
        await wait_for(pilot, lambda: panel.current_mode == "launch")
        await shows(pilot, "toy has stopped")
        assert panel.run_screen.view.state.status in {"stopping", "stopped"}
    assert not server_process.is_alive(running)
    assert format_farewell([]) == ""
    further = format_farewell([msgspec.structs.replace(running, plan=msgspec.structs.replace(running.plan, rank=1))])
    assert ("rank 1" in further, running.id in further, f":{running.plan.port}" in further) == (True, True, False)


async def test_launching_beside_a_server_asks_first(running):
    panel = app({"toy": a_trusted_recipe(build=BUILD)}, now=running.started_at + 150)
    async with panel.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        await pilot.press("enter")
        await wait_for(pilot, lambda: isinstance(panel.screen, Confirm) and f":{running.plan.port}" in text(panel))
        await shows(pilot, running.plan.recipe)
        await pilot.press("n")
        assert not panel.preparing
        assert panel.current_mode == "launch"


async def insist(pilot, reason: str) -> None:
    """Launch although a check fails."""
    await pilot.press("F", *reason, "enter")


async def test_failed_checks_stop_launch_unless_forced():
    panel = app({"toy": a_trusted_recipe(engine=huge(), build=BUILD)}, now=time.time())
    async with panel.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        await pilot.press("enter")
        await shows(pilot, "✗ disk: 1800000.0 GB to write", "it would not start", "free some space")
        await pilot.press("F", "enter")  # no reason, no launch
        await shows(pilot, "write why you launch")
        assert isinstance(panel.screen, Doctor)
        await insist(pilot, "why")
        await shows(pilot, "not enough disk space", "✗ FAILED", "XDG_DATA_HOME")
        await pilot.press("q")
    assert panel.return_value == ""


async def test_keyless_open_launch_cannot_be_forced(monkeypatch):
    """A server that others reach has a key; F is not offered, and does nothing."""
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    recipe = a_recipe(engine=huge(), build=BUILD)
    panel = app({"toy": recipe}, now=time.time())
    async with panel.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        choice = panel.launch_screen.choice
        choice.change_request(recipe, msgspec.structs.replace(choice.request(recipe), settings={"host": "0.0.0.0"}))
        await pilot.press("enter")
        await shows(pilot, "✗ disk: 1800000.0 GB to write", "✗ key:", "export VLLM_API_KEY")
        await pilot.press("F")
        await pilot.pause()
        assert isinstance(panel.screen, Doctor)
        assert not panel.screen.query_one(Input).display
        assert " F " not in text(panel)


async def test_a_taken_port_is_moved_and_said():
    listener = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    taken = listener.sockets[0].getsockname()[1]
    panel = app({"toy": a_trusted_recipe(engine=huge(), build=BUILD, port=taken)}, now=time.time())
    async with panel.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        await pilot.press("enter")
        said = f"port {taken} is taken"
        await wait_for(pilot, lambda: "it would not start" in text(panel))
        await insist(pilot, "why")
        await shows(pilot, said)
        await wait_for(pilot, lambda: "not enough disk" in text(panel))
        assert panel.run_screen.view.plan is not None
        assert panel.run_screen.view.plan.port != taken
    listener.close()


def huge() -> EngineSpec:
    """Return an engine that no disk holds."""
    engine = present(a_recipe().engine)
    return msgspec.structs.replace(engine, download_mb=900_000_000, disk_mb=900_000_000)
