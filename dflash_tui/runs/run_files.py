"""The files of a run folder that grow: the server's log, wherever somebody renamed it, and the recorded events."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_tui.common import private_files
from dflash_tui.events import Event, encode

if TYPE_CHECKING:  # a run knows where its log is
    from dflash_tui.runs.run import Run

NAME = "server.log"


def find_log(folder: Path, pid: int = 0) -> Path:
    """Return the file that the process `pid` writes its output to when it is in `folder`, else the log there.

    That is `server.log`, or when there is none, or an empty one in its place, the newest `server.log.*`.
    """
    log = folder / NAME
    try:
        written = Path(f"/proc/{pid}/fd/1").readlink()
        if written.parent == folder.resolve() and written.is_file():  # a deleted one is no file
            return folder / written.name
    except OSError:
        pass
    try:
        if log.stat().st_size:
            return log
    except OSError:
        pass
    others = [path for path in folder.glob(f"{NAME}.*") if path.is_file() and not path.is_symlink()]
    return max(others, key=_changed, default=log)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def record_event(run: Run, event: Event) -> None:
    """Append an event to the run's samples; lines are short enough to be written whole by several processes.

    A disk that is full or broken, or a folder that is not ours or is gone, costs the sample and nothing else.
    """
    line = encode(event) + b"\n"
    with (
        contextlib.suppress(OSError),
        open(run.samples, "ab", buffering=0, opener=private_files.open_private) as file,
    ):
        if (written := file.write(line)) is not None and written < len(line):
            file.write(b"\n")  # the disk is full: the next line, once there is room, must not begin in this one
