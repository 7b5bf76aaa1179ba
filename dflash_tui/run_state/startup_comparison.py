"""Starts side by side: of one pair and engine, eager against compile, cold against cached; medians with n. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dflash_tui.events import Phase
from dflash_tui.run_state.eta import RecordedStart

# What of a start is told: names, and the phases that each sums up. The first request comes after them.
STARTUP_PARTS: tuple[tuple[str, tuple[Phase, ...]], ...] = (
    ("before", (Phase.IMPORT, Phase.RESOLVE, Phase.ENGINE)),
    ("weights", (Phase.WEIGHTS, Phase.DRAFTER)),
    ("compile", (Phase.COMPILE,)),
    ("kernels", (Phase.PROFILE, Phase.KV_CACHE, Phase.AUTOTUNE, Phase.JIT)),
    ("graphs", (Phase.GRAPHS,)),
    ("other", (Phase.API, Phase.UNATTRIBUTED)),
)


class StartGroup(NamedTuple):
    """What starts must share to be compared; `setup` are profile, variant and drafted tokens."""

    recipe: str
    setup: str
    engine: str


class StartKind(NamedTuple):
    """Starts of one mode that found the same cache; times are medians in seconds, None where none is recorded."""

    pair: StartGroup
    mode: str
    cache: str
    starts: tuple[RecordedStart, ...]

    @property
    def name(self) -> str:
        """Mode and cache in words."""
        return f"{self.mode}, {self.cache}" if self.cache else self.mode

    @property
    def synthetic(self) -> str:
        """Why the figures are not those of a real model, or an empty text."""
        return self.starts[-1].synthetic

    @property
    def answered(self) -> list[float]:
        """The seconds from the launch to the first real generation of each start that had one."""
        return [start.ready for start in self.starts if start.ready is not None]

    @property
    def ready(self) -> float | None:
        """The median of those."""
        return _median(self.answered)

    @property
    def first(self) -> float | None:
        """What the first request took."""
        return _median(start.first_request for start in self.starts)

    def part(self, phases: Sequence[Phase]) -> float | None:
        """Return what these phases took together."""
        had = [[start.phases[phase] for phase in phases if phase in start.phases] for start in self.starts]
        return _median(sum(seconds) if seconds else None for seconds in had)


class StartDifference(NamedTuple):
    """The seconds by which `one` is ready later than `other`; negative when it is sooner."""

    one: StartKind
    other: StartKind
    seconds: float


def group_starts(starts: Iterable[RecordedStart]) -> list[StartKind]:
    """Return the starts by pair, mode and cache."""
    groups: dict[tuple[StartGroup, str, str], list[RecordedStart]] = defaultdict(list)
    for start in starts:
        groups[StartGroup(start.recipe, start.setup, start.engine), start.mode, start.cache].append(start)
    return [StartKind(*group, tuple(alike)) for group, alike in sorted(groups.items())]


def compare_start_kinds(known: Iterable[StartKind]) -> Iterator[StartDifference]:
    """Yield compiled starts against eager ones, and cold against cached, of each pair that has both."""
    pairs: dict[StartGroup, dict[tuple[str, str], StartKind]] = defaultdict(dict)
    for kind in known:
        pairs[kind.pair][kind.mode, kind.cache] = kind
    for of in pairs.values():
        compiled = {cache: kind for (mode, cache), kind in of.items() if mode == "compile"}
        sides = [(kind, of["eager", ""]) for kind in compiled.values() if ("eager", "") in of]
        if "cold" in compiled and "cached" in compiled:
            sides.append((compiled["cold"], compiled["cached"]))
        for one, other in sides:
            if one.ready is not None and other.ready is not None:
                yield StartDifference(one, other, one.ready - other.ready)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
