"""Write into the files of a run folder."""

from __future__ import annotations

import contextlib

from dflash_tui.common import private_files
from dflash_tui.events import Event, encode
from dflash_tui.runs.run import Run


def record_event(run: Run, event: Event) -> None:
    """Append an event to the run's samples; lines are short enough for several processes to append at once.

    On a full or broken disk, or without the folder, the sample is dropped and no error is raised.
    """
    line = encode(event) + b"\n"
    with (
        contextlib.suppress(OSError),
        open(run.samples, "ab", buffering=0, opener=private_files.open_private) as file,
    ):
        if (written := file.write(line)) is not None and written < len(line):
            file.write(b"\n")  # the disk is full: the next line, once there is room, must not begin in this one
