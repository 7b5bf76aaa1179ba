"""Follows an experiment that its driver runs, prints its events, and at the end its report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from dflash_tui.cli.console import print_data, print_status, terminal_width
from dflash_tui.common import private_files
from dflash_tui.common.errors import DflashError, OutputDiffers, ServerFailed
from dflash_tui.common.line_buffer import LineBuffer
from dflash_tui.common.sanitizer import clean_line, join_last_lines
from dflash_tui.common.ssh_host import name_commands, name_program
from dflash_tui.event_json import encode
from dflash_tui.experiments import controller, store
from dflash_tui.experiments.analysis.report import ExperimentReport, OutputComparison, OutputVerdict
from dflash_tui.experiments.design import Design, Happened
from dflash_tui.experiments.progress import Progress, extend_design, join_requests
from dflash_tui.experiments.tuning import schedule
from dflash_tui.presentation import experiment_text
from dflash_tui.presentation.experiment_report import build_report
from dflash_tui.presentation.report import Note, Section, to_terminal

_INTERVAL = 0.2
_LARGEST_LOG = 64 << 20


def follow_experiment(design: Design, *, as_json: bool, details: bool = False) -> int:
    """Print what happens until the driver ends, then the report; Ctrl-C ends the watching and nothing else.

    Raises:
        ServerFailed: an arm did not come up.
        OutputDiffers: it was to show whether speculation changes answers, and it does, by more than rounding.
        DflashError: the experiment ended early, or did not show that.
    """
    folder = store.experiment_folder(design.id)
    with explain_detaching(design):
        for event in join_requests(_watch_events(folder)):
            design = extend_design(design, event)
            if as_json:
                print_data(encode(event).decode())
            elif line := experiment_text.format_event(design, event):
                print_status(line)
    return _report_end(folder, design, as_json=as_json, details=details)


@contextlib.contextmanager
def explain_detaching(design: Design) -> Iterator[None]:
    """Print on Ctrl-C that an experiment continues, if it does, and how to go on with it."""
    try:
        yield
    except KeyboardInterrupt:
        if controller.is_driven(design):
            print_status("\ndetached; the experiment continues in the background")
            if design.tuning:
                print_status(_describe_best(store.experiment_folder(design.id)))
            print_status(experiment_text.describe_experiment_commands(design, name_program()))
        raise


def _watch_events(folder: Path) -> Iterator[Happened]:
    """Yield what has happened and happens, until nobody drives the experiment any more."""
    position, buffer = 0, LineBuffer(store.LONGEST_EVENT)
    while True:
        driven = store.find_driver(folder) is not None
        for piece in store.read_event_pieces(folder, position):
            position += len(piece)
            for line in buffer.feed(piece):
                if event := store.decode_event(line):
                    yield event
        if not driven:
            return
        time.sleep(_INTERVAL)


def _report_end(folder: Path, design: Design, *, as_json: bool, details: bool) -> int:
    progress, report = store.read_progress(folder), store.read_report(folder)
    if progress.finished and report:
        _print_report(progress, report, as_json=as_json, details=details)
        if progress.design.tuning and not any(not boot.error for boot in progress.boots):
            raise _build_start_error(progress, design.arms[0].name)
        if progress.without and not progress.design.tuning:
            raise _build_start_error(progress, ", ".join(progress.without))
        if design.checks_output:
            raise_unless_alike(report)
        return 0
    if progress.design.tuning:
        print_status(_describe_best(folder))
    why = progress.halted or _last_log_line(folder) or "the driver exited without logging an error"
    raise DflashError(
        f"{design.id} ended early",
        evidence=clean_line(why),
        hint=f"dflash-tui {design.command_word} resume {design.id}",
    )


def _build_start_error(progress: Progress, names: str) -> ServerFailed:
    failed = [boot for boot in progress.boots if boot.error]
    what = f"{clean_line(names)} did not start"
    if not failed:  # the file of events may have lost some
        return ServerFailed(what, evidence="none of its boots is recorded")
    return ServerFailed(what, evidence=failed[-1].error, hint=f"dflash-tui why {failed[-1].run}")


def raise_unless_alike(report: ExperimentReport) -> None:
    """Raise what the exit code comes from, unless no answer is at fault.

    Raises:
        OutputDiffers: an answer parts by more than rounding.
        DflashError: that cannot be known.
    """
    outputs = next((comparison.outputs for comparison in report.comparisons if comparison.outputs), None)
    outputs = outputs or OutputComparison(OutputVerdict.UNKNOWN, "no answers were compared")
    if outputs.verdict is OutputVerdict.DIFFERENT:
        do = "the panel shows all answers (3, then a); where a patch is applied, try --set patches.NAME=false"
        raise OutputDiffers(f"{report.design.recipe}: speculation changes answers by more than rounding", hint=do)
    if outputs.verdict is OutputVerdict.UNKNOWN:
        raise DflashError("whether speculation changes answers is unknown", evidence=outputs.why)


def _describe_best(folder: Path) -> str:
    progress = store.read_progress(folder)
    return "\n".join(experiment_text.list_outcome_lines(progress.design, progress.boots, schedule.judge_tune(progress)))


def _print_report(progress: Progress, report: ExperimentReport, *, as_json: bool, details: bool) -> None:
    if as_json:
        print_data(encode(experiment_text.Reported(time.time(), report)).decode())
        return
    sections = build_report(report, details=details)
    if report.tune:
        notes = map(Note, experiment_text.list_outcome_lines(report.design, report.boots, report.tune))
        sections = [Section("", tuple(notes)), Section("", (experiment_text.build_settings_table(progress),))]
    print_data(name_commands(to_terminal(sections, terminal_width())))


def _last_log_line(folder: Path) -> str:
    try:
        log = private_files.read_file(folder / store.LOG, _LARGEST_LOG)
    except OSError:
        return ""
    return join_last_lines(log.decode(errors="replace"), 1)
