"""The driver process of an experiment, launched as `python -m dflash_tui.experiments ID`."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine

from msgspec.structs import replace

from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.experiments import runner, store
from dflash_tui.experiments.builder import LAUNCH_IDENTITY_FIELDS
from dflash_tui.experiments.design import Arm
from dflash_tui.experiments.tuner import MachineTuner
from dflash_tui.launch import planner, recipe_trust
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.planning.recipes.resolution import ResolvedRecipe


def main(identity: str) -> int:
    """Drive the experiment to its end and return the exit code; its folder holds the results."""
    try:
        design = store.read_progress(store.experiment_folder(store.find_experiment(identity).id)).design
        if not design.launched:
            return asyncio.run(_run_driver(runner.run_experiment(design, [])))
        first = design.launched[0]
        recipe = recipe_loader.find_recipe(first.request.recipe)
        probe = planner.probe_for(recipe)
        resolved_recipes = [_resolve_arm(arm, probe, recipe) for arm in design.launched]
        recipe_trust.require_trust(recipe_trust.list_launched(recipe, [arm.plan for arm in design.launched]))
        tuner = MachineTuner(_select_gpus(probe, first), recipe, first.plan.cluster) if design.tuning else None
        return asyncio.run(_run_driver(runner.run_experiment(design, resolved_recipes, tuner)))
    except (DflashError, OSError) as error:
        print(f"dflash-tui: error: {error}", flush=True)  # noqa: T201 - the driver's log
        return error.exit_code if isinstance(error, DflashError) else 1


def _select_gpus(probe: GpuProbe, arm: Arm) -> GpuProbe:
    """Return the GPUs of an arm's plan, since a new plan might choose others by their free memory."""
    if not arm.plan.gpus:
        return probe
    return replace(probe, gpus=tuple(card for card in probe.gpus if card.uuid in arm.plan.gpus))


async def _run_driver(experiment: Coroutine[None, None, None]) -> int:
    """Drive until the end or a stop signal; SIGHUP, from a closed terminal, is ignored."""
    loop, driving = asyncio.get_running_loop(), asyncio.create_task(experiment)
    is_stopping = False

    def stop() -> None:
        nonlocal is_stopping
        if not is_stopping:  # a second signal would interrupt stopping the server
            is_stopping = True
            driving.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    try:
        await driving
    except asyncio.CancelledError:
        return 130
    return 0


def _resolve_arm(arm: Arm, probe: GpuProbe, recipe: Recipe) -> ResolvedRecipe:
    """Return the resolved recipe of an arm on its GPUs; raise UsageError if the recipe has changed."""
    planned = planner.plan_launch(arm.placed_request, _select_gpus(probe, arm), recipe=recipe)
    # Startup optimizations follow the arm's own plan; arms of earlier releases have none.
    compared = [name for name in LAUNCH_IDENTITY_FIELDS if name != "start"]
    if changed := [name for name in compared if getattr(planned.plan, name) != getattr(arm.plan, name)]:
        what = f"{arm.plan.recipe} has changed since the experiment began"
        raise UsageError(what, evidence=f"{arm.name}: {', '.join(changed)} differ", hint="start a new one")
    return planned.resolved


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
