"""Two panels and a watcher without a screen on one run: they agree, and whichever is killed the others go on."""

import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from dflash_tui.benchmark import client
from dflash_tui.benchmark.server import Server
from dflash_tui.events import RequestDone, Sampled, decode_recorded
from dflash_tui.runs import server_process
from dflash_tui.runs.run import Run
from tests.support.fake_runs import recorded, watching
from tests.support.pty_terminal import Terminal
from tests.support.waiting import until

STEPS = 2  # of a request for 8 tokens


def read_holder(run: Run) -> int:
    """Return the pid of who records; 0 when nobody does."""
    try:
        return int((run.folder / "recorder").read_text().partition("-")[0])
    except (OSError, ValueError):
        return 0


def read_steps(run: Run) -> float:
    readings = recorded(run, Sampled) if run.samples.exists() else []
    return (readings[-1].counters.steps or 0) if readings else 0


async def goes_on_after_a_request(run: Run, panels: list[Terminal], before: float) -> None:
    """Send a request; somebody records it, and the panels that live read on from their terminals."""
    assert not (await client.send_first_request(Server(run.url, "x"))).error

    def has_it() -> bool:
        for panel in panels:
            panel.read(0.01)
        return read_steps(run) == before + STEPS

    await until(has_it)


@pytest.mark.long
@pytest.mark.parametrize("last", ["a panel", "the watcher"])
async def test_surviving_observers_agree_after_kill(launch, terminal, tmp_path, last):
    """Each reading is there once, no counter falls, one first request is sent; the watcher tells what is recorded."""
    run, told = launch(), tmp_path / "told"
    with told.open("wb") as out:
        command = [sys.executable, "-m", "dflash_tui", "attach", run.id, "--json"]
        watcher = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    panels: list[Terminal] = [terminal("attach", run.id) for _ in range(2)]
    try:
        for panel in panels:
            panel.until(b"WARM")
        await until(lambda: read_steps(run) == STEPS)
        await goes_on_after_a_request(run, panels, STEPS)
        for panel in panels:
            panel.until(b"4.00")  # three accepted of seven drafted in each step, and the bonus token
        for _ in range(2):
            holder = read_holder(run)
            living = {panel.pid: panel for panel in panels}
            spared = watcher.pid if last == "the watcher" else panels[-1].pid
            others = {*living, *([watcher.pid] if watcher.returncode is None else [])} - {spared}
            victim = holder if holder in others else min(others)
            before = read_steps(run)
            if victim == watcher.pid:
                watcher.kill()
                watcher.wait()
            else:
                os.kill(victim, signal.SIGKILL)
                panels.remove(living[victim])
            await goes_on_after_a_request(run, panels, before)
            assert server_process.is_alive(run)
        await agrees(run, told, whole=last == "the watcher")
    finally:
        watcher.kill()
        watcher.communicate()


async def agrees(run: Run, told: Path, *, whole: bool) -> None:
    """Compare what is recorded, what the watcher told, and what somebody sees who comes now."""
    readings = recorded(run, Sampled)
    assert all(one.at < other.at for one, other in pairwise(readings))
    assert all((one.counters.steps or 0) <= (other.counters.steps or 0) for one, other in pairwise(readings))
    assert len([done for done in recorded(run, RequestDone) if done.kind == "warm-up"]) == 1

    def list_told() -> list[Sampled]:
        events = [decode_recorded(line) for line in told.read_bytes().splitlines()]
        return [event for event in events if isinstance(event, Sampled)]

    if whole:
        await until(lambda: len(list_told()) >= len(readings))
    assert list_told() == recorded(run, Sampled)[: len(list_told())]
    async with watching(run) as state:
        await until(
            lambda: len(state.readings) >= 1 and state.readings[-1].counters.steps == readings[-1].counters.steps
        )
