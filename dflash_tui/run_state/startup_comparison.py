"""Compare the starts of one recipe and engine: eager with compile, cold with cached; medians with n. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dflash_tui.events import Phase
from dflash_tui.planning.startup_optimizations import FORK, MODELINFOS, STARTUP_PLAN
from dflash_tui.run_state.eta import RecordedStart

# The parts of a start that are shown: a name, and the phases that it sums up. The first request comes after them.
STARTUP_PARTS: tuple[tuple[str, tuple[Phase, ...]], ...] = (
    ("before", (Phase.IMPORT, Phase.RESOLVE, Phase.ENGINE, Phase.RANKS)),
    ("weights", (Phase.WEIGHTS, Phase.DRAFTER)),
    ("compile", (Phase.COMPILE,)),
    ("kernels", (Phase.PROFILE, Phase.KV_CACHE, Phase.AUTOTUNE, Phase.JIT)),
    ("graphs", (Phase.GRAPHS,)),
    ("other", (Phase.API, Phase.UNATTRIBUTED)),
)

# The phase that each measure shortens, where one does.
_SHORTENED = {MODELINFOS: Phase.RESOLVE, FORK: Phase.ENGINE, STARTUP_PLAN: Phase.PROFILE}
_LEAST_SAVED = 1.0


class StartGroup(NamedTuple):
    """What starts must share to be compared; `setup` is profile, variant, number of drafted tokens and ranks."""

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
    """How many seconds later `first` is ready than `second`; negative when it is sooner."""

    first: StartKind
    second: StartKind
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
        for first, second in sides:
            if first.ready is not None and second.ready is not None:
                yield StartDifference(first, second, first.ready - second.ready)


class SavedSeconds(NamedTuple):
    """How many seconds less a phase takes with a measure, by the medians of `taken` starts and of `before` without."""

    measure: str
    phase: Phase
    seconds: float
    taken: int
    before: int


def find_saved_seconds(
    measures: Sequence[str], phases: Mapping[Phase, float], cache: str, earlier: Sequence[RecordedStart]
) -> dict[Phase, SavedSeconds]:
    """Return by phase what a measure of a start saved, where every start of this machine with it was the shorter one.

    Args:
        measures: the measures that the start has, by name.
        phases: the seconds of its phases that are over.
        cache: what torch.compile found in its cache, as far as that is known.
        earlier: the earlier starts of the same kind, oldest first.
    """
    saved = {}
    for measure, phase in _SHORTENED.items():
        if measure not in measures or phase not in phases:
            continue
        alike = [start for start in earlier if phase in start.phases and (not cache or start.cache == cache)]
        taken = [phases[phase], *(start.phases[phase] for start in alike if measure in start.measures)]
        without = [start.phases[phase] for start in alike if measure not in start.measures]
        if measure == MODELINFOS:  # vLLM fills them itself at the first start
            without = without[:1] if alike and measure not in alike[0].measures else []
        if without and min(without) - max(taken) >= _LEAST_SAVED:
            seconds = statistics.median(without) - statistics.median(taken)
            saved[phase] = SavedSeconds(measure, phase, seconds, len(taken), len(without))
    return saved


def _median(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return statistics.median(numbers) if numbers else None
