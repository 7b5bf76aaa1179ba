"""Build the post-mortem of a failed run: the cause, what is left running, and what may help."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from dflash_tui.common.errors import DflashError, ServerFailed
from dflash_tui.common.formatting import format_gib, pluralize
from dflash_tui.diagnosis import cause, remedies
from dflash_tui.diagnosis.cause import Diagnosis
from dflash_tui.diagnosis.far_ranks import RankLog, explain_by_ranks
from dflash_tui.diagnosis.remedies import Remedy
from dflash_tui.diagnosis.unknown_error import shorten_frame
from dflash_tui.events import RankState
from dflash_tui.machine import processes
from dflash_tui.monitoring.recording import Recording
from dflash_tui.planning.recipes import recipe_loader as recipes
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import lifecycle, server_process
from dflash_tui.runs.run import Run
from dflash_tui.runs.server_process import read_kept
from dflash_tui.vllm_output.known_failures import Circumstances

_MOST_READ = 8 << 20


class Postmortem(msgspec.Struct, frozen=True):
    """Why a run failed, and what may help."""

    run: str
    """The id of the run."""
    diagnosis: Diagnosis
    """The cause, with its evidence."""
    remedies: tuple[Remedy, ...]
    """The changes that may help, the most promising first."""
    commands: tuple[str, ...]
    """The command line of each remedy."""
    leftovers: str = msgspec.field(name="left")
    """A sentence about processes of it that still run; empty for none."""
    log: str
    """The path of its log."""


def build_postmortem(run: Run, state: RunState) -> Postmortem | None:
    """Return the post-mortem of `run`, or None when it did not fail. Looks for its processes and a free port.

    A recording may come from another machine: only its cause is given.
    """
    recipe = _find_recipe(run)
    ran = Circumstances(run.plan.vllm or "", run.plan.hardware, eager="--enforce-eager" in run.plan.argv)
    diagnosis = cause.diagnose_run(state, recipe.failures if recipe else (), ran)
    if diagnosis is None:
        return None
    if isinstance(run, Recording):
        return Postmortem(run.id, diagnosis, (), (), "", run.source)
    if run.far_ranks:
        diagnosis = explain_by_ranks(diagnosis, _read_rank_logs(run), run.started_at, run.utc_offset)
    port = _find_other_port(run) if diagnosis.kind == "port_in_use" else None
    proposals = remedies.propose_remedies(diagnosis, run.plan, port)
    commands = tuple(_format_command(run, remedy) for remedy in proposals)
    return Postmortem(run.id, diagnosis, proposals, commands, _describe_leftovers(run), str(run.log))


def build_failure(postmortem: Postmortem) -> ServerFailed:
    """Return a post-mortem as an error: what happened and why, the evidence, what to do."""
    diagnosis = postmortem.diagnosis
    evidence = [shorten_frame(line) for line in (*diagnosis.evidence, postmortem.leftovers) if line]
    steps = [*diagnosis.fix, *([f"see also: {diagnosis.link}"] if diagnosis.link else [])]
    for remedy, command in zip(postmortem.remedies, postmortem.commands, strict=True):
        steps.append(f"{remedy.words}:\n      {command}")
    steps.append(f"the full log: {postmortem.log}")
    what = f"{diagnosis.what}: {diagnosis.cause}"
    return ServerFailed(what, evidence="\n  ".join(evidence), hint="\n  → ".join(steps))


def _read_rank_logs(run: Run) -> list[RankLog]:
    """Return the end of the log of each rank on another host, as far as it was copied, and what the keeper knew."""
    record = read_kept(run)
    statuses = {rank.rank: rank for rank in record.ranks} if record else {}
    logs = []
    for far in run.far_ranks:
        status = statuses.get(far.rank)
        has_ended = status is not None and status.state is RankState.ENDED
        is_troubled = status and status.state in {RankState.ENDED, RankState.SUSPENDED, RankState.LOST}
        words = (status.describe_state() if is_troubled else status.trouble) if status else ""
        logs.append(RankLog(far.rank, far.host, _read_end(run.folder / far.log_name), has_ended, words))
    return logs


def _read_end(log: Path) -> bytes:
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _MOST_READ))
            data = file.read(_MOST_READ)
            return data.partition(b"\n")[2] if size > _MOST_READ else data  # a line is not begun in its middle
    except OSError:
        return b""


def _format_command(run: Run, helps: Remedy) -> str:
    command = run.plan.relaunch_request.with_changes(helps.changes).to_command()
    return f"export {helps.needs}=…; {command}" if helps.needs else command


def _find_recipe(run: Run) -> Recipe | None:
    try:
        return recipes.find_recipe(run.plan.relaunch_request.recipe)
    except (DflashError, OSError):  # it was changed or removed in the meantime
        return None


def _find_other_port(run: Run) -> int | None:
    try:
        port = lifecycle.find_free_port(run.plan.port)
        # It may be free again by now, and its user may come back.
        return port if port != run.plan.port else lifecycle.find_free_port(port + 1)
    except DflashError:
        return None


def _describe_leftovers(run: Run) -> str:
    """Return a sentence about the processes of a failed server that still run, and hold their memory; else empty."""
    members = server_process.list_processes(run)
    if not members:
        return ""
    resident = format_gib(processes.measure_resident_memory(members))
    still = "still runs" if len(members) == 1 else "still run"
    return f"{pluralize(len(members), 'process')} of it {still}, with {resident}; stop them: dflash-tui stop {run.id}"
