"""Replay or export recordings: `replay` and `export`."""

from __future__ import annotations

import argparse
import time

from dflash_tui.cli.console import print_status
from dflash_tui.cli.json_lines import print_written_file
from dflash_tui.cli.panel import open_panel
from dflash_tui.common.formatting import has_terminal
from dflash_tui.monitoring import recording
from dflash_tui.monitoring.recording import PANEL_SPEED, Player, Recording
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import registry

_MAX_SILENCE = 3600.0
_ALARM_INTERVAL = 5.0  # recorded seconds; days of them are read at once


def replay(args: argparse.Namespace) -> int:
    """`replay RUN|FILE`: play a recording in the panel, or as lines."""
    source = recording.find_recording(args.recording)
    if args.plain or args.json or not has_terminal():
        return _print_recording(args, source)
    at = source.find_opening() if args.at is None else args.at
    return open_panel(player=Player(source, at=at, speed=args.speed or PANEL_SPEED))


def _print_recording(args: argparse.Namespace, source: Recording) -> int:
    """Print a recording as `attach` would have; without --speed as fast as possible.

    Figures are printed every `--every` recorded seconds. A recorded failure is printed, and does not set the exit code.
    """
    from dflash_tui.cli.commands.logs import format_postmortem
    from dflash_tui.cli.event_lines import AlarmLines, EventLines, FigureLines
    from dflash_tui.diagnosis import postmortem

    state = RunState()
    lines, figures = EventLines(state), FigureLines(state, args.every)
    began, begin = time.monotonic(), source.started_at + (args.at or 0.0)
    alarm_lines, alarms_due = AlarmLines(state), begin
    due = begin + args.every
    for event in source.events():
        while due <= event.at and state.exit is None:
            _wait_until_played(args.speed, began, due - begin)
            figures.show(due)
            # Skip the rows of a long silence, which are all the same.
            due = event.at if event.at - due > _MAX_SILENCE else due + args.every
        while alarms_due <= event.at and state.exit is None:
            _wait_until_played(args.speed, began, alarms_due - begin)
            alarm_lines.refresh(alarms_due)
            alarms_due = event.at if event.at - alarms_due > _MAX_SILENCE else alarms_due + _ALARM_INTERVAL
        state.apply(event)
        if args.at is None or event.at >= begin:  # without --at, also the preparation before the launch
            _wait_until_played(args.speed, began, event.at - begin)
            lines.show(event)
    if failed := postmortem.build_postmortem(source, state):
        print_status(format_postmortem(failed))
    elif state.exit:
        print_status(f"{source.id} was stopped")
    return 0


def _wait_until_played(speed: float | None, began: float, played: float) -> None:
    if speed and (seconds_left := began + played / speed - time.monotonic()) > 0:
        time.sleep(seconds_left)


def export(args: argparse.Namespace) -> int:
    """`export [RUN]`: write a run into one file and print its name."""
    run = registry.find_run(args.run)
    path = recording.export_run(run, args.output, with_prompts=args.with_prompts)
    print_status("removed: access tokens and keys" + ("" if args.with_prompts else ", prompts and answers"))
    print_written_file(path)
    return 0
