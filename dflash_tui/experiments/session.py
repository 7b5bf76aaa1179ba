"""How an A/B or a tune begins: asked, checked, prepared, and only then servers in the way are stopped.

The command line and the panel are front ends of it: they ask, show and word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dflash_tui.common.errors import PreflightFailed
from dflash_tui.events import Preparing
from dflash_tui.experiments import controller
from dflash_tui.experiments.design import Design
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.launch.session import TrustQuestion
from dflash_tui.peers import cluster_launch
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.runs import lifecycle
from dflash_tui.runs.run import Run


class StopQuestion(NamedTuple):
    """Whether servers that would disturb the measurement may be stopped once all is prepared."""

    runs: Sequence[Run]


class BeginQuestion(NamedTuple):
    """Whether to begin what was checked."""


class CheckingArms(NamedTuple):
    """The questions before the checks are answered: every arm is being checked."""

    in_the_way: Sequence[Run]


class ServerStopping(NamedTuple):
    """A server that is in the way is being stopped."""

    run: Run


class ServerStopped(NamedTuple):
    """A server that was in the way has stopped."""

    run: Run


ExperimentQuestion = TrustQuestion | StopQuestion | BeginQuestion
ExperimentStep = CheckingArms | Preparing | ServerStopping | ServerStopped


class ExperimentFront(Protocol):
    """Who begins an experiment: it asks the user and shows what happens."""

    async def confirm(self, question: ExperimentQuestion) -> bool:
        """Return the answer to a question; an error says why it cannot be asked."""

    def show(self, event: ExperimentStep) -> None:
        """Show what happens."""


async def begin_experiment(design: Design, resolved_recipes: Sequence[ResolvedRecipe], front: ExperimentFront) -> bool:
    """Begin an experiment in a process of its own; return whether it began, which a no to a question prevents.

    A failure leaves servers that are in the way running.

    Args:
        design: what it is going to do.
        resolved_recipes: the recipe as each of its arms has it.
        front: asks and shows.

    Raises:
        UsageError: another experiment is running.
        PreflightFailed: an arm would not start.
        DflashError: something could not be prepared or stopped, or the driver ended at once.
    """
    if not await front.confirm(TrustQuestion(resolved_recipes[0].recipe, [arm.plan for arm in design.arms])):
        return False
    in_the_way = controller.find_disturbing_servers(design)
    if in_the_way and not await front.confirm(StopQuestion(in_the_way)):
        return False
    front.show(CheckingArms(in_the_way))
    for arm, resolved in zip(design.arms, resolved_recipes, strict=True):
        async with cluster_launch.open_peers(arm.request.peers) as peers:
            report = await cluster_launch.check_all_hosts(PlannedLaunch(resolved, arm.plan), peers)
        try:
            report.raise_failed(offer_force=False)
        except PreflightFailed as error:
            raise PreflightFailed(f"{arm.name}: {error.what}", evidence=error.evidence, hint=error.hint) from None
    if not await front.confirm(BeginQuestion()):
        return False
    await _prepare_arms(design, resolved_recipes, front)
    for run in in_the_way:
        front.show(ServerStopping(run))
        await lifecycle.stop_server(run)
        front.show(ServerStopped(run))
    await asyncio.to_thread(controller.start_experiment, design)
    return True


async def _prepare_arms(design: Design, resolved_recipes: Sequence[ResolvedRecipe], front: ExperimentFront) -> None:
    """Install, build and fetch on every host what any arm needs: that takes minutes the first time.

    Raises:
        DflashError: something could not be prepared, or the hosts do not have the same.
    """
    shown = set[tuple[object, ...]]()

    def show_once(event: Preparing) -> None:
        step = event.host, event.step, event.text, event.fraction
        if step not in shown:  # arms have an engine in common
            shown.add(step)
            front.show(event)

    for arm, resolved in zip(design.arms, resolved_recipes, strict=True):
        async with cluster_launch.open_peers(arm.request.peers) as peers:
            await cluster_launch.prepare_hosts(PlannedLaunch(resolved, arm.plan), peers, show_once)
