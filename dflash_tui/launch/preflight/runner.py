"""Run the preflight checks of a launch: what can be known to fail, each with a finding and a fix."""

from __future__ import annotations

import asyncio

import msgspec

from dflash_tui.common.errors import PreflightFailed
from dflash_tui.engines import engine_python, inventory, model_hub
from dflash_tui.launch import planner
from dflash_tui.launch.preflight import launch as preflight_launch
from dflash_tui.launch.preflight import machine as preflight_machine
from dflash_tui.launch.preflight.check import Check, CheckLevel, Situation
from dflash_tui.machine import nvml
from dflash_tui.machine.gpus import Gpu, GpuProbe
from dflash_tui.planning.cluster import count_gpus_per_host
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.resolution import ResolvedRecipe


class PreflightReport(msgspec.Struct, frozen=True):
    """The results of all preflight checks of a launch."""

    checks: tuple[Check, ...]
    """The checks, those of the machine first."""

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that block the launch."""
        return tuple(check for check in self.checks if check.level is CheckLevel.FAIL)

    @property
    def forcible(self) -> bool:
        """Whether the launch may be insisted on: no check that blocks it is final."""
        return not any(check.final for check in self.failed)

    def raise_failed(self, *, offer_force: bool = True) -> None:
        """Raise an error when a check blocks the launch; the hint may name `--force` where that would help.

        Raises:
            PreflightFailed: with the finding and the fix of each failed check.
        """
        if failed := self.failed:
            findings = "\n  ".join(f"{check.name}: {check.finding}" for check in failed)
            steps = dict.fromkeys(check.fix for check in failed if check.fix)
            if offer_force and self.forcible:
                steps["to launch anyway: --force REASON"] = None
            raise PreflightFailed("it would not start", evidence=findings, hint="\n  → ".join(steps))


async def survey_launch(resolved: ResolvedRecipe, plan: Plan, *, bare: bool = False) -> Situation:
    """Probe all that the checks of `plan` look at; the hub is asked about the models, for ten seconds at most."""
    probe_gpus = nvml.probe_gpus if bare else planner.probe_launchable_gpus
    gpu_probe = asyncio.to_thread(probe_gpus) if bare or not plan.on_cpu else asyncio.sleep(0, GpuProbe())
    engine_lookup = asyncio.to_thread(inventory.find_planned_engine, plan)
    model_lookups = asyncio.gather(*(model_hub.look_up_model(model.name, model.revision) for model in plan.models))
    probe, engine, models = await asyncio.gather(gpu_probe, engine_lookup, model_lookups)
    return Situation(resolved, plan, probe, _select_gpus(probe, resolved, plan), engine, tuple(models), bare)


def _select_gpus(probe: GpuProbe, resolved: ResolvedRecipe, plan: Plan) -> tuple[Gpu, ...]:
    """Return the GPUs that the server would use: those of the plan, else the first of its class."""
    if plan.gpus:
        return tuple(card for card in probe.gpus if card.uuid in plan.gpus)
    count = count_gpus_per_host(resolved)
    return tuple(card for card in probe.gpus if card.hardware is plan.hardware)[:count] or probe.gpus[:count]


async def run_preflight(resolved: ResolvedRecipe, plan: Plan, *, thorough: bool = False) -> PreflightReport:
    """Run every check of launching `plan`; `thorough` ones may read disks for seconds."""
    situation = await survey_launch(resolved, plan)
    machine, launch = await asyncio.gather(
        asyncio.to_thread(preflight_machine.check_machine, situation, thorough=thorough),
        engine_python.run_in_cancellable_thread(lambda: preflight_launch.check_launch(situation, thorough=thorough)),
    )
    return PreflightReport((*machine, *launch))


async def run_machine_checks(resolved: ResolvedRecipe, plan: Plan) -> PreflightReport:
    """Run the checks of this machine only; `plan` is one without requirements, that of the CPU demo."""
    situation = await survey_launch(resolved, plan, bare=True)
    return PreflightReport(tuple(await asyncio.to_thread(preflight_machine.check_machine, situation, thorough=True)))
