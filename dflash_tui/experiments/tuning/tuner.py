"""The tuner: plans the rounds of a tune on this machine, and writes its personal recipe at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from dflash_tui.common.errors import DflashError
from dflash_tui.experiments import boot, store
from dflash_tui.experiments.analysis.report import ExperimentReport, TuneOutcome
from dflash_tui.experiments.design import Arm
from dflash_tui.experiments.progress import Progress
from dflash_tui.experiments.runner import NextRound
from dflash_tui.experiments.tuning import candidates, outcome, personal_recipe, schedule
from dflash_tui.experiments.tuning.candidates import Proposal
from dflash_tui.launch import planner
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.planning.cluster import Cluster
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Recipe


class MachineTuner(NamedTuple):
    """Plans candidates of a recipe for the GPUs that its tune began on."""

    probe: GpuProbe
    recipe: Recipe
    cluster: Cluster | None = None

    def plan_round(self, progress: Progress) -> NextRound | None:
        """Return another round once all boots are over; None at the end."""
        following = schedule.plan_round(progress, self._propose)
        if following:
            names = [arm.name for arm in (*progress.design.arms, *following.event.arms)]
            field = ", ".join(names[arm] for arm in following.event.field)
            boot.write_driver_log(f"round of {following.event.key}: {field}")
        return following

    def conclude(self, progress: Progress, report: ExperimentReport) -> ExperimentReport:
        """Return the report with what the tune has found; a best that is faster becomes a recipe."""
        kept_answers = store.read_answers(store.experiment_folder(progress.design.id))
        tune = outcome.judge_tune(progress, kept_answers)
        if progress.design.tuning and outcome.is_worth_keeping(tune):
            try:
                path = keep_best(progress, tune, progress.design.tuning.save_as, overwrite=False)
                tune = replace(tune, recipe=str(path))
                boot.write_driver_log(f"wrote {path}")
            except (DflashError, OSError) as error:
                boot.write_driver_log(f"the personal recipe was not written: {error}")
                tune = replace(tune, unwritten=" ".join(f"{error}".split()))
        return replace(report, tune=tune)

    def _propose(self, axis: str, best: Arm, arms: Sequence[Arm], worse: Sequence[Arm]) -> Proposal:
        planning = candidates.Planner(self.probe, self.recipe, self.cluster)
        return candidates.propose_candidates(axis, best, arms, worse, planning)


def keep_best(progress: Progress, tune: TuneOutcome, name: str, *, overwrite: bool) -> Path:
    """Write the best setting of a tune as a recipe, whether or not the tune is over; return its file.

    Raises:
        DflashError: it cannot be planned any more, or no recipe can be called so.
        OSError: it cannot be written.
    """
    arm = progress.design.arms[tune.best]
    recipe = recipe_loader.find_recipe(arm.request.recipe)
    probe = planner.probe_for(recipe)
    planned = planner.plan_launch(arm.request, probe, recipe=recipe, cluster=arm.plan.cluster)
    return personal_recipe.write_recipe(progress, tune, planned.resolved, name, overwrite=overwrite)
