"""Alarms of a watched server as lines and as JSON: each once when it comes and once when it is over."""

import asyncio
import contextlib
import json
import time

import pytest

from dflash_tui.cli import event_lines
from dflash_tui.events import Launched, Suspended
from dflash_tui.run_state.state import RunState


async def _announced(as_json: bool) -> None:
    state = RunState()
    state.apply(Launched(0.0, "run", "toy", 1, 8000, "eager"))
    task = asyncio.create_task(event_lines.print_alarms(state, as_json=as_json))
    for pids in ((4711,), (4711,), ()):
        state.apply(Suspended(time.time(), pids))
        await asyncio.sleep(0.1)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Look more often than once a second."""
    monkeypatch.setattr(event_lines, "ALARM_INTERVAL", 0.02)


async def test_lines(capsys):
    await _announced(as_json=False)
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("! hang: the server is suspended by a signal")
    assert said[1] == "  → resume it: kill -CONT 4711"
    assert said[2].startswith("✓ hang: over after")
    assert len(said) == 3


async def test_json(capsys):
    await _announced(as_json=True)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(event["event"], event["kind"], event["over"]) for event in events] == [
        ("alarm", "hang", False),
        ("alarm", "hang", True),
    ]
