"""Whether a launch may have its port and its GPUs now: it reserves them, moves on to others, or is refused by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

from dflash_tui.common.errors import PreflightFailed, UsageError
from dflash_tui.launch import planner
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.launch.preflight.machine import HOW_TO_SHARE
from dflash_tui.planning.plan import Plan
from dflash_tui.runs import lifecycle, reservation

_MAX_TRIES = 20


class _Admitted(NamedTuple):
    """A plan whose port and GPUs are reserved, and the reservation."""

    planned: PlannedLaunch
    path: Path


@asynccontextmanager
async def reserve_launch(
    planned: PlannedLaunch, report: Callable[[str], None], *, forced: str = ""
) -> AsyncIterator[PlannedLaunch]:
    """Reserve port and GPUs of a launch until the block ends, by when its server is recorded; yield the plan with them.

    A port that nobody asked for is replaced by the next free one, and GPUs that nobody asked for by others.

    Args:
        planned: what is to be launched.
        report: called with a line when the port is another one than planned.
        forced: why failed checks are overruled; then GPUs are shared with a server that is starting.

    Raises:
        UsageError: the port that was asked for is not free; it says who has it.
        PreflightFailed: somebody else is starting on the GPUs; it says who.
        DflashError: nothing can be reserved, as on a full disk.
    """
    admission = asyncio.ensure_future(asyncio.to_thread(_admit, planned, report, forced))
    try:
        admitted = await asyncio.shield(admission)
    except asyncio.CancelledError:
        admission.add_done_callback(_drop_admitted)
        raise
    try:
        yield admitted.planned
    finally:
        reservation.drop_reservation(admitted.path)


@contextmanager
def reserve_experiment(owner: str, plans: Sequence[Plan]) -> Iterator[None]:
    """Reserve the port and the GPUs of all arms of an A/B while the block runs, between its boots as well.

    Raises:
        UsageError: somebody else has the port; it says who.
        PreflightFailed: somebody else is starting on the GPUs; it says who.
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
    """Return who else is about to use a GPU of `plan`, as a sentence; empty when nobody is."""
    if plan.on_cpu:
        return ""
    return next((claim.text for claim in reservation.list_gpu_claims() if plan.disturbs(claim.plan)), "")


def _drop_admitted(admission: asyncio.Future[_Admitted]) -> None:
    if not admission.cancelled() and not admission.exception():
        reservation.drop_reservation(admission.result().path)


def _admit(planned: PlannedLaunch, report: Callable[[str], None], forced: str) -> _Admitted:
    """Reserve what is planned, or plan once more around what others have, outside of the lock since that takes long."""
    for _ in range(_MAX_TRIES):
        plan = planned.plan
        with reservation.lock_reservations():
            free = lifecycle.find_free_port(plan.port)
            claim = "" if forced else find_gpu_claim(plan)
            if free == plan.port and not claim:
                return _Admitted(planned, reservation.write_reservation(f"launch of {plan.recipe}", plan))
            owners = "" if free == plan.port else lifecycle.describe_passed_ports(plan.port, free)
        planned = _plan_around(planned, free, owners, claim)
        if owners:
            report(f"port {owners}; taking {free}")
    raise UsageError(f"other launches took every port from {planned.plan.port} on", hint="choose one with --port")


def _plan_around(planned: PlannedLaunch, free: int, port_owners: str, gpu_claim: str) -> PlannedLaunch:
    """Return the plan on the `free` port, and on GPUs that nobody claims.

    Raises:
        UsageError: the port was asked for.
        PreflightFailed: there are no other GPUs, or these were asked for.
    """
    plan = planned.plan
    request = plan.relaunch_request
    if port_owners and request.port:
        raise UsageError(f"port {port_owners}", hint=f"{free} is free: --port {free}")
    again = planner.plan_launch_here(request, port=free, cluster=plan.cluster)
    if gpu_claim and again.plan.gpus == plan.gpus:
        raise _build_claimed_error(plan, gpu_claim)
    return again


def _build_claimed_error(plan: Plan, claim: str, *, forcible: bool = True) -> PreflightFailed:
    cards = ", ".join(plan.gpus) or "every GPU"  # they are called GPU-… by the driver
    anyway = "\n  → to launch anyway: --force REASON" if forcible else ""
    return PreflightFailed("it would not start", evidence=f"{cards}: {claim}", hint=f"{HOW_TO_SHARE}{anyway}")
