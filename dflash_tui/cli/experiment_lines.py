"""Follows an experiment that its driver runs, prints its events, and at the end its report."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from dflash_tui.cli.console import print_data, print_status
from dflash_tui.common import private_files
from dflash_tui.common.errors import DflashError, ServerFailed
from dflash_tui.common.line_buffer import LineBuffer
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.events import encode
from dflash_tui.experiments import store
from dflash_tui.experiments.analysis.report import ExperimentReport
from dflash_tui.experiments.design import Design, Happened
from dflash_tui.presentation import experiment_text

_INTERVAL = 0.2
_LARGEST_LOG = 64 << 20


def follow_experiment(design: Design, *, as_json: bool) -> int:
    """Print what happens until the driver ends, then the report; Ctrl-C ends the watching and nothing else.

    Raises:
        ServerFailed: an arm did not come up.
        DflashError: the experiment ended early.
    """
    folder = store.experiment_folder(design.id)
    try:
        for event in _watch_events(folder):
            if as_json:
                print_data(encode(event).decode())
            elif line := experiment_text.format_event(design, event):
                print_status(line)
    except KeyboardInterrupt:
        print_status("\ndetached; the experiment continues in the background")
        print_status(experiment_text.describe_experiment_commands(design.id))
        raise
    return _report_end(folder, design, as_json=as_json)


def _watch_events(folder: Path) -> Iterator[Happened]:
    """Yield what has happened and happens, until nobody drives the experiment any more."""
    position, buffer = 0, LineBuffer(store.LONGEST_EVENT)
    while True:
        driven = store.find_driver(folder) is not None
        try:
            with private_files.open_file(folder / store.EVENTS) as file:
                file.seek(position)
                data = file.read()
        except OSError:
            data = b""
        position += len(data)
        for line in buffer.feed(data):
            if event := store.decode_event(line):
                yield event
        if not driven:
            return
        time.sleep(_INTERVAL)


def _report_end(folder: Path, design: Design, *, as_json: bool) -> int:
    progress, report = store.read_progress(folder), store.read_report(folder)
    if progress.finished and report:
        _print_report(report, as_json=as_json)
        if progress.without:
            failed = [boot for boot in progress.boots if boot.error]
            names = ", ".join(map(clean_line, progress.without))
            raise ServerFailed(
                f"{names} did not start", evidence=failed[-1].error, hint=f"dflash-tui why {failed[-1].run}"
            )
        return 0
    why = progress.halted or _last_log_line(folder) or "the driver exited without logging an error"
    raise DflashError(f"{design.id} ended early", evidence=clean_line(why), hint=f"dflash-tui ab resume {design.id}")


def _print_report(report: ExperimentReport, *, as_json: bool) -> None:
    if as_json:
        print_data(encode(experiment_text.Reported(time.time(), report)).decode())
        return
    print_data(experiment_text.format_report(report))


def _last_log_line(folder: Path) -> str:
    try:
        log = private_files.read_file(folder / store.LOG, _LARGEST_LOG)
    except OSError:
        return ""
    lines = log.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
