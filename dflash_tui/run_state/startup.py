"""How a server comes up, folded from its events: phases, facts, compiling, and its first request. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from dflash_tui.events import (
    WARM_UP,
    Activity,
    Compiled,
    Health,
    HealthChanged,
    Noted,
    Phase,
    PhaseStarted,
    Progressed,
    RequestDone,
)

_MAX_ACTIVITIES = 30
_MAX_FACTS_PER_NAME = 4
StartupEvent = PhaseStarted | Progressed | Noted | Compiled | HealthChanged | RequestDone | Activity


class PhaseSpan(NamedTuple):
    """A start-up phase: when it first began, its seconds so far in all, and whether the server is past it now."""

    phase: Phase
    began: float
    seconds: float
    over: bool


@dataclass
class Startup:
    """One start; `take` is the only thing that changes it.

    `compiled` holds the seconds of each step by part of the model (None when the log does not say), `facts` what the
    server uses in its own words, `bars` the last state of each progress bar. `healthy_at` is the first 200 of
    /health, `first` the first request: the first that succeeded, or until then the last that failed.
    """

    spells: list[PhaseStarted] = field(default_factory=list)
    bars: dict[tuple[Phase, str], Progressed] = field(default_factory=dict)
    facts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    compiled: dict[str, dict[str, float | None]] = field(default_factory=dict)
    activities: deque[Activity] = field(default_factory=lambda: deque(maxlen=_MAX_ACTIVITIES))
    healthy_at: float | None = None
    first: RequestDone | None = None

    def take(self, event: StartupEvent) -> None:
        """Take one event."""
        match event:
            case PhaseStarted():
                self.spells.append(event)
            case Progressed(phase=phase, what=what):
                self.bars[phase, what] = event
            case Noted(name=name, text=text):
                known = self.facts.get(name, ())
                if text not in known and len(known) < _MAX_FACTS_PER_NAME:
                    self.facts[name] = (*known, text)
            case Compiled(part=part, step=step, seconds=seconds):
                self.compiled.setdefault(part, {})[step] = seconds
            case HealthChanged(health=Health.HEALTHY | Health.WARM, at=at) if self.healthy_at is None:
                self.healthy_at = at
            case RequestDone(kind=kind) if kind == WARM_UP and (self.first is None or self.first.error):
                self.first = event
            case Activity():
                self.activities.append(event)
            case _:
                pass

    @property
    def now(self) -> Phase | None:
        """The phase that was entered last, or None before the launch."""
        return self.spells[-1].phase if self.spells else None

    @property
    def up_at(self) -> float | None:
        """When the log said that the server serves, or None; it may still fail on its first request."""
        return next((spell.at for spell in self.spells if spell.phase is Phase.UP), None)

    @property
    def ready_at(self) -> float | None:
        """When the server was up and had generated once, or None.

        Counted as the time of being up and the first request's own seconds, since that may have been sent later.
        """
        first = self.first
        return self.up_at + first.total if self.up_at is not None and first and not first.error else None

    @property
    def cache(self) -> str:
        """What torch.compile found: `cached`, `partly cached`, `recompiled`, `cold`; empty while nothing tells."""
        steps = {step for part in self.compiled.values() for step in part}
        if "again" in steps:
            return "recompiled"
        if "loaded" in steps:
            return "partly cached" if "inductor" in steps else "cached"
        return "cold" if steps & {"inductor", "saved"} else ""

    def spans(self, now: float, ended: float | None = None) -> list[PhaseSpan]:
        """Return the phases in the order they first occurred, unattributed time last.

        The last one lasts until the server is up, until it `ended`, or until `now`.
        """
        last_end = self.up_at if self.up_at is not None else ended
        marks = [spell for spell in self.spells if spell.phase is not Phase.UP]
        found: dict[Phase, PhaseSpan] = {}
        for index, spell in enumerate(marks):
            end = marks[index + 1].at if index + 1 < len(marks) else last_end
            seconds = max(0.0, (now if end is None else end) - spell.at)
            before = found.get(spell.phase)
            began, so_far = (before.began, before.seconds) if before else (spell.at, 0.0)
            found[spell.phase] = PhaseSpan(spell.phase, began, so_far + seconds, end is not None)
        return sorted(found.values(), key=lambda span: span.phase is Phase.UNATTRIBUTED)
