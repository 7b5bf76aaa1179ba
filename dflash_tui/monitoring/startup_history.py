"""Read earlier starts on this machine from their run folders, to estimate the duration of the next one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dflash_tui.common.untrusted_json import LineBuffer
from dflash_tui.events import Recorded, Step, decode_recorded
from dflash_tui.planning.plan import Plan
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import Run

if TYPE_CHECKING:  # what reads logs takes 30 ms, which is spared where nothing was launched
    from dflash_tui.run_state.eta import MedianSeconds, RecordedStart

_CHUNK = 1 << 18
# The first request comes within minutes of the launch; a server that is not up by this much log never came up.
_MAX_LOG_BYTES = 64 << 20
_MAX_SAMPLES_BYTES = 4 << 20
# One that took longer was not watched, or its record is damaged: it would be what the next start is told to take.
_LONGEST_START = 86_400.0
_starts_by_run: dict[str, RecordedStart | None] = {}


class TimeToReady(NamedTuple):
    """Seconds from launch to ready: the median, and from how many runs."""

    seconds: float
    runs: int


def list_starts(recipe: str = "", kind: tuple[str, ...] = (), exclude: str = "") -> list[RecordedStart]:
    """Return the starts that came up, oldest first: of a recipe, of one kind, or all, without the run `exclude`.

    Only the beginnings of the files are read, and those of a finished run only once.
    """
    starts = []
    for run in registry.list_runs():
        matches = (not recipe or run.plan.recipe == recipe) and (not kind or run.plan.kind == kind)
        if matches and run.id != exclude and (start := _cached_start(run)):
            starts.append(start)
    return starts


def estimate_ready(plan: Plan) -> TimeToReady | None:
    """Return how long the last runs of the same kind took to be ready; None without any.

    Runs of other recipes, profiles, variants, modes, engines or models do not count, nor those that never generated.
    """
    ready_starts = [start for start in list_starts(kind=plan.kind) if start.ready is not None]
    if not ready_starts:
        return None
    from dflash_tui.run_state.eta import expect_startup

    expected = expect_startup(ready_starts)
    return TimeToReady(*expected.ready) if expected and expected.ready else None


def read_step_history(plan: Plan, exclude: str = "") -> dict[Step, MedianSeconds]:
    """Return how long the steps before a launch of `plan` took in earlier runs of any recipe, without `exclude`.

    Those of the engine are taken from runs of the same engine, the models' from runs of the same two models.
    """
    from dflash_tui.run_state import eta as expectations

    runs = [run for run in registry.list_runs() if run.id != exclude]
    engine = [run.prepared for run in runs if run.plan.unpatched_folder == plan.unpatched_folder]
    models = [run.prepared for run in runs if (run.plan.target, run.plan.drafter) == (plan.target, plan.drafter)]
    medians = expectations.summarize_steps(engine) | {
        Step.MODELS: expectations.summarize_steps(models).get(Step.MODELS)
    }
    needed = set(Step) - (set() if plan.patches else {Step.PATCHES}) - {Step.INSPECT}
    return {step: median for step, median in medians.items() if median and step in needed}


def _cached_start(run: Run) -> RecordedStart | None:
    if run.id in _starts_by_run:
        return _starts_by_run[run.id]
    start = _read_start(run)
    if (start is not None and start.first_request is not None) or not server_process.is_alive(run):
        _starts_by_run[run.id] = start
    return start


def _read_start(run: Run) -> RecordedStart | None:
    """Read a start from the beginnings of its files; None when it never came up, or nobody knows how long it took."""
    from dflash_tui.run_state.eta import RecordedStart
    from dflash_tui.run_state.state import RunState
    from dflash_tui.vllm_output.log_reader import LogReader

    state, reader = RunState(), LogReader(run.started_at, run.utc_offset)
    state.apply(run.launched)
    for chunk in _read_chunks(run.log, _MAX_LOG_BYTES):
        for event in reader.feed(chunk):
            state.apply(event)
        if reader.up:
            break
    if state.up_at is None:
        return None
    for sample in _read_samples(run.samples):
        state.apply(sample)
        if state.ready_at is not None:
            break
    plan, startup = run.plan, state.startup
    ready_at = state.ready_at
    took = (state.up_at if ready_at is None else ready_at) - run.started_at
    if took > _LONGEST_START:
        return None
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


def _read_chunks(path: Path, most: int) -> Iterator[bytes]:
    read = 0
    with contextlib.suppress(OSError), path.open("rb") as file:
        while read < most and (data := file.read(_CHUNK)):
            read += len(data)
            yield data


def _read_samples(path: Path) -> Iterator[Recorded]:
    buffer = LineBuffer(_MAX_SAMPLES_BYTES)
    for chunk in _read_chunks(path, _MAX_SAMPLES_BYTES):
        for line in buffer.feed(chunk):
            if event := decode_recorded(line):
                yield event
