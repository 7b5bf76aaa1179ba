"""`ab play`: two arms write the same answer as fast as they did, in the panel or as a picture."""

from __future__ import annotations

import argparse

from dflash_tui.cli.commands.measurement.report import write_whole_file
from dflash_tui.cli.commands.server.panel import panel
from dflash_tui.cli.json_lines import print_written_file
from dflash_tui.common import paths
from dflash_tui.common.errors import UsageError
from dflash_tui.common.secrets import redact_secrets
from dflash_tui.common.terminal import has_terminal
from dflash_tui.experiments import store


def play(args: argparse.Namespace) -> int:
    """`ab play [ID]`: open the panel on it, or write the picture."""
    report = store.read_report_so_far(store.experiment_folder(store.find_experiment(args.experiment).id))
    arm, prompt = args.arm or "", args.prompt or ""
    if args.svg:
        from dflash_tui.tui import svg_export

        path = paths.expand_home(args.svg)
        write_whole_file(path, redact_secrets(svg_export.draw_playback(report, arm, prompt)))
        print_written_file(path, as_json=args.json)
        return 0
    if not has_terminal():
        raise UsageError("ab play needs a terminal", hint="without one: --svg FILE")
    from dflash_tui.tui.screens.playback import PlaybackScreen

    return panel(playback=PlaybackScreen(report, arm, prompt))
