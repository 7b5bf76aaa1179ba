"""Read earlier starts from their run folders, compare them, and estimate how long the next one takes."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from dflash_tui.events import Phase, Preparing, Step
from dflash_tui.planning.plan import Plan
from dflash_tui.run_state.startup import Startup
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import Run

MIN_STEP_SECONDS = 0.5  # a shorter step had nothing to do
MAX_STARTS = 5  # only the last starts count, as older ones may be outdated
_PHASE_ORDER = list(Phase)


class RecordedStart(msgspec.Struct, frozen=True):
    """A start that came up; durations in seconds, times in seconds since the epoch."""

    run: str
    at: float
    recipe: str
    mode: str
    """`eager` or `compile`."""
    engine: str
    """The vLLM package and version."""
    setup: str
    """Profile, variant, number of drafted tokens, and ranks and hosts if there are several; for display."""
    kind: tuple[str, ...]
    """The values that two launches must share to be comparable."""
    cache: str
    """The state of torch.compile's cache, see `Startup.cache`."""
    phases: dict[Phase, float]
    up: float
    """Seconds from the launch until the log said that the server is up."""
    first_request: float | None = None
    """The duration of the first real generation; None if none is recorded."""
    synthetic: str = ""
    """Why the figures are not those of a real model; empty for a real one."""
    measures: tuple[str, ...] = ()
    """The names of its startup optimizations."""

    @property
    def ready(self) -> float | None:
        """Seconds from the launch to the end of the first real generation; None if there was none."""
        return None if self.first_request is None else self.up + self.first_request


class MedianSeconds(NamedTuple):
    """A median duration in seconds, and the number of starts behind it."""

    seconds: float
    n: int


class ExpectedStart(NamedTuple):
    """Expected durations of a start: its phases, first request and time to ready, and the longest time to ready."""

    cache: str
    phases: dict[Phase, MedianSeconds]
    first_request: MedianSeconds | None
    ready: MedianSeconds | None
    longest: float | None


class Eta(NamedTuple):
    """Estimated seconds until ready, from `n` starts; None if this start already takes longer than all of them."""

    seconds: float | None
    n: int
    longest: float


def expect_startup(starts: Sequence[RecordedStart], cache: str = "") -> ExpectedStart | None:
    """Return the expected durations from the last starts with the same `cache` state; None if there are none.

    While `cache` is empty (unknown), the state of the newest start that was not cold is assumed.
    """
    caches = [start.cache for start in starts]
    newest = next((cache for cache in reversed(caches) if cache != "cold"), caches[-1] if caches else "")
    expected_cache = cache or newest
    recent = [start for start in starts if start.cache == expected_cache][-MAX_STARTS:]
    if not recent:
        return None
    phases = {
        phase: guess
        for phase in _PHASE_ORDER
        if (guess := _median(start.phases[phase] for start in recent if phase in start.phases))
    }
    ready = [start.ready for start in recent if start.ready is not None]
    first = _median(start.first_request for start in recent if start.first_request is not None)
    return ExpectedStart(expected_cache, phases, first, _median(ready), max(ready, default=None))


def _median(values: Iterable[float]) -> MedianSeconds | None:
    seconds = list(values)
    return MedianSeconds(statistics.median(seconds), len(seconds)) if seconds else None


def estimate_time_to_ready(startup: Startup, expected: ExpectedStart, elapsed: float, now: float) -> Eta | None:
    """Return the time to ready of a start launched `elapsed` seconds ago; None if it cannot be estimated.

    It is the sum of the medians of the running and later phases, less the time already spent in them.
    """
    if expected.ready is None or expected.longest is None or startup.ready_at is not None:
        return None
    remaining = expected.first_request.seconds if expected.first_request else 0.0
    if startup.up_at is None:
        spent = {span.phase: span.seconds for span in startup.spans(now)}
        reached = _running_phase_index(startup)
        for phase, guess in expected.phases.items():
            if phase is not Phase.UNATTRIBUTED and _PHASE_ORDER.index(phase) >= reached:
                remaining += max(0.0, guess.seconds - spent.get(phase, 0.0))
    else:
        remaining = max(0.0, remaining - (now - startup.up_at))
    return Eta(None if elapsed > expected.longest else remaining, expected.ready.n, expected.longest)


def _running_phase_index(startup: Startup) -> int:
    """Return the index of the running phase; profiling counts as compiling, since the two alternate."""
    attributed = [change.phase for change in startup.phase_changes if change.phase is not Phase.UNATTRIBUTED]
    phase = attributed[-1] if attributed else Phase.IMPORT
    return _PHASE_ORDER.index(Phase.COMPILE if phase is Phase.PROFILE else phase)


def summarize_steps(earlier: Iterable[Sequence[Preparing]]) -> dict[Step, MedianSeconds]:
    """Return the median duration of each step before a launch, over the `earlier` launches in which it did work.

    `earlier` is oldest first and has at least the first and the last event of each step.
    """
    durations: dict[Step, list[float]] = {}
    for events in earlier:
        starts = {event.step: event.at for event in reversed(events)}
        ends = {event.step: event.at for event in events if event.done}  # each model ends the step once
        for step, end in ends.items():
            if end - starts[step] >= MIN_STEP_SECONDS:
                durations.setdefault(step, []).append(end - starts[step])
    return {step: guess for step, seconds in durations.items() if (guess := _median(seconds[-MAX_STARTS:]))}


def estimate_time_to_launch(
    preparing: Mapping[Step, Preparing], began: Mapping[Step, float], usual: Mapping[Step, MedianSeconds], now: float
) -> float | None:
    """Return the seconds until the launch; None if the usual duration of a running step is unknown.

    `preparing` holds the latest event of each step, `began` its begin, `usual` its median duration.
    """
    running = [step for step, event in preparing.items() if not event.done]
    if not all(step in usual for step in running):
        return None
    return sum(max(0.0, usual[step].seconds - (now - began[step])) for step in running)


# The displayed parts of a start, each the sum of some phases. The first request follows them.
STARTUP_PARTS: tuple[tuple[str, tuple[Phase, ...]], ...] = (
    ("before", (Phase.IMPORT, Phase.RESOLVE, Phase.ENGINE, Phase.RANKS)),
    ("weights", (Phase.WEIGHTS, Phase.DRAFTER)),
    ("compile", (Phase.COMPILE,)),
    ("kernels", (Phase.PROFILE, Phase.KV_CACHE, Phase.AUTOTUNE, Phase.JIT)),
    ("graphs", (Phase.GRAPHS,)),
    ("other", (Phase.API, Phase.UNATTRIBUTED)),
)


class StartGroup(NamedTuple):
    """The key of comparable starts; `setup` is profile, variant, number of drafted tokens and ranks."""

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
        """Mode and cache state as text."""
        return f"{self.mode}, {self.cache}" if self.cache else self.mode

    @property
    def synthetic(self) -> str:  # noqa: D102 - as in `RecordedStart`
        return self.starts[-1].synthetic

    @property
    def times_to_ready(self) -> list[float]:
        """Seconds from the launch to the end of the first real generation, for each start that has one."""
        return [start.ready for start in self.starts if start.ready is not None]

    @property
    def ready(self) -> float | None:
        """The median time to ready."""
        return _median_known(self.times_to_ready)

    @property
    def first_request(self) -> float | None:
        """The median duration of the first request."""
        return _median_known(start.first_request for start in self.starts)

    def median_seconds(self, phases: Sequence[Phase]) -> float | None:
        """Return the median of the total seconds of these phases."""
        durations = [[start.phases[phase] for phase in phases if phase in start.phases] for start in self.starts]
        return _median_known(sum(seconds) if seconds else None for seconds in durations)


class StartDifference(NamedTuple):
    """How many seconds later `first` is ready than `second`; negative if it is sooner."""

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
    """Yield the differences of compiled to eager and of cold to cached starts, for each group that has both."""
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


def _median_known(values: Iterable[float | None]) -> float | None:
    median = _median(value for value in values if value is not None)
    return median.seconds if median else None


_starts_by_folder: dict[Path, RecordedStart | None] = {}


def list_starts(recipe: str = "", kind: tuple[str, ...] = (), exclude: str = "") -> list[RecordedStart]:
    """Return the starts that came up, oldest first, filtered by recipe and kind, without the run `exclude`.

    Only the beginning of each file is read, and a finished run only once.
    """
    starts = []
    for run in registry.list_runs():
        matches = (not recipe or run.plan.recipe == recipe) and (not kind or run.plan.kind == kind)
        if matches and run.id != exclude and (start := _cached_start(run)):
            starts.append(start)
    return starts


def estimate_ready(plan: Plan) -> MedianSeconds | None:
    """Return the median time to ready of the last runs of the plan's kind; None if there are none.

    Runs that never generated do not count.
    """
    expected = expect_startup([start for start in list_starts(kind=plan.kind) if start.ready is not None])
    return expected.ready if expected else None


def read_step_history(plan: Plan, exclude: str = "") -> dict[Step, MedianSeconds]:
    """Return the median durations of the steps before a launch of `plan`, from earlier runs except `exclude`.

    The model step counts only runs of the same two models, the other steps runs of the same engine.
    """
    runs = [run for run in registry.list_runs() if run.id != exclude]
    engine = [run.prepared for run in runs if run.plan.unpatched_folder == plan.unpatched_folder]
    models = [run.prepared for run in runs if (run.plan.target, run.plan.drafter) == (plan.target, plan.drafter)]
    medians = summarize_steps(engine) | {Step.MODELS: summarize_steps(models).get(Step.MODELS)}
    needed = set(Step) - (set() if plan.patches else {Step.PATCHES}) - {Step.INSPECT}
    return {step: median for step, median in medians.items() if median and step in needed}


def _cached_start(run: Run) -> RecordedStart | None:
    if run.folder in _starts_by_folder:
        return _starts_by_folder[run.folder]
    start = _read_start(run)
    if (start is not None and start.first_request is not None) or not server_process.is_alive(run):
        _starts_by_folder[run.folder] = start
    return start


def _read_start(run: Run) -> RecordedStart | None:
    from dflash_tui.monitoring.observer import EventSource
    from dflash_tui.run_state.state import RunState

    state, source, more = RunState(), EventSource(run), True
    state.apply(run.launched)
    while more and state.ready_at is None:
        events, more = source.read()
        state.apply_all(events)
    if state.up_at is None:
        return None
    plan, startup = run.plan, state.startup
    ready_at = state.ready_at
    return RecordedStart(
        run=run.id,
        at=run.started_at,
        recipe=plan.recipe,
        mode=plan.mode.value,
        engine=run.engine,
        setup=" ".join(filter(None, (plan.profile, plan.variant, f"n={plan.num_speculative_tokens}", plan.split))),
        kind=plan.kind,
        cache=startup.cache,
        phases={span.phase: span.seconds for span in startup.spans(state.up_at)},
        up=state.up_at - run.started_at,
        first_request=None if ready_at is None else ready_at - state.up_at,
        synthetic=plan.synthetic,
        measures=plan.start,
    )
