"""Compare the starts of one recipe and engine: eager with compile, cold with cached; medians with n. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dflash_tui.events import Phase
from dflash_tui.run_state.eta import RecordedStart

# The parts of a start that are shown: a name, and the phases that it sums up. The first request comes after them.
STARTUP_PARTS: tuple[tuple[str, tuple[Phase, ...]], ...] = (
    ("before", (Phase.IMPORT, Phase.RESOLVE, Phase.ENGINE)),
    ("weights", (Phase.WEIGHTS, Phase.DRAFTER)),
    ("compile", (Phase.COMPILE,)),
    ("kernels", (Phase.PROFILE, Phase.KV_CACHE, Phase.AUTOTUNE, Phase.JIT)),
    ("graphs", (Phase.GRAPHS,)),
    ("other", (Phase.API, Phase.UNATTRIBUTED)),
)


class StartGroup(NamedTuple):
    """What starts must share to be compared; `setup` is profile, variant and number of drafted tokens."""

    recipe: str
    setup: str
    engine: str


class StartKind(NamedTuple):
    """The starts of one group, mode and cache state; times are medians in seconds, None where none is recorded."""

    group: StartGroup
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
    def times_to_ready(self) -> list[float]:
        """The seconds from the launch to the first real generation of each start that had one."""
        return [start.ready for start in self.starts if start.ready is not None]

    @property
    def ready(self) -> float | None:
        """The median time to ready."""
        return _median(self.times_to_ready)

    @property
    def first_request(self) -> float | None:
        """The median duration of the first request."""
        return _median(start.first_request for start in self.starts)

    def median_seconds(self, phases: Sequence[Phase]) -> float | None:
        """Return the median of the seconds that these phases took together."""
        durations = [[start.phases[phase] for phase in phases if phase in start.phases] for start in self.starts]
        return _median(sum(seconds) if seconds else None for seconds in durations)


class StartDifference(NamedTuple):
    """How many seconds later `one` is ready than `other`; negative when it is sooner."""

    one: StartKind
    other: StartKind
    seconds: float


def group_starts(starts: Iterable[RecordedStart]) -> list[StartKind]:
    """Group the starts by recipe, setup, engine, mode and cache state."""
    groups: dict[tuple[StartGroup, str, str], list[RecordedStart]] = defaultdict(list)
    for start in starts:
        groups[StartGroup(start.recipe, start.setup, start.engine), start.mode, start.cache].append(start)
    return [StartKind(*group, tuple(members)) for group, members in sorted(groups.items())]


def compare_start_kinds(kinds: Iterable[StartKind]) -> Iterator[StartDifference]:
    """Yield the differences of compiled and eager starts, and of cold and cached ones, of each group that has both."""
    groups: dict[StartGroup, dict[tuple[str, str], StartKind]] = defaultdict(dict)
    for kind in kinds:
        groups[kind.group][kind.mode, kind.cache] = kind
    for members in groups.values():
        compiled = {cache: kind for (mode, cache), kind in members.items() if mode == "compile"}
        sides = [(kind, members["eager", ""]) for kind in compiled.values() if ("eager", "") in members]
        if "cold" in compiled and "cached" in compiled:
            sides.append((compiled["cold"], compiled["cached"]))
        for one, other in sides:
            if one.ready is not None and other.ready is not None:
                yield StartDifference(one, other, one.ready - other.ready)


def _median(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return statistics.median(numbers) if numbers else None
