"""Alarms as lines of text or JSON: each when it begins and when it is over."""

from __future__ import annotations

import asyncio
import time

from dflash_tui import text
from dflash_tui.commands import note, out
from dflash_tui.core.alarms import Alarm, alarms
from dflash_tui.core.events import Event, encode
from dflash_tui.core.state import RunState

_INTERVAL = 1.0


class Alarmed(Event, frozen=True, tag="alarm"):
    """Something is wrong with the server since `since`, or, when `over`, is no more."""

    kind: str
    since: float
    what: str
    evidence: str
    do: str
    over: bool = False


async def announce(state: RunState, *, as_json: bool) -> None:
    """Print the alarms of `state` as they come and go, for ever."""
    known: dict[str, Alarm] = {}
    while True:
        now = time.time()
        there = {alarm.kind: alarm for alarm in alarms(state, now)}
        for kind, alarm in {**known, **there}.items():
            if (kind in known) is not (kind in there):
                _say(alarm, now, over=kind in known, as_json=as_json)
        known = there
        await asyncio.sleep(_INTERVAL)


def _say(alarm: Alarm, now: float, *, over: bool, as_json: bool) -> None:
    if as_json:
        out(encode(Alarmed(now, *alarm, over=over)).decode())
    elif over:
        note(f"✓ {alarm.kind}: over after {text.duration(now - alarm.since)}")
    else:
        note(f"! {alarm.kind}: {alarm.what}: {alarm.evidence}\n  → {alarm.do}")
