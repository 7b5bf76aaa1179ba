"""Bring a server up and keep it up: ask, reserve, check, prepare, launch, watch and launch again.

The command line and the panel are its front ends: they ask the user, show and word events, and watch the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from dflash_tui.common import private_files
from dflash_tui.common.errors import PreflightFailed, ServerFailed, UsageError
from dflash_tui.common.formatting import format_duration
from dflash_tui.diagnosis import postmortem
from dflash_tui.diagnosis.cause import UNKNOWN
from dflash_tui.engines import environments
from dflash_tui.events import Phase, Preparing
from dflash_tui.launch import planner, shutdown
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.launch.preflight.machine import HOW_TO_SHARE
from dflash_tui.launch.preflight.runner import PreflightReport
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.recipe import Recipe, RestartPolicy
from dflash_tui.planning.request import LaunchChanges, LaunchRequest
from dflash_tui.planning.startup_optimizations import FORK
from dflash_tui.run_state.startup import detect_silence
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import lifecycle, registry, reservation
from dflash_tui.runs.run import Run

_MAX_TRIES = 20


_Admitted = tuple[PlannedLaunch, Path]  # a plan whose port and GPUs are reserved, and the reservation's file


@asynccontextmanager
async def reserve_launch(planned: PlannedLaunch, report: Callable[[str], None]) -> AsyncIterator[PlannedLaunch]:
    """Reserve a launch's port and GPUs until the block ends; yield the plan with them.

    By the end of the block the server must be recorded. A port or GPU that the request does not name is replaced by a
    free one; `report` is called with a line if the port changes. A forced launch shares GPUs with a starting server.
    Raise UsageError if the requested port is taken, PreflightFailed if another server is starting on the GPUs.
    """
    admission = asyncio.ensure_future(asyncio.to_thread(_admit, planned, report))
    try:
        admitted, path = await asyncio.shield(admission)
    except asyncio.CancelledError:
        admission.add_done_callback(_drop_admitted)
        raise
    try:
        yield admitted
    finally:
        reservation.drop_reservation(path)


@contextmanager
def reserve_experiment(owner: str, plans: Sequence[Plan]) -> Iterator[None]:
    """Reserve the port and the GPUs of all arms of an A/B while the block runs, between its boots as well.

    The errors are those of `reserve_launch`.
    """
    with reservation.lock_reservations():
        for plan in plans:
            if lifecycle.find_free_port(plan.port) != plan.port:
                raise UsageError(f"port {plan.port} is held by {lifecycle.port_owner(plan.port)}", hint="stop it first")
            if claim := find_gpu_claim(plan):
                raise _build_claimed_error(plan, claim, forcible=False)
        path = reservation.write_reservation(owner, *plans)
    try:
        yield
    finally:
        reservation.drop_reservation(path)


def find_gpu_claim(plan: Plan) -> str:
    """Return which other launch is about to use a GPU of `plan`, as a sentence; empty if none is."""
    if plan.on_cpu:
        return ""
    return next((claim.text for claim in reservation.list_gpu_claims() if plan.disturbs(claim.plan)), "")


def _drop_admitted(admission: asyncio.Future[_Admitted]) -> None:
    if not admission.cancelled() and not admission.exception():
        reservation.drop_reservation(admission.result()[1])


def _admit(planned: PlannedLaunch, report: Callable[[str], None]) -> _Admitted:
    """Reserve the plan's port and GPUs; if they are taken, plan again outside the lock, since that is slow."""
    for _ in range(_MAX_TRIES):
        plan = planned.plan
        with reservation.lock_reservations():
            free = lifecycle.find_free_port(plan.port)
            claim = "" if planned.forced else find_gpu_claim(plan)
            if free == plan.port and not claim:
                return planned, reservation.write_reservation(f"launch of {plan.recipe}", plan)
            owners = "" if free == plan.port else lifecycle.describe_passed_ports(plan.port, free)
        planned = _plan_around(planned, free, owners, claim)
        if owners:
            report(f"port {owners}; taking {free}")
    raise UsageError(f"other launches took every port from {planned.plan.port} on", hint="choose one with --port")


def _plan_around(planned: PlannedLaunch, free: int, port_owners: str, gpu_claim: str) -> PlannedLaunch:
    plan = planned.plan
    request = plan.placed_request
    if port_owners and request.port:
        raise UsageError(f"port {port_owners}", hint=f"{free} is free: --port {free}")
    again = planner.plan_launch_here(request, port=free)
    if gpu_claim and again.plan.gpus == plan.gpus:
        raise _build_claimed_error(plan, gpu_claim)
    return again._replace(forced=planned.forced, replaces=planned.replaces)


def _build_claimed_error(plan: Plan, claim: str, *, forcible: bool = True) -> PreflightFailed:
    cards = ", ".join(plan.gpus) or "every GPU"  # the driver names them GPU-…
    anyway = "\n  → to launch anyway: --force REASON" if forcible else ""
    return PreflightFailed("it would not start", evidence=f"{cards}: {claim}", hint=f"{HOW_TO_SHARE}{anyway}")


_INTERVAL = 0.25  # seconds


class TrustQuestion(NamedTuple):
    """Ask whether to trust a recipe that is not shipped before these plans of it are launched."""

    recipe: Recipe
    plans: Sequence[Plan]


class BesideQuestion(NamedTuple):
    """Whether to launch a server beside others on the same machine."""

    plan: Plan
    others: Sequence[Run]


class LaunchBegun(NamedTuple):
    """The questions are answered, or a server is launched again; port and GPUs are reserved next."""

    planned: PlannedLaunch


class LaunchPlanned(NamedTuple):
    """The plan on its reserved port and GPUs, which is launched if the checks pass."""

    planned: PlannedLaunch


class ChecksMade(NamedTuple):
    """The results of the checks before the launch."""

    report: PreflightReport


class ServerLaunched(NamedTuple):
    """The server runs; `planned.replaces` names the failed run that it replaces, if any."""

    run: Run
    planned: PlannedLaunch


class ServerCrashed(NamedTuple):
    """A server failed and may be launched again; its leftover processes are stopped first."""

    run: Run
    error: ServerFailed


class RestartDue(NamedTuple):
    """A failed server is launched again after `seconds`; `number` counts this restart."""

    run: Run
    number: int
    seconds: float
    policy: RestartPolicy


class RestartRefused(NamedTuple):
    """A failed server is not launched again, and why."""

    run: Run
    why: str


class LaunchNote(NamedTuple):
    """A sentence about the current step."""

    text: str


LaunchQuestion = TrustQuestion | BesideQuestion
LaunchEvent = (
    LaunchBegun
    | LaunchPlanned
    | ChecksMade
    | Preparing
    | ServerLaunched
    | ServerCrashed
    | RestartDue
    | RestartRefused
    | LaunchNote
)


class LaunchFront(Protocol):
    """A front end: it asks the user, shows events, and watches the launched server."""

    async def confirm(self, question: LaunchQuestion) -> bool:
        """Return the answer to a question; raise an error if it cannot be asked."""

    def show(self, event: LaunchEvent) -> None:
        """Show an event."""

    async def watch(self, run: Run, state: RunState) -> None:
        """Apply the events of `run` to `state` until watching ends; raise ServerFailed if the server failed."""


class Hosts(Protocol):
    """The machines of a server during its launch."""

    async def place(self, planned: PlannedLaunch) -> PlannedLaunch:
        """Return the plan on the link that the machines share."""

    async def check(self, planned: PlannedLaunch) -> tuple[PreflightReport, PlannedLaunch]:
        """Return the checks of a launch, and the plan with the commands of all machines."""

    async def launch(self, planned: PlannedLaunch, report: Callable[[Preparing], None]) -> Run:
        """Prepare and launch the server; `report` is called with each event of the preparation."""


ReachHosts = Callable[[LaunchRequest], Awaitable[Hosts]]


async def run_server(planned: PlannedLaunch, front: LaunchFront, reach: ReachHosts, policy: RestartPolicy) -> None:
    """Launch a server, watch it until it ends or `front` stops watching, and launch it again as `policy` says.

    Return without a launch if a question is answered with no; raise ServerFailed if it is not launched again.
    """
    if not await front.confirm(TrustQuestion(planned.resolved.recipe, [planned.plan])):
        return
    others = registry.list_living_servers()
    if others and not await front.confirm(BesideQuestion(planned.plan, others)):
        return
    attempts = _Restarts(policy, front)
    while True:
        run = await check_and_launch(planned, front, reach)
        state = RunState()
        try:
            why = await _watch_start(run, state, front)
        except ServerFailed as failed:
            await attempts.wait(run, state, failed)
        else:
            if not why:
                return
            again = "launching again with spawn, like later launches of this engine"
            front.show(LaunchNote(f"{run.id}: {why}; {again}"))
            spawned = run.plan.relaunch_request.with_changes(LaunchChanges(settings={f"start.{FORK}": "false"}))
            planned = (await asyncio.to_thread(planner.plan_launch_here, spawned))._replace(forced=planned.forced)
        planned = planned._replace(replaces=run.id)


async def check_and_launch(planned: PlannedLaunch, front: LaunchFront, reach: ReachHosts) -> Run:
    """Reserve port and GPUs, check, prepare and launch on all hosts; return the run."""
    loop = asyncio.get_running_loop()
    request = planned.plan.relaunch_request

    def note(text: str) -> None:
        loop.call_soon_threadsafe(front.show, LaunchNote(text))

    front.show(LaunchBegun(planned))
    hosts = await reach(request)
    async with reserve_launch(await hosts.place(planned), note) as reserved:
        if not request.peers:
            front.show(LaunchPlanned(reserved))
        report, surveyed = await hosts.check(reserved)
        if request.peers:  # each host reports its own command
            front.show(LaunchPlanned(surveyed))
        front.show(ChecksMade(report))
        if not reserved.forced or not report.forcible:
            report.raise_failed()
        run = await hosts.launch(reserved, front.show)
    front.show(ServerLaunched(run, reserved))
    return run


async def _watch_start(run: Run, state: RunState, front: LaunchFront) -> str:
    """Return why the run's forked engine failed; empty if it did not."""
    failing = asyncio.create_task(end_failed_start(run, state))
    try:
        await front.watch(run, state)
    except ServerFailed:
        if (state.exit or failing.done()) and (why := await failing):
            return why
        raise
    else:
        return await failing if state.exit else ""
    finally:
        failing.cancel()


class _Restarts:
    def __init__(self, policy: RestartPolicy, front: LaunchFront) -> None:
        self._policy, self._front = policy, front
        self._at: list[float] = []
        self._failures: list[str] = []

    async def wait(self, run: Run, state: RunState, failed: ServerFailed) -> None:
        """Stop the leftovers of the failed `run`, and wait until it may be launched again; else raise ServerFailed."""
        failure = postmortem.build_postmortem(run, state) if self._policy.times and state.exit else None
        if failure is None:
            raise failed
        self._failures.append(f"{run.id}: {failure.diagnosis.what}: {failure.diagnosis.cause}")
        now = time.monotonic()
        if why := explain_no_restart(self._policy, state, failure.diagnosis.kind, self._at, now):
            raise self._give_up(run, failed, why)
        self._front.show(ServerCrashed(run, failed))
        # Leftover processes hold memory and possibly the port.
        await shutdown.stop_and_release_memory(run, lambda text: self._front.show(LaunchNote(text)))
        seconds = restart_delay(self._policy, self._at, now)
        self._front.show(RestartDue(run, len(self._at) + 1, seconds, self._policy))
        while (left := now + seconds - time.monotonic()) > 0 and not are_restarts_cancelled(run):
            await asyncio.sleep(min(left, _INTERVAL))
        if are_restarts_cancelled(run):
            raise self._give_up(run, failed, "it was stopped with dflash-tui stop")
        self._at.append(time.monotonic())

    def _give_up(self, run: Run, failed: ServerFailed, why: str) -> ServerFailed:
        self._front.show(RestartRefused(run, why))
        before = self._failures[:-1]
        evidence = "\n  ".join(filter(None, [failed.evidence, *(["failed before:", *before] if before else [])]))
        return ServerFailed(f"{failed.what}; not launched again: {why}", evidence=evidence, hint=failed.hint)


MAX_DELAY = 300.0
_CANCEL_FILE = "called-off"
# Causes outside the plan, so that another launch may succeed; `terminated` is intended.
_TRANSIENT_CAUSES = frozenset({UNKNOWN, "crashed", "engine_killed", "gpu_fault", "killed", "oom_killed"})


def explain_no_restart(policy: RestartPolicy, state: RunState, kind: str, restarts: Sequence[float], now: float) -> str:
    """Return why a failed server is not launched again; empty if it is. Pure.

    `kind` is its `Diagnosis.kind`; `restarts` are times by the clock of `now`.
    """
    if kind == "terminated":
        return "it received a stop signal"
    if state.warm_at is None and kind not in _TRANSIENT_CAUSES:
        return "it never answered a request, and would fail again for the same reason"
    recent = [at for at in restarts if now - at < policy.within_s]
    if len(recent) >= policy.times:
        times = "once" if policy.times == 1 else f"{policy.times} times"
        return f"it was already launched again {times} within {format_duration(policy.within_s)}"
    return ""


def restart_delay(policy: RestartPolicy, restarts: Sequence[float], now: float) -> float:
    """Return the seconds until the next launch, doubled per restart in the window, at most five minutes. Pure.

    The arguments are those of `explain_no_restart`.
    """
    recent = [at for at in restarts if now - at < policy.within_s]
    return float(min(policy.wait_s * 2 ** len(recent), max(MAX_DELAY, policy.wait_s)))


def cancel_restarts(run: Run) -> None:
    """Record that the user stopped the failed server of `run`, so that it is not launched again."""
    with contextlib.suppress(OSError):  # its folder may have been deleted
        private_files.write_private_file(run.folder / _CANCEL_FILE, b"")


def are_restarts_cancelled(run: Run) -> bool:
    """Whether the user stopped `run` after its server had failed."""
    return (run.folder / _CANCEL_FILE).exists()


# A forked engine logs its first line within a second; a spawned one takes 15 to 25 s, busily.
HUNG_SECONDS = 60.0
_CANNOT_FORK = "forked"


async def end_failed_start(run: Run, state: RunState) -> str:
    """Watch a start until the server is up; if forking failed, stop the server and return why, else return empty text.

    The caller keeps `state` up to date.
    """
    while FORK in run.plan.start and state.up_at is None:
        if why := explain_failed_fork(run, state, time.time()):
            environments.remember_failed_measure(Path(run.plan.unpatched_folder), FORK, why)
            await lifecycle.stop_server(run)
            return why
        if state.exit:
            break
        await asyncio.sleep(_INTERVAL)
    return ""


def explain_failed_fork(run: Run, state: RunState, now: float) -> str:
    """Return why a start failed in a way that a spawned engine process may not; empty if it did not."""
    if FORK not in run.plan.start or state.up_at is not None:
        return ""
    if state.exit:
        failure = postmortem.build_postmortem(run, state)
        return failure.diagnosis.cause if failure and failure.diagnosis.kind == _CANNOT_FORK else ""
    # The server itself waits earlier, as for the hub; the engine's first line has its version.
    if state.startup.phase is not Phase.ENGINE or "vllm" in state.startup.facts or not state.lines:
        return ""
    silence = detect_silence(state.startup, state.lines[-1].at, now)
    if silence is None or not silence.warning or silence.seconds < HUNG_SECONDS:
        return ""
    return f"the forked engine process hung before its first line, for {format_duration(silence.seconds)}"
