"""Remove the folders of runs that have ended."""

from __future__ import annotations

import shutil

from dflash_tui.common.errors import UsageError
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import Run


def is_over(run: Run) -> bool:
    """Whether neither the server nor any process of it is left."""
    return not server_process.is_alive(run) and not server_process.list_processes(run)


def find_last_change(run: Run) -> float:
    """Return when something of the run was written last: its log or its samples, in seconds since the epoch.

    Raises:
        FileNotFoundError: somebody else has removed it meanwhile.
    """
    return max([run.started_at, *(path.lstat().st_mtime for path in run.folder.iterdir())])


def remove_run(run: Run) -> None:
    """Delete the folder of a run.

    Raises:
        FileNotFoundError: somebody else has removed it meanwhile.
        UsageError: its server runs.
    """
    if not is_over(run):
        raise UsageError(f"{run.id} is running", hint=f"dflash-tui stop {run.id}")
    (run.folder / registry.RUN_FILE).unlink()  # first: what a deletion leaves that is killed is no run any more
    shutil.rmtree(run.folder)
