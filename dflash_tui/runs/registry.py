"""Find the runs recorded on this machine, and the records that cannot be read."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dflash_tui.common import paths, private_files, untrusted_json
from dflash_tui.common.errors import UsageError
from dflash_tui.common.private_files import find_in_folders, load_each
from dflash_tui.machine import processes
from dflash_tui.planning.plan import decode_record, upgrade_record
from dflash_tui.runs import server_process
from dflash_tui.runs.run import VERSION, Run

RUN_FILE = "run.json"
_MAX_RUN_FILE = 1 << 20
_UP = "dflash-tui up RECIPE starts a server"

_decoder: msgspec.json.Decoder[Run] = msgspec.json.Decoder(Run)


def list_runs() -> list[Run]:
    """Return all readable runs, oldest first; `list_broken_runs` returns the others."""
    return load_runs()[0]


def list_living_runs() -> list[Run]:
    """Return the runs whose server is alive, oldest first."""
    return [run for run in list_runs() if server_process.is_alive(run)]


def list_living_servers() -> list[Run]:
    """Return the living runs of rank 0, which stand for their servers; without any, those of the other ranks."""
    living = list_living_runs()
    return [run for run in living if not run.plan.rank] or living


def choose_newest(runs: Sequence[Run]) -> Run | None:
    """Return the newest of `runs` (oldest first), preferring servers to boots of an A/B, which soon end."""
    lasting = [run for run in runs if not run.experiment]
    return next(reversed(lasting or runs), None)


def list_broken_runs() -> dict[str, str]:
    """Return the runs whose record cannot be used, and why; their servers may still be running."""
    return load_runs()[1]


def load_runs() -> tuple[list[Run], dict[str, str]]:
    """Return all usable runs, oldest first, and why each other record cannot be used."""
    runs, broken = load_each(find_in_folders(paths.runs_folder(), RUN_FILE), _load_run)
    return sorted(runs.values(), key=lambda run: run.started_at), broken


class _Version(msgspec.Struct):
    version: int = VERSION


_versions: msgspec.json.Decoder[_Version] = msgspec.json.Decoder(_Version)


def _load_run(path: Path) -> Run:
    try:
        data = private_files.read_file(path, _MAX_RUN_FILE)
        if untrusted_json.decode_json(data, _versions).version > VERSION:
            raise UsageError(f"its {RUN_FILE} was written by a newer dflash-tui")
        run = decode_record(data, _decoder, upgrade_record)
    except (OSError, msgspec.MsgspecError) as error:
        why = str(error.strerror if isinstance(error, OSError) else error)
        raise UsageError(f"its {RUN_FILE} cannot be read: {why}") from None
    if run.id != path.parent.name:
        raise UsageError(f"its {RUN_FILE} is another run's")
    return run


def find_listening_run(name: str | None = None) -> Run:
    """Return the run of `find_run` if its server listens; raise UsageError if it does not."""
    run = find_run(name)
    if not server_process.is_alive(run):
        hint = "dflash-tui ps lists the servers that run" if list_living_servers() else _UP
        raise UsageError(f"{run.id} has ended", hint=hint)
    if not processes.is_listening_on(server_process.list_processes(run), run.plan.port):
        raise UsageError(f"{run.id} does not answer on port {run.plan.port} yet", hint="dflash-tui attach shows when")
    return run


def find_run(name: str | None = None) -> Run:
    """Return the run called `name`: an id, the start of one, or a recipe (its newest); else the newest living run.

    Living servers are preferred to boots of an A/B.

    Raises:
        UsageError: no run matches, or the start of an id matches several.
    """
    runs = list_runs()
    if name is None:
        if not runs:
            raise UsageError("nothing was launched yet", hint=_UP)
        return choose_newest([run for run in runs if server_process.is_alive(run)]) or runs[-1]
    if exact := [run for run in runs if run.id == name]:
        return exact[0]
    if of_recipe := [run for run in runs if run.plan.recipe == name]:
        return choose_newest([run for run in of_recipe if server_process.is_alive(run)]) or of_recipe[-1]
    matching = [run for run in runs if name and run.id.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UsageError(
            f"'{name}' matches {len(matching)} runs", hint=f"choose one: {', '.join(r.id for r in matching)}"
        )
    if why := list_broken_runs().get(name):
        raise UsageError(
            f"ignoring {paths.runs_folder() / name}: {why}", hint="if its server still runs, stop it by hand"
        )
    raise UsageError(f"no run called '{name}'", hint="dflash-tui ps --all lists the runs")


def is_over(run: Run) -> bool:
    """Whether the server and all its processes have ended."""
    return not server_process.is_alive(run) and not server_process.list_processes(run)


def find_last_change(run: Run) -> float:
    """Return the time of the last write to a file of the run, in seconds since the epoch."""
    return max([run.started_at, *(path.lstat().st_mtime for path in run.folder.iterdir())])


def remove_run(run: Run) -> None:
    """Delete the folder of a run; raise UsageError if its server runs."""
    if not is_over(run):
        raise UsageError(f"{run.id} is running", hint=f"dflash-tui stop {run.id}")
    (run.folder / RUN_FILE).unlink()  # first, so that a killed deletion leaves no run behind
    shutil.rmtree(run.folder)
