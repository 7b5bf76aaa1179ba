"""Print a server's log, and why it failed: `logs` and `why`."""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections import deque
from pathlib import Path

from dflash_tui.cli.console import print_data, print_result
from dflash_tui.cli.json_lines import LogText
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.formatting import name_commands
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.common.untrusted_json import LineBuffer
from dflash_tui.diagnosis import postmortem
from dflash_tui.diagnosis.explanation import Explanation, format_explanation
from dflash_tui.diagnosis.log_source import STDIN, LogSource
from dflash_tui.diagnosis.posted_log import explain_log
from dflash_tui.diagnosis.postmortem import Postmortem, build_failure, build_postmortem, build_server_report
from dflash_tui.events import Event
from dflash_tui.monitoring import observer, recording
from dflash_tui.monitoring.foreign_server import is_address
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import Run

_LONGEST_LINE = 1 << 20
_LOGS = frozenset({".log", ".txt", ".out"})
_WIDTH = 100  # if the output is not a terminal


def logs(args: argparse.Namespace) -> int:
    """`logs [RUN] [-f] [-n N]`: print the log or its end, without control characters and this environment's secrets."""
    run = registry.find_run(args.run)
    log = _find_rank_log(run, args.rank) if args.rank else run.log
    if not log.exists():
        raise DflashError(f"the log of {run.id} is gone", evidence=str(log))
    buffer = LineBuffer(_LONGEST_LINE, keep_end=True)
    with log.open("rb") as file:
        tail = b"".join(deque(file, args.tail)) if args.tail else b""
        while True:
            ended = not server_process.is_alive(run)
            while data := tail or file.read(1 << 20):
                tail = b""
                for line in buffer.feed(data):
                    _print_line(line)
            if ended or not args.follow:
                break
            time.sleep(observer.LOG_INTERVAL)
    if line := buffer.unfinished_line:
        _print_line(line)
    return 0


def _print_line(line: bytes) -> None:
    """Print a line as a terminal would show it, without what carriage returns overwrite."""
    text = clean_line(line.rsplit(b"\r", 1)[-1].decode(errors="replace"))
    print_result(LogText(text), text)


def _find_rank_log(run: Run, rank: int) -> Path:
    far = next((far for far in run.far_ranks if far.rank == rank), None)
    if far is None:
        others = ", ".join(str(far.rank) for far in run.far_ranks) or "none"
        raise UsageError(f"{run.id} has no rank {rank} on another host", hint=f"other ranks: {others}")
    return run.folder / far.log_name


class Failed(Event, frozen=True, tag="failed"):
    """The event of a failed run, with its post-mortem."""

    why: Postmortem


def why(args: argparse.Namespace) -> int:
    """`why [RUN | URL | FILE | -]`: print why a server failed or is slow; the default is the newest that failed."""
    if is_address(args.run):
        from dflash_tui.diagnosis.live_server import explain_url  # httpx takes 0.2 s to import

        return _print_explanation(args, explain_url(args.run))
    if args.run and _names_log(args.run):
        return _print_explanation(args, explain_log(LogSource(args.run)))
    run, state = _select_run(args.run)
    failure = build_postmortem(run, state)
    if failure is None:
        from dflash_tui.diagnosis.live_server import explain_run

        return _print_explanation(args, explain_run(run, state), run)
    if args.report:
        print_data(postmortem.build_bug_report(run, state, failure.diagnosis).rstrip("\n"))
    else:
        print_result(failure, name_commands(f"{run.id}: {format_postmortem(failure)}"))
    return 0


def _names_log(name: str) -> bool:
    """Whether a name is that of a log file, existing or not, rather than of a run."""
    path = Path(name)
    is_file = os.sep in name or path.suffix in _LOGS or (path.exists() and not path.is_dir())
    return name == STDIN or (is_file and path.suffix != ".zip")


def _print_explanation(args: argparse.Namespace, explanation: Explanation, run: Run | None = None) -> int:
    if args.report:
        print_data(build_server_report(explanation, run).rstrip("\n"))
    else:
        print_result(explanation, format_explanation(explanation, shutil.get_terminal_size((_WIDTH, 24)).columns))
    return 0


def _select_run(name: str | None) -> tuple[Run, RunState]:
    if name and name.endswith(".zip"):
        source, state = recording.find_recording(name), RunState()
        state.apply_all([*source.events()])
        return source, state
    for run in [registry.find_run(name)] if name else reversed(registry.list_runs()):
        state = observer.replay_run(run)
        if name or state.status in {"failed", "lost", "unhealthy"}:
            if state.autopsy is None and state.status == "failed":
                state.apply(observer.read_autopsy(run, None))
            return run, state
    steps = ("a refused launch leaves no run: dflash-tui doctor RECIPE explains it",
             "dflash-tui ps --all lists the runs")  # fmt: skip
    raise UsageError("no run has failed", hint="\n  → ".join(steps))


def format_postmortem(postmortem: Postmortem) -> str:
    """Return a post-mortem as text: what happened and why, the evidence, what to do."""
    return str(build_failure(postmortem))
