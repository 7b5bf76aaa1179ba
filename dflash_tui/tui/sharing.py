"""Shares what a screen shows: a report in the clipboard and in a file, and a picture of the screen beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from textual.screen import Screen

from dflash_tui.common import private_files
from dflash_tui.common.errors import DflashError
from dflash_tui.common.secrets import redact_secrets
from dflash_tui.tui.dialogs.basic import ErrorDialog


def share_report(screen: Screen[Any], markdown: str, folder: Path, *, has_picture: bool = True) -> None:
    """Copy a report, and write it and a picture of the screen into `folder` as `report.md` and `report.svg`."""
    screen.app.copy_to_clipboard(markdown)
    files = {"report.md": markdown}
    if has_picture:
        files["report.svg"] = redact_secrets(screen.app.export_screenshot())
    try:
        for name, text in files.items():
            private_files.write_private_file(folder / name, text.encode())
    except OSError as error:
        do = "the clipboard has the report, if the terminal allows OSC 52"
        failure = DflashError(f"{folder} cannot be written", evidence=error.strerror or str(error), hint=do)
        screen.app.push_screen(ErrorDialog(failure))
        return
    written = f"{folder / 'report.md'}{' and .svg' if has_picture else ''}"
    screen.notify(f"wrote {written}; the report is copied, if the terminal allows OSC 52", markup=False, timeout=10)
