"""The start of one server, folded from its events: phases, facts, compilation, and the first request. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from dflash_tui.events import (
    GREEDY_WARM_UP,
    LONG_WARM_UP,
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
    """A phase of a start: when it first began, its seconds in total so far, and whether it is finished."""

    phase: Phase
    began: float
    seconds: float
    finished: bool


@dataclass
class Startup:
    """The start of one server; only `apply` changes it. Times are in seconds since the epoch."""

    phase_changes: list[PhaseStarted] = field(default_factory=list)
    """Each time a phase was entered; a phase may be entered more than once."""
    progress_bars: dict[tuple[Phase, str], Progressed] = field(default_factory=dict)
    """The latest state of each progress bar, by phase and label."""
    facts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What the server uses, in its own words: attention backend, sampler, model runner …"""
    compiled: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """The seconds of each step of torch.compile by part of the model; None when the log does not say."""
    activities: deque[Activity] = field(default_factory=lambda: deque(maxlen=_MAX_ACTIVITIES))
    """The latest samples of CPU time, disk bytes and log size."""
    healthy_at: float | None = None
    """When /health first answered 200."""
    first_request: RequestDone | None = None
    """The first request that succeeded, or until then the last one that failed."""
    greedy_request: RequestDone | None = None
    """The last greedy request before it; None where none was sent."""
    long_seconds: float = 0.0
    """What the longer prompts between the two took."""

    @property
    def samplers(self) -> tuple[str, ...]:
        """What the server says that it samples with; nothing where that is PyTorch."""
        return self.facts.get("sampler", ())

    def apply(self, event: StartupEvent) -> None:
        """Update the start by one event; events of other kinds change nothing."""
        match event:
            case PhaseStarted():
                self.phase_changes.append(event)
            case Progressed(phase=phase, what=what):
                self.progress_bars[phase, what] = event
            case Noted(name=name, text=text):
                texts = self.facts.get(name, ())
                if text not in texts and len(texts) < _MAX_FACTS_PER_NAME:
                    self.facts[name] = (*texts, text)
            case Compiled(part=part, step=step, seconds=seconds):
                self.compiled.setdefault(part, {})[step] = seconds
            case HealthChanged(health=Health.HEALTHY | Health.WARM, at=at) if self.healthy_at is None:
                self.healthy_at = at
            case RequestDone():
                self._take_request(event)
            case Activity():
                self.activities.append(event)
            case _:
                pass

    def _take_request(self, done: RequestDone) -> None:
        if self.first_request is None or self.first_request.error:
            if done.kind == GREEDY_WARM_UP:
                self.greedy_request, self.long_seconds = done, 0.0
            elif done.kind == LONG_WARM_UP:
                self.long_seconds += done.total
            elif done.kind == WARM_UP:
                self.first_request = done

    @property
    def phase(self) -> Phase | None:
        """The phase that was entered last, or None before the launch."""
        return self.phase_changes[-1].phase if self.phase_changes else None

    @property
    def up_at(self) -> float | None:
        """When the log said that the server is up, or None; it may still fail on its first request."""
        return next((change.at for change in self.phase_changes if change.phase is Phase.UP), None)

    @property
    def ready_at(self) -> float | None:
        """When the server was up and had generated once, or None.

        Counted as the time of being up and the first requests' own seconds, since those may have been sent later.
        """
        if self.up_at is None or self.first_request is None or self.first_request.error:
            return None
        return self.up_at + self.warm_up_seconds + self.first_request.total

    @property
    def warm_up_seconds(self) -> float:
        """What the requests before the first one took."""
        return (self.greedy_request.total if self.greedy_request else 0.0) + self.long_seconds

    @property
    def cache(self) -> str:
        """What torch.compile found: `cached`, `partly cached`, `recompiled`, `cold`; empty while that is unknown."""
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
        changes = [change for change in self.phase_changes if change.phase is not Phase.UP]
        spans: dict[Phase, PhaseSpan] = {}
        for index, change in enumerate(changes):
            end = changes[index + 1].at if index + 1 < len(changes) else last_end
            seconds = max(0.0, (now if end is None else end) - change.at)
            earlier = spans.get(change.phase)
            began, so_far = (earlier.began, earlier.seconds) if earlier else (change.at, 0.0)
            spans[change.phase] = PhaseSpan(change.phase, began, so_far + seconds, end is not None)
        return sorted(spans.values(), key=lambda span: span.phase is Phase.UNATTRIBUTED)
