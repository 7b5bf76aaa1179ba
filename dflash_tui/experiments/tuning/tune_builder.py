"""A tune as it is asked for -> its design: an experiment that begins with the published setting alone."""

from __future__ import annotations

import shlex
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from dflash_tui.common.errors import UsageError
from dflash_tui.common.formatting import format_duration
from dflash_tui.experiments import builder, variation
from dflash_tui.experiments.builder import DurationEstimate, ExperimentRequest
from dflash_tui.experiments.design import PUBLISHED, Design, Tuning
from dflash_tui.experiments.tuning import axes, personal_recipe, schedule
from dflash_tui.experiments.tuning.outcome import BOOTS_FOR_A_VERDICT
from dflash_tui.experiments.variation import VariationError, Varied
from dflash_tui.launch import recipe_files
from dflash_tui.planning.cluster import Cluster
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.planning.request import LaunchChanges, LaunchRequest

DEFAULT_BUDGET = 1800.0


class TuneRequest(msgspec.Struct, frozen=True):
    """What the user asked to tune. A field that is empty or None is chosen."""

    launch: LaunchRequest
    """The published setting."""
    budget: float = DEFAULT_BUDGET
    """Seconds that all boots together may take."""
    axes: tuple[str, ...] = ()
    """What is varied, each as `KEY=VALUE,VALUE`, instead of all that may matter."""
    name: str = ""
    """The name of the personal recipe."""
    suite: str | None = None
    """The prompts; as for an A/B."""
    rounds: int = 1
    """How often a boot sends each prompt."""
    scale: float | None = None
    """How many times their usual length answers have."""
    seed: int = 0
    """What shuffles the order of the prompts."""
    temperature: float | None = 0.0
    """The sampling temperature; None is the model's own."""
    concurrency: tuple[int, ...] = (1,)
    """Requests at a time, one level after the other, all of them in one start."""
    fixed: bool | None = None
    """Whether answers go on past the model's own end; as for an A/B."""


class BuiltTune(NamedTuple):
    """A tune's design, the recipe as the published setting has it, and how long a boot takes."""

    design: Design
    resolved: ResolvedRecipe
    boot: DurationEstimate


def build_tune(request: TuneRequest, *, cluster: Cluster | None = None) -> BuiltTune:
    """Return the tune that is asked for; `cluster` are the hosts, with their link, where its launch names others.

    Raises:
        UsageError: a name, a value or a combination is wrong, or the budget is too short for two boots.
    """
    for axis in request.axes:
        variation.parse_variation(axis, least=1)
    base, (resolved,) = builder.build_experiment(
        ExperimentRequest(
            launch=request.launch,
            suite=request.suite,
            rounds=request.rounds,
            scale=request.scale,
            seed=request.seed,
            temperature=request.temperature,
            concurrency=request.concurrency,
            fixed=request.fixed,
            own_cache=False,
        ),
        Varied("tune", {PUBLISHED: LaunchChanges()}),
        cluster=cluster,
    )
    streams = max(request.concurrency)
    chosen = (
        axes.Axes(request.axes, {})
        if request.axes
        else axes.list_axes(resolved, base.arms[0].plan, temperature=base.temperature, streams=streams)
    )
    keys = [schedule.list_key(axis) for axis in chosen.axes]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise VariationError(f"{twice} is there twice", example=f"{twice}=VALUE,VALUE with all its values")
    name = recipe_files.check_name(request.name or personal_recipe.choose_name(base.recipe))
    tuning = Tuning(request.budget, chosen.axes, name, chosen.left_out)
    design = replace(base, tuning=tuning, command=_format_command(base, tuning, request))
    expected = builder.estimate_duration(design)
    _check_budget(request.budget, expected)
    return BuiltTune(design, resolved, expected)


def _check_budget(budget: float, boot: DurationEstimate) -> None:
    """Raise where the budget is too short for two boots, by what is known of them."""
    if boot.seconds is not None and budget < 2 * boot.seconds:
        least, useful = 2 * boot.seconds, BOOTS_FOR_A_VERDICT * boot.seconds
        raise UsageError(
            f"a budget of {format_duration(budget)} is too short for two boots",
            evidence=f"a boot takes about {format_duration(boot.seconds)}, {boot.source}; two take "
            f"{format_duration(least)}",
            hint=f"--budget {-(-useful // 60):.0f}m has room for a first verdict",
        )


def _format_command(design: Design, tuning: Tuning, request: TuneRequest) -> str:
    """Return the line that begins the tune once more."""
    values = {
        "--budget": f"{request.budget:.0f}s", "--rounds": design.rounds, "--suite": design.suite,
        "--scale": design.scale, "--seed": design.seed, "--temperature": design.temperature,
        "--concurrency": ",".join(map(str, design.concurrency)), "--name": tuning.save_as,
    }  # fmt: skip
    options = [str(word) for name, value in values.items() if value is not None for word in (name, value)]
    options.append("--fixed" if design.fixed else "--no-fixed")
    axes_ = [word for axis in tuning.axes for word in ("--vary", axis)]
    return shlex.join(["dflash-tui", "tune", *request.launch.to_argv(), *options, *axes_])
