"""Why a run failed: the command `why`, and a post-mortem as text for every command that watches."""

from __future__ import annotations

import argparse

from dflash_tui.cli.console import print_data, print_json, print_status
from dflash_tui.common.errors import ServerFailed, UsageError
from dflash_tui.common.formatting import truncate_middle
from dflash_tui.diagnosis import bug_report, postmortem
from dflash_tui.diagnosis.postmortem import Postmortem
from dflash_tui.events import Event
from dflash_tui.monitoring import kernel_log, observer
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import registry
from dflash_tui.runs.run import Run

_MAX_EVIDENCE = 400


class Failed(Event, frozen=True, tag="failed"):
    """A run failed, and this is why."""

    why: Postmortem


def why(args: argparse.Namespace) -> int:
    """`why [RUN]`: print why a run failed, and what may help; without RUN the newest that failed."""
    run, state = _select_run(args.run)
    found = postmortem.build_postmortem(run, state)
    if found is None:
        print_status(f"{run.id} did not fail: it is {state.status}" if state.exit is None else f"{run.id} was stopped")
        return 0
    if args.report:
        print_data(bug_report.build_bug_report(run, state, found.diagnosis).rstrip("\n"))
    elif args.json:
        print_json(found)
    else:
        print_data(f"{run.id}: {format_postmortem(found)}")
    return 0


def _select_run(name: str | None) -> tuple[Run, RunState]:
    """Return the run and what is known of it."""
    for run in [registry.find_run(name)] if name else reversed(registry.list_runs()):
        state = observer.replay_run(run)
        if name or state.status in {"failed", "lost", "unhealthy"}:
            if state.autopsy is None and state.status == "failed":
                state.apply(kernel_log.read_autopsy(run, None))
            return run, state
    raise UsageError("no run has failed", hint="dflash-tui ps --all lists the runs")


def format_postmortem(found: Postmortem) -> str:
    """Return a post-mortem as lines: what happened and why, what shows it, what to do."""
    return str(build_failure(found))


def build_failure(found: Postmortem) -> ServerFailed:
    """Return a post-mortem as the error that a command ends with."""
    diagnosis = found.diagnosis
    evidence = [truncate_middle(line, _MAX_EVIDENCE) for line in (*diagnosis.evidence, found.left) if line]
    steps = [*diagnosis.fix, *([f"more about it: {diagnosis.link}"] if diagnosis.link else [])]
    for remedy, command in zip(found.remedies, found.commands, strict=True):
        steps.append(f"{remedy.words}:\n      {command}")
    steps.append(f"the whole log: {found.log}")
    what = f"{diagnosis.what}: {diagnosis.cause}"
    return ServerFailed(what, evidence="\n  ".join(evidence), hint="\n  → ".join(steps))
