"""All that can be said about a failed run: why, what is left of it, and what may help."""

from __future__ import annotations

import msgspec

from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import format_gib, pluralize
from dflash_tui.diagnosis import cause, remedies
from dflash_tui.diagnosis.cause import Diagnosis
from dflash_tui.diagnosis.remedies import Remedy
from dflash_tui.machine import processes
from dflash_tui.monitoring.recording import Recording
from dflash_tui.planning import recipe_loader as recipes
from dflash_tui.planning.recipe import Recipe
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import lifecycle, server_process
from dflash_tui.runs.run import Run


class Postmortem(msgspec.Struct, frozen=True):
    """Why a run failed, what may help, what processes it has left, as a sentence or empty, and where its log is."""

    run: str
    diagnosis: Diagnosis
    remedies: tuple[Remedy, ...]
    commands: tuple[str, ...]
    left: str
    log: str


def build_postmortem(run: Run, state: RunState) -> Postmortem | None:
    """Return the post-mortem of `run`, or None while it did not fail. Looks for its processes and a free port.

    A recording may be another machine's: it is explained, and nothing here is looked at or proposed for it.
    """
    recipe = _find_recipe(run)
    found = cause.diagnose_run(state, recipe.failures if recipe else ())
    if found is None:
        return None
    if isinstance(run, Recording):
        return Postmortem(run.id, found, (), (), "", run.source)
    helps = remedies.propose_remedies(found, run.plan, _find_other_port(run) if found.kind == "port_in_use" else None)
    commands = tuple(_format_command(run, remedy) for remedy in helps)
    return Postmortem(run.id, found, helps, commands, _describe_leftovers(run), str(run.log))


def _format_command(run: Run, helps: Remedy) -> str:
    command = run.plan.relaunch_request.with_changes(helps.changes).to_command()
    return f"export {helps.needs}=…; {command}" if helps.needs else command


def _find_recipe(run: Run) -> Recipe | None:
    try:
        return recipes.find_recipe(run.plan.relaunch_request.recipe)
    except (DflashError, OSError):  # it was changed or removed since
        return None


def _find_other_port(run: Run) -> int | None:
    try:
        port = lifecycle.find_free_port(run.plan.port)
        # It may be free again by now, and whoever had it may come back.
        return port if port != run.plan.port else lifecycle.find_free_port(port + 1)
    except DflashError:
        return None


def _describe_leftovers(run: Run) -> str:
    """Return what is left of a failed server; it holds memory, and on a GPU all that it took."""
    members = server_process.list_processes(run)
    if not members:
        return ""
    held = format_gib(processes.measure_resident_memory(members))
    still = "still runs" if len(members) == 1 else "still run"
    return (
        f"{pluralize(len(members), 'process')} of it {still}, with {held}; dflash-tui stop {run.id} ends what is left"
    )
