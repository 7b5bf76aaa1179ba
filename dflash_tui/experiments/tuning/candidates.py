"""Candidates of a tune: the best setting so far with one more thing varied, each planned as a launch of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dflash_tui.common.errors import UsageError
from dflash_tui.experiments import variation
from dflash_tui.experiments.builder import are_alike
from dflash_tui.experiments.design import PUBLISHED, Arm
from dflash_tui.launch import planner, recipe_trust
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.planning.cluster import Cluster
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.planning.request import LaunchChanges, LaunchRequest

_FIELDS = tuple(name for name in LaunchChanges.__struct_fields__ if name in LaunchRequest.__struct_fields__)
_SHORT = {"num_speculative_tokens": "n", "mode": ""}


class Candidate(NamedTuple):
    """A setting that may be tried, and the recipe as it has it."""

    arm: Arm
    resolved: ResolvedRecipe


class Proposal(NamedTuple):
    """Settings that nobody has tried yet, and what cannot be tried and why."""

    candidates: list[Candidate]
    left_out: dict[str, str]


class Planner(NamedTuple):
    """Plans a recipe on the GPUs that its tune began on."""

    probe: GpuProbe
    recipe: Recipe
    cluster: Cluster | None = None

    def plan(self, request: LaunchRequest) -> PlannedLaunch:
        """Return the plan of a setting.

        Raises:
            UsageError: it cannot be had with this release, or on this hardware, or takes a patch that needs a yes.
        """
        planned = planner.plan_launch(request, self.probe, recipe=self.recipe, cluster=self.cluster)
        recipe_trust.require_trust(self.recipe, [planned.plan])
        return planned


def propose_candidates(axis: str, best: Arm, arms: Sequence[Arm], worse: Sequence[Arm], planning: Planner) -> Proposal:
    """Return `best` with each value of an axis; what comes to a launch that is known already is no candidate.

    Args:
        axis: what is varied, as `KEY=VALUE,VALUE`.
        best: the setting that is changed.
        arms: all settings of the tune, the published one first.
        worse: settings with values of the axis that are not worth another boot.
        planning: what plans them.
    """
    proposal = Proposal([], {})
    for value, changes in variation.parse_variation(axis, least=1).arms.items():
        if any(arm.request.with_changes(changes) == arm.request for arm in worse):
            continue
        request = best.request.with_changes(changes)
        name = name_setting(arms[0].request, request)
        try:
            planned = planning.plan(request)
        except UsageError as error:
            proposal.left_out[f"{axis.partition('=')[0]}={value}"] = error.what
            continue
        if why := _explain_refused_patch(changes, planned.plan):
            proposal.left_out[axis.partition("=")[0]] = why
            continue
        if missing := _list_missing_models(planned.plan, arms[0].plan):
            why = f"{', '.join(missing)} is not on this machine, and would be fetched on the budget"
            proposal.left_out[f"{axis.partition('=')[0]}={value}"] = why
            continue
        arm = Arm(name, request, planned.plan)
        alike = any(are_alike(arm, other) for other in (*arms, *(candidate.arm for candidate in proposal.candidates)))
        if not alike:
            proposal.candidates.append(Candidate(arm, planned.resolved))
    return proposal


def _explain_refused_patch(changes: LaunchChanges, plan: Plan) -> str:
    """Return why the plan does without a patch that the changes ask for."""
    names = [name.partition(".")[2] for name, value in changes.settings.items() if name.startswith("patches.")]
    return next((plan.skipped_patches[name] for name in names if name in plan.skipped_patches), "")


def _list_missing_models(plan: Plan, published: Plan) -> list[str]:
    """Return the models of a plan that the published setting has not, and that are not here."""
    others = [model for model in plan.models if model not in published.models]
    here = planner.find_local_models(plan) if others else {}
    return [model.name for model in others if (model.name, model.revision) not in here]


def _name_part(name: str, value: str) -> str:
    if name.startswith("patches."):
        return name.replace("patches.", "patch." if value == "true" else "without patch.", 1)
    return f"{name}={value}"


def name_setting(published: LaunchRequest, request: LaunchRequest) -> str:
    """Return a name for a setting: what it has that the published one has not, such as `graphs n=11`."""
    words = []
    for name in _FIELDS:
        value = getattr(request, name)
        if name != "settings" and value is not None and value != getattr(published, name):
            short = _SHORT.get(name, name)
            words.append(f"{short}={value}" if short else str(value))
    for name, value in request.settings.items():
        if published.settings.get(name) != value:
            words.append(_name_part(name, value))
    return " ".join(words) or PUBLISHED
