"""The process that drives an experiment: `python -m dflash_tui.experiments ID`. It is launched by `core.ab_start`."""

from __future__ import annotations

import asyncio
import signal
import sys

from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.experiments import runner, store
from dflash_tui.experiments.builder import LAUNCH_IDENTITY_FIELDS
from dflash_tui.experiments.design import Arm, Design
from dflash_tui.launch import planner
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.resolution import ResolvedRecipe


def main(identity: str) -> int:
    """Drive the experiment to its end and return the exit code; what happens is in its folder."""
    try:
        design = store.find_experiment(identity)
        setups = [_setup(arm) for arm in design.arms]
        return asyncio.run(_drive(design, setups, _normal(design)))
    except (DflashError, OSError) as error:
        print(f"dflash-tui: error: {error}", flush=True)  # noqa: T201 - the driver's log
        return error.exit_code if isinstance(error, DflashError) else 1


async def _drive(design: Design, setups: list[ResolvedRecipe], normal: Plan) -> int:
    """Drive until the end, or until a signal asks for it; the connection that it was launched from does not matter."""
    loop, driving = asyncio.get_running_loop(), asyncio.create_task(runner.run_experiment(design, setups, normal))
    asked = False

    def stop() -> None:
        nonlocal asked
        if not asked:  # a second signal would interrupt the stopping of the server
            asked = True
            driving.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    try:
        await driving
    except asyncio.CancelledError:
        return 130
    return 0


def _setup(arm: Arm) -> ResolvedRecipe:
    """Return the setup of an arm, from its recipe as it is now.

    Raises:
        UsageError: the recipe has changed, so that the arm would be another one than before.
    """
    made = planner.replan_launch(arm.options)
    if changed := [name for name in LAUNCH_IDENTITY_FIELDS if getattr(made.plan, name) != getattr(arm.plan, name)]:
        what = f"{arm.plan.recipe} is not what it was when the experiment began"
        raise UsageError(what, evidence=f"{arm.name}: {', '.join(changed)} differ", hint="begin a new one")
    return made.setup


def _normal(design: Design) -> Plan:
    """Return the plan that the recipe has without what is varied, with the patches that it asks for itself."""
    arm = design.arms[0]
    every = {option for each in design.arms for option in each.options}
    varied = {option for option in every if len({each.options.get(option) for each in design.arms}) > 1}
    by_hand = {option for option in arm.options if option.startswith("--set patches.")}
    return planner.replan_launch(arm.options, dict.fromkeys(varied | by_hand)).plan


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
