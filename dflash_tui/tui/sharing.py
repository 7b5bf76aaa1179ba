"""Exports from a screen: a report to the clipboard and a file, a picture, a setting as a recipe."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from textual.screen import Screen

from dflash_tui.common import private_files
from dflash_tui.common.errors import DflashError
from dflash_tui.common.secrets import redact_secrets
from dflash_tui.experiments import tuner
from dflash_tui.experiments.analysis.report import TuneOutcome
from dflash_tui.experiments.progress import Progress
from dflash_tui.tui.dialogs.basic import ErrorDialog, showing_errors


def share_report(
    screen: Screen[Any], markdown: str, folder: Path, *, has_picture: bool = True, more: Mapping[str, str] | None = None
) -> None:
    """Copy a report, and write it and a picture of the screen to `folder` as `report.md` and `report.svg`.

    `more` are further files by their paths in it, such as those of a leaderboard.
    """
    screen.app.copy_to_clipboard(markdown)
    files = {"report.md": markdown} | {path: redact_secrets(text) for path, text in (more or {}).items()}
    if has_picture:
        files["report.svg"] = redact_secrets(screen.app.export_screenshot())
    for name, text in files.items():
        try:
            private_files.ensure_private_folder((folder / name).parent)
            private_files.write_private_file(folder / name, text.encode())
        except OSError as error:
            do = "the clipboard has the report, if the terminal allows OSC 52"
            failure = DflashError(f"{folder / name} cannot be written", evidence=error.strerror or str(error), hint=do)
            screen.app.push_screen(ErrorDialog(failure))
            return
    written = f"{folder / 'report.md'}{' and .svg' if has_picture else ''}{', and what leaderboards take' * bool(more)}"
    screen.notify(f"wrote {written}; the report is copied, if the terminal allows OSC 52", markup=False, timeout=10)


async def keep_as_recipe(screen: Screen[Any], progress: Progress, outcome: TuneOutcome, name: str) -> None:
    """Write the best setting as a new recipe, without overwriting others."""
    with showing_errors(screen.app):
        path = await asyncio.to_thread(tuner.keep_best, progress, outcome, name, overwrite=False)
        screen.notify(f"wrote {path}", markup=False, timeout=10)
