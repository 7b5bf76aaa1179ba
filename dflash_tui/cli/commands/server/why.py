"""`why`: print why a run failed, or a server whose log is all there is; format post-mortems for every command."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from dflash_tui.cli.console import print_data, print_json, print_status
from dflash_tui.common.errors import UsageError
from dflash_tui.common.ssh_host import name_commands
from dflash_tui.diagnosis import postmortem
from dflash_tui.diagnosis.log_source import STDIN, LogSource
from dflash_tui.diagnosis.posted_log import explain_log, format_explanation
from dflash_tui.diagnosis.postmortem import Postmortem, build_failure, build_postmortem
from dflash_tui.events import Event
from dflash_tui.monitoring import observer
from dflash_tui.run_state.alarms import find_log_alarms
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import registry
from dflash_tui.runs.run import Run

_LOGS = frozenset({".log", ".txt", ".out"})
_WIDTH = 100  # where the output is no terminal


class Failed(Event, frozen=True, tag="failed"):
    """The event of a failed run, with its post-mortem."""

    why: Postmortem


def why(args: argparse.Namespace) -> int:
    """`why [RUN | FILE | -]`: print why a run failed, and what may help; without a name the newest that failed."""
    if args.run and _names_log(args.run):
        return _explain_log(args)
    run, state = _select_run(args.run)
    failure = build_postmortem(run, state)
    if failure is None:
        print_status(f"{run.id} did not fail: it is {state.status}" if state.exit is None else f"{run.id} was stopped")
        for alarm in find_log_alarms(state):
            print_status(f"! {alarm}")
        return 0
    if args.report:
        print_data(postmortem.build_bug_report(run, state, failure.diagnosis).rstrip("\n"))
    elif args.json:
        print_json(failure)
    else:
        print_data(name_commands(f"{run.id}: {format_postmortem(failure)}"))
    return 0


def _names_log(name: str) -> bool:
    """Whether a name is that of a file, and of no run; so is one of a log that is not there."""
    path = Path(name)
    return name == STDIN or os.sep in name or path.suffix in _LOGS or (path.exists() and not path.is_dir())


def _explain_log(args: argparse.Namespace) -> int:
    if args.report:
        raise UsageError("--report is about a run of dflash-tui, not about a file")
    explanation = explain_log(LogSource(args.run))
    if args.json:
        print_json(explanation)
    else:
        print_data(format_explanation(explanation, shutil.get_terminal_size((_WIDTH, 24)).columns))
    return 0


def _select_run(name: str | None) -> tuple[Run, RunState]:
    """Return the run called `name`, else the newest that failed, with its state."""
    for run in [registry.find_run(name)] if name else reversed(registry.list_runs()):
        state = observer.replay_run(run)
        if name or state.status in {"failed", "lost", "unhealthy"}:
            if state.autopsy is None and state.status == "failed":
                state.apply(observer.read_autopsy(run, None))
            return run, state
    steps = ("a launch that was refused is no run: dflash-tui doctor RECIPE explains it",
             "dflash-tui ps --all lists the runs")  # fmt: skip
    raise UsageError("no run has failed", hint="\n  → ".join(steps))


def format_postmortem(postmortem: Postmortem) -> str:
    """Return a post-mortem as text: what happened and why, the evidence, what to do."""
    return str(build_failure(postmortem))
