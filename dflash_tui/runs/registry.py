"""Find the runs that were recorded on this machine, and the records that cannot be read."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

import msgspec

from dflash_tui.common import paths, private_files, untrusted_json
from dflash_tui.common.errors import UsageError
from dflash_tui.events import YEAR_2100
from dflash_tui.planning.earlier_plans import decode_record, upgrade_record
from dflash_tui.runs import server_process
from dflash_tui.runs.run import VERSION, Run

RUN_FILE = "run.json"
_MAX_RUN_FILE = 1 << 20
_READ_ERRORS = (OSError, msgspec.MsgspecError)

_decoder: msgspec.json.Decoder[Run] = msgspec.json.Decoder(Run)


def list_runs() -> list[Run]:
    """Return all recorded runs, oldest first; `unreadable_run_files` has those that cannot be read."""
    runs = [run for path in paths.runs_folder().glob(f"*/{RUN_FILE}") if (run := _load_run(path))]
    return sorted(runs, key=lambda run: run.started_at)


def unreadable_run_files() -> dict[Path, str]:
    """Return the run files that cannot be used, and why; the server of each may still be running."""
    return {
        path: _explain_unreadable(path)
        for path in sorted(paths.runs_folder().glob(f"*/{RUN_FILE}"))
        if _load_run(path) is None
    }


class _Version(msgspec.Struct):
    version: int = VERSION


_versions: msgspec.json.Decoder[_Version] = msgspec.json.Decoder(_Version)


def _explain_unreadable(path: Path) -> str:
    try:
        newer = untrusted_json.decode_untrusted(_read_run_file(path), _versions).version > VERSION
    except _READ_ERRORS:
        newer = False
    return "was written by a newer dflash-tui" if newer else "cannot be read"


def _read_run_file(path: Path) -> bytes:
    return private_files.read_file(path, _MAX_RUN_FILE)


def _load_run(path: Path) -> Run | None:
    if private_files.ownership_problem(path.parent):  # its pid would be signalled
        return None
    try:
        run = decode_record(_read_run_file(path), _decoder, upgrade_record)
    except _READ_ERRORS:
        return None
    possible = 1 < run.pid < 1 << 31 and 0 < run.plan.port < 1 << 16 and 0 <= run.started_at < YEAR_2100
    usable = possible and _is_address(run.plan.host) and run.version <= VERSION
    return run if run.id == path.parent.name and usable else None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def find_run(name: str | None = None) -> Run:
    """Return the run called `name`: an id, the start of one, or the newest of a recipe; without it the newest alive.

    Raises:
        UsageError: no run matches, or the start of an id matches several.
    """
    runs = list_runs()
    if name is None:
        chosen = [run for run in runs if server_process.is_alive(run)] or runs
        if not chosen:
            raise UsageError("nothing was launched yet", hint="dflash-tui up RECIPE starts a server")
        return chosen[-1]
    if exact := [run for run in runs if run.id == name]:
        return exact[0]
    if of_recipe := [run for run in runs if run.plan.recipe == name]:
        return ([run for run in of_recipe if server_process.is_alive(run)] or of_recipe)[-1]
    matching = [run for run in runs if name and run.id.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UsageError(
            f"'{name}' matches {len(matching)} runs", hint=f"choose one: {', '.join(r.id for r in matching)}"
        )
    folder = paths.runs_folder() / name
    if folder.parent == paths.runs_folder() and (why := private_files.ownership_problem(folder)):
        raise UsageError(f"ignoring {folder}: it {why}", hint=private_files.suggest_ownership_fix(folder))
    raise UsageError(f"no run called '{name}'", hint="dflash-tui ps --all lists the runs")
