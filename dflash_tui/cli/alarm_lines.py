"""Alarms as lines of text or JSON: each when it begins and when it is over."""

from __future__ import annotations

import asyncio
import time

from dflash_tui.cli.console import print_data, print_status
from dflash_tui.common.formatting import format_duration
from dflash_tui.events import Event, encode
from dflash_tui.run_state.alarms import Alarm, find_alarms
from dflash_tui.run_state.state import RunState

INTERVAL = 1.0


class Alarmed(Event, frozen=True, tag="alarm"):
    """Something is wrong with the server since `since`, or, when `over`, is no more."""

    kind: str
    since: float
    what: str
    evidence: str
    do: str
    over: bool = False


async def print_alarms(state: RunState, *, as_json: bool) -> None:
    """Print the alarms of `state` as they come and go, for ever."""
    told = AlarmLines(state, as_json=as_json)
    while True:
        told.refresh(time.time())
        await asyncio.sleep(INTERVAL)


class AlarmLines:
    """Says which alarms of `state` have come and gone since it looked last."""

    def __init__(self, state: RunState, *, as_json: bool) -> None:
        self._state, self._json = state, as_json
        self._known: dict[str, Alarm] = {}

    def refresh(self, now: float) -> None:
        """Print what is new at `now`; an alarm that had its say is not repeated."""
        there = {alarm.kind: alarm for alarm in find_alarms(self._state, now)}
        for kind, alarm in {**self._known, **there}.items():
            if (kind in self._known) is not (kind in there):
                _say(alarm, now, over=kind in self._known, as_json=self._json)
        self._known = there


def _say(alarm: Alarm, now: float, *, over: bool, as_json: bool) -> None:
    if as_json:
        print_data(encode(Alarmed(now, *alarm, over=over)).decode())
    elif over:
        print_status(f"✓ {alarm.kind}: over after {format_duration(now - alarm.since)}")
    else:
        print_status(f"! {alarm.kind}: {alarm.what}: {alarm.evidence}\n  → {alarm.hint}")
