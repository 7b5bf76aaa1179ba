"""What the screen of a running experiment shows, read from its folder; its server is not asked."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from dflash_tui.common.errors import DflashError
from dflash_tui.events import RequestDone
from dflash_tui.experiments import builder, store, tune_schedule
from dflash_tui.experiments.analysis.report import TuneOutcome
from dflash_tui.experiments.design import Design, RequestMeasured
from dflash_tui.experiments.progress import Progress
from dflash_tui.monitoring import observer, startup_history
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import registry
from dflash_tui.tui.render.experiment_progress import Outlook


class ExperimentView(NamedTuple):
    """What was read: how far it is, the start of the boot that runs, and the requests that it has answered."""

    progress: Progress
    start: RunState | None
    requests: tuple[RequestDone, ...]
    tune: TuneOutcome | None = None
    """What a tune has found until now; None of an A/B."""


def read_experiment(folder: Path) -> ExperimentView:
    """Return how the experiment in `folder` stands; the server that is measured is not asked anything.

    Raises:
        UsageError: its design cannot be read.
    """
    progress, start = store.read_progress(folder), None
    current, tune = progress.current, _read_outcome(folder, progress)
    if current is None:
        return ExperimentView(progress, None, (), tune)
    if current.stage == "starting" and (run := next((r for r in registry.list_runs() if r.id == current.run), None)):
        start = observer.replay_run(run)
    events = [
        event for event in store.read_events(folder) if isinstance(event, RequestMeasured) and event.at >= current.began
    ]
    requests = tuple(name_by_stage(event) for event in events if event.number == current.number)
    return ExperimentView(progress, start, requests, tune)


def read_outlook(design: Design, before: Outlook | None = None) -> Outlook:
    """Return what is known of an experiment beside its own figures; only the starts change from `before` on."""
    starts = tuple(tuple(startup_history.list_starts(kind=arm.plan.kind)) for arm in design.arms)
    if before:
        return before._replace(starts=starts)
    boots = builder.BootEstimate((), False, "") if design.tuning else builder.estimate_boots(design)
    try:
        prompts = () if design.measures_start else store.load_experiment_suite(design).prompts
    except DflashError:
        prompts = ()
    return Outlook(boots, tuple(dict.fromkeys(prompt.kind for prompt in prompts)), starts)


def _read_outcome(folder: Path, progress: Progress) -> TuneOutcome | None:
    """Return what a tune has found: by its report, else by its boots until now."""
    if progress.design.tuning is None:
        return None
    report = store.read_report(folder) if progress.finished else None
    return report.tune if report and report.tune else tune_schedule.judge_tune(progress)


def name_by_stage(event: RequestMeasured) -> RequestDone:
    """Return a request under the name of its stage, unless it counts."""
    return event.request if event.stage == "round" else replace(event.request, kind=event.stage)
