"""What is said of a watched server: its first request, its alarms, each once when it comes and once when it is over."""

import asyncio
import contextlib
import time
from collections.abc import Callable

import pytest

from dflash_tui.cli import event_lines
from dflash_tui.events import Launched, Suspended
from dflash_tui.run_state.state import RunState
from tests.support.waiting import until


async def _announced(printed: Callable[[], str]) -> list[str]:
    """Suspend a server, see that again, resume it; return the lines of what is `printed` anew whenever it is called."""
    state, said = RunState(), ""
    state.apply(Launched(0.0, "run", "toy", 1, 8000, "eager"))

    def has(word: str) -> bool:
        nonlocal said
        said += printed()
        return word in said

    task = asyncio.create_task(event_lines.AlarmLines(state).print_for_ever())
    state.apply(Suspended(time.time(), (4711,)))
    await until(lambda: has("4711"))
    state.apply(Suspended(time.time(), (4711,)))
    await asyncio.sleep(0.1)  # nothing is to come of it
    state.apply(Suspended(time.time(), ()))
    await until(lambda: has("✓"))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return (said + printed()).splitlines()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Look more often than once a second."""
    monkeypatch.setattr(event_lines, "ALARM_INTERVAL", 0.02)


async def test_lines(capsys, snapshot):
    first, hint, over = await _announced(lambda: capsys.readouterr().err)
    assert first == snapshot
    assert hint.endswith("kill -CONT 4711")
    assert over.startswith("✓ hang: ")
