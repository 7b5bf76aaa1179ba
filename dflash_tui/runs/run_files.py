"""Write into the files of a run folder."""

from __future__ import annotations

import contextlib

from dflash_tui.common import private_files
from dflash_tui.event_json import encode
from dflash_tui.events import Event
from dflash_tui.runs.run import Run


def record_event(run: Run, event: Event) -> None:
    """Append an event to the run's samples; on a full or broken disk, or without the folder, it is dropped silently."""
    with contextlib.suppress(OSError):
        private_files.append_line(run.samples, encode(event))
