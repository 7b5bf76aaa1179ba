"""What is said of a watched server: its first request, its alarms, each once when it comes and once when it is over."""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable

import pytest

from dflash_tui.cli import event_lines
from dflash_tui.events import LONG_WARM_UP, WARM_UP, Launched, RequestDone, Suspended
from dflash_tui.run_state.state import RunState
from tests.support.waiting import until


async def _announced(as_json: bool, printed: Callable[[], str]) -> list[str]:
    """Suspend a server, see that again, resume it; return the lines of what is `printed` anew whenever it is called."""
    state, said = RunState(), ""
    state.apply(Launched(0.0, "run", "toy", 1, 8000, "eager"))

    def has(word: str) -> bool:
        nonlocal said
        said += printed()
        return word in said

    task = asyncio.create_task(event_lines.AlarmLines(state, as_json=as_json).print_for_ever())
    state.apply(Suspended(time.time(), (4711,)))
    await until(lambda: has("4711"))
    state.apply(Suspended(time.time(), (4711,)))
    await asyncio.sleep(0.1)  # nothing is to come of it
    state.apply(Suspended(time.time(), ()))
    await until(lambda: has('"over":true' if as_json else "✓"))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return (said + printed()).splitlines()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Look more often than once a second."""
    monkeypatch.setattr(event_lines, "ALARM_INTERVAL", 0.02)


async def test_lines(capsys, snapshot):
    first, hint, over = await _announced(False, lambda: capsys.readouterr().err)
    assert first == snapshot
    assert hint.endswith("kill -CONT 4711")
    assert over.startswith("✓ hang: ")


async def test_json(capsys):
    events = [json.loads(line) for line in await _announced(True, lambda: capsys.readouterr().out)]
    assert [(event["event"], event["kind"], event["over"]) for event in events] == [
        ("alarm", "hang", False),
        ("alarm", "hang", True),
    ]


@pytest.mark.parametrize(("seconds", "took"), [(0.0483, "48.3 ms"), (0.1, "0.1 s"), (12.34, "12.3 s")])
def test_the_first_request_takes_more_than_nothing(seconds, took, capsys):
    event_lines.EventLines(RunState(), as_json=False).show(RequestDone(0.0, WARM_UP, total=seconds))
    assert capsys.readouterr().err.strip().partition("took ")[2] == took


@pytest.mark.parametrize(("tokens", "named"), [(305, True), (0, False)])
def test_a_longer_prompt_is_named_by_its_tokens_where_the_server_says_them(tokens, named, capsys):
    event_lines.EventLines(RunState(), as_json=False).show(
        RequestDone(0.0, LONG_WARM_UP, prompt_tokens=tokens, total=0.5)
    )
    line = capsys.readouterr().err
    assert (f"{tokens} tokens" in line, "0.5 s" in line) == (named, True)
