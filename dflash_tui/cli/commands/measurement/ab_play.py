"""`ab play`: two arms write the same answer as fast as they did, in the panel or as a picture."""

from __future__ import annotations

import argparse

from dflash_tui.cli.commands.measurement.report import write_whole_file
from dflash_tui.cli.commands.server.panel import panel
from dflash_tui.cli.json_lines import print_written_file
from dflash_tui.common import paths
from dflash_tui.common.errors import UsageError
from dflash_tui.common.formatting import has_terminal
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.common.secrets import redact_secrets
from dflash_tui.experiments import store
from dflash_tui.experiments.analysis.report import Comparison, ExperimentReport


def play(args: argparse.Namespace) -> int:
    """`ab play [ID]`: open the panel on it, or write the picture."""
    report = store.read_report_so_far(store.experiment_folder(store.find_experiment(args.experiment).id))
    comparison = _find_comparison(report, args.arm)
    if not args.svg:
        return _open_panel(report, comparison, args.prompt or "")
    from dflash_tui.tui import svg_export

    path = paths.expand_home(args.svg)
    write_whole_file(path, redact_secrets(svg_export.draw_playback(report, comparison, args.prompt or "")))
    print_written_file(path, as_json=args.json)
    return 0


def _open_panel(report: ExperimentReport, comparison: Comparison | None, prompt: str) -> int:
    if not has_terminal():
        raise UsageError("ab play needs a terminal", hint="without one: --svg FILE")
    from dflash_tui.tui.screens.playback import build_playback

    return panel(playback=build_playback(report, comparison, prompt))


def _find_comparison(report: ExperimentReport, arm: str | None) -> Comparison | None:
    """Return the comparison of the first arm with the one that is named; None before there is a verdict.

    Raises:
        UsageError: no arm with a verdict is called so.
    """
    if arm is None:
        return next(iter(report.comparisons), None)
    names = [report.design.arms[comparison.b].name for comparison in report.comparisons]
    if arm not in names:
        hint = f"there are: {', '.join(map(clean_line, names))}" if names else "the verdict comes at the end"
        raise UsageError(f"no arm '{clean_line(arm)}' was compared with the first one", hint=hint)
    return report.comparisons[names.index(arm)]
