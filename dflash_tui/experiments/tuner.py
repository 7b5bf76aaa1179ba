"""The tuner: plan the rounds of a tune on this machine, and write its personal recipe at the end."""

from __future__ import annotations

import platform
import re
import shlex
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from dflash_tui.benchmark import suites
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.formatting import format_duration, pluralize
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.experiments import boot, builder, store, tune_schedule, variation
from dflash_tui.experiments.analysis.measures import summarize_arm
from dflash_tui.experiments.analysis.report import ExperimentReport, TuneOutcome
from dflash_tui.experiments.builder import ExperimentRequest
from dflash_tui.experiments.design import PUBLISHED, BootOptions, Design, Tuning
from dflash_tui.experiments.progress import Progress
from dflash_tui.experiments.tune_schedule import BOOTS_FOR_A_VERDICT, NextRound, is_faster
from dflash_tui.experiments.variation import VariationError, Varied
from dflash_tui.launch import planner, recipe_files, recipe_trust
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.planning.cluster import Cluster
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import PublishedFigures, Recipe, SetUp
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.planning.request import LaunchChanges, LaunchRequest

DEFAULT_BUDGET = 1800.0
BOOTS_OF_A_MAP = 2
STREAMS_OF_A_MAP = (1, 4, 16)
# Options that `ab` has and `tune` does not.
_OF_AB = frozenset({"top_p", "own_cache", "checks_output", "measures_start", "cold", "by_kind"})


class MachineTuner(NamedTuple):
    """Plan candidates of a recipe for the GPUs on which its tune began."""

    probe: GpuProbe
    recipe: Recipe
    cluster: Cluster | None = None

    def plan_round(self, progress: Progress) -> NextRound | None:
        """Return the next round once all boots have ended, or None at the end."""
        following = tune_schedule.plan_round(progress, partial(tune_schedule.propose_candidates, plan=self.plan))
        if following:
            names = [arm.name for arm in (*progress.design.arms, *following.event.arms)]
            field = ", ".join(names[arm] for arm in following.event.field)
            boot.write_driver_log(f"round of {following.event.key}: {field}")
        return following

    def conclude(self, progress: Progress, report: ExperimentReport) -> ExperimentReport:
        """Return the report with the tune's outcome; save a faster setting as a recipe."""
        kept_answers = store.read_answers(store.experiment_folder(progress.design.id))
        tune = tune_schedule.judge_tune(progress, kept_answers)
        if progress.design.tuning and tune_schedule.is_worth_keeping(tune):
            try:
                path = keep_best(progress, tune, progress.design.tuning.save_as, overwrite=False)
                tune = replace(tune, recipe=str(path))
                boot.write_driver_log(f"wrote {path}")
            except (DflashError, OSError) as error:
                boot.write_driver_log(f"the personal recipe was not written: {error}")
                tune = replace(tune, unwritten=" ".join(f"{error}".split()))
        return replace(report, tune=tune)

    def plan(self, request: LaunchRequest) -> PlannedLaunch:
        """Return the plan of a setting; raise UsageError if it is unsupported or a patch is untrusted."""
        planned = planner.plan_launch(replace(request, cluster=self.cluster), self.probe, recipe=self.recipe)
        recipe_trust.require_trust(recipe_trust.list_launched(self.recipe, [planned.plan]))
        return planned


def keep_best(progress: Progress, tune: TuneOutcome, name: str, *, overwrite: bool) -> Path:
    """Save a tune's best setting as a recipe, under a free name unless `overwrite`; return its file."""
    arm = progress.design.arms[tune.best]
    recipe = recipe_loader.find_recipe(arm.request.recipe)
    probe = planner.probe_for(recipe)
    planned = planner.plan_launch(arm.placed_request, probe, recipe=recipe)
    return write_recipe(progress, tune, planned.resolved, name, overwrite=overwrite)


def build_tune(
    request: ExperimentRequest,
    *,
    budget: float = DEFAULT_BUDGET,
    axes: Sequence[str] = (),
    name: str = "",
) -> tuple[Design, list[ResolvedRecipe]]:
    """Return the design of a tune, at first with the published setting only, and its resolved recipe.

    `budget` is in seconds, for all boots together. `axes`, each `KEY=VALUE,VALUE`, replace the default axes.
    """
    for axis in axes:
        variation.parse_variation(axis, least=1)
    build = partial(builder.build_experiment, replace(request, own_cache=False))
    base, (resolved,) = build(Varied("tune", {PUBLISHED: LaunchChanges()}))
    chosen, left_out = tuple(axes), dict[str, str]()
    if base.arms[0].plan.set_up is SetUp.FAST:
        base, (resolved,) = build(Varied("tune", {PUBLISHED: LaunchChanges(set_up=SetUp.PUBLISHED)}))
        if "set_up" not in map(tune_schedule.list_key, axes):
            chosen = (tune_schedule.FAST_SET_UP, *axes)
    if not axes:
        streams, plan = max(request.concurrency), base.arms[0].plan
        chosen, left_out = tune_schedule.list_axes(resolved, plan, temperature=base.temperature, streams=streams)
    keys = [tune_schedule.list_key(axis) for axis in chosen]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise VariationError(f"{twice} is given twice", example=f"{twice}=VALUE,VALUE with all its values")
    name = recipe_files.check_name(name or choose_name(base.recipe))
    tuning = Tuning(budget, chosen, name, left_out)
    command = _format_command(["tune"], base, request.launch, {"budget": f"{budget:.0f}s"}, axes=tuning.axes, name=name)
    design = replace(base, tuning=tuning, command=command)
    expected = builder.estimate_duration(design)
    if expected.seconds is not None and budget < 2 * expected.seconds:
        took, two = (format_duration(count * expected.seconds) for count in (1, 2))
        raise UsageError(
            f"a budget of {format_duration(budget)} is too short for two boots",
            evidence=f"a boot takes about {took}, {expected.source}; two take {two}",
            hint=f"--budget {-(-BOOTS_FOR_A_VERDICT * expected.seconds // 60):.0f}m has room for a first verdict",
        )
    return design, [resolved]


def build_map(
    request: ExperimentRequest, *, axes: Sequence[str] = (), kinds: str = ""
) -> tuple[Design, list[ResolvedRecipe]]:
    """Return the design of a map, an A/B of speculation off and on, and the resolved recipe of each arm.

    An axis of `n` names the drafts to try. `kinds` of the suite are separated by commas, by default all that fit.
    """
    varied = variation.SPECULATION
    if axes:
        varied = variation.parse_variation(axes[0], least=1)
        if len(axes) > 1 or varied.key.replace("-", "_") not in {"n", "num_speculative_tokens"}:
            raise VariationError("a map varies only the drafted tokens", example="n=0,4,8")
        without = variation.parse_variation("n=0", least=1).arms  # the arm that the others are compared with
        varied = varied._replace(arms=without | varied.arms)
    suite = f"{request.suite or suites.MAP}:{kinds}" if kinds else request.suite
    request = replace(request, suite=suite, by_kind=True, own_cache=False, boots=request.boots or BOOTS_OF_A_MAP)
    design, resolved_recipes = builder.build_experiment(request, varied)
    command = _format_command(["tune", "--map"], design, request.launch, {"boots": request.boots}, axes=axes)
    return replace(design, command=command), resolved_recipes


def _format_command(
    command: Sequence[str],
    design: Design,
    launch: LaunchRequest,
    options: dict[str, object],
    *,
    axes: Sequence[str],
    name: str | None = None,
) -> str:
    names = [name for name in BootOptions.__struct_fields__ if name not in _OF_AB]
    sent = {name: getattr(design, name) for name in (*names, "suite", "scale", "temperature", "fixed")}
    words = shlex.split(builder.format_options(command, launch, {**options, **sent, "name": name}))
    return shlex.join([*words, *(word for axis in axes for word in ("--vary", axis))])


def choose_name(recipe: str) -> str:
    """Return the name of the personal recipe of a recipe, such as `qwen3-8b-tuned`."""
    stem = re.sub(r"[^a-z0-9._-]", "-", Path(recipe).stem.lower()).lstrip("._-")[:50] or "recipe"
    return f"{stem.removesuffix('-tuned')}-tuned"


def write_recipe(
    progress: Progress, outcome: TuneOutcome, resolved: ResolvedRecipe, name: str, *, overwrite: bool
) -> Path:
    """Save the best setting, resolved as `resolved`, like `keep_best`, and trust it."""
    comments = _list_comments(progress, outcome, resolved)
    arm = progress.design.arms[outcome.best]
    gain = clean_line(_describe_gain(progress.design, outcome))
    recipe = recipe_files.flatten_recipe(
        resolved,
        arm.plan,
        arm.request,
        title=f"{resolved.recipe.title}, tuned",
        why=f"{gain}; tuned on this machine, {_describe_machine(progress, outcome)}",
        expected=_measured_figures(progress, outcome),
    )
    return recipe_files.keep_recipe(recipe, name, comments, overwrite=overwrite)


def _measured_figures(progress: Progress, outcome: TuneOutcome) -> tuple[PublishedFigures, ...]:
    summary = summarize_arm(progress.boots, outcome.best)
    if summary.tok_s is None:
        return ()
    starts = summary.cached or summary.cold
    return (
        PublishedFigures(
            source=f"tuned {_format_day(progress)}",
            mode=progress.design.arms[outcome.best].plan.mode,
            runs=max(1, summary.boots),
            tok_s=(summary.tok_s.low, summary.tok_s.high),
            ready_s=(starts.low, starts.high) if starts else None,
        ),
    )


def _list_comments(progress: Progress, outcome: TuneOutcome, resolved: ResolvedRecipe) -> list[str]:
    design = progress.design
    other = _find_other(outcome)
    compared = "published" if design.tuning else design.arms[other].name
    lines = [
        f"{design.recipe} with {design.arms[outcome.best].name}: {_describe_gain(progress.design, outcome)}.",
        f"Answers alike: {outcome.answers}.",
        f"Found by dflash-tui {design.command_word}, {design.id}, {_format_day(progress)}.",
        f"Measured with {_describe_machine(progress, outcome)}.",
    ]
    for name, arm in (("this setting", outcome.best), (compared, other)):
        if (of := summarize_arm(progress.boots, arm)).tok_s:
            spread = f"{of.tok_s.low:.1f} to {of.tok_s.high:.1f}"
            lines.append(f"tok/s, {name}: {of.tok_s.median:.1f} ({spread}, {pluralize(of.tok_s.n, 'boot')})")
    # Settings that a recipe cannot hold.
    unnamed = [f"--set start.{name}={str(wanted).lower()}" for name, wanted in resolved.start.items()]
    engine = design.arms[outcome.best].request.engine
    unnamed += [f"--engine {engine}"] if engine else []
    lines += [f"Measured with {' '.join(unnamed)}, which no recipe can hold: add it to the launch."] if unnamed else []
    lines += [f"The figures say nothing about a real model: {design.synthetic}."] if design.synthetic else []
    return lines


def _describe_gain(design: Design, outcome: TuneOutcome) -> str:
    comparison = outcome.comparison
    if comparison is None or (ratio := comparison.tok_s) is None:
        return "not compared with the published setting"
    other = _find_other(outcome)
    ratio = ratio.inverse if other == comparison.b else ratio
    than = "the published setting" if design.tuning else design.arms[other].name
    interval = f"{ratio.ratio:.2f} × {than}'s tok/s ({ratio.low:.2f} to {ratio.high:.2f})"
    is_shown = is_faster(outcome) if design.tuning else not comparison.suggestive
    return interval if is_shown else f"{interval}, which is not confirmed"


def _find_other(outcome: TuneOutcome) -> int:
    comparison = outcome.comparison
    return comparison.b if comparison and comparison.a == outcome.best else comparison.a if comparison else 0


def _describe_machine(progress: Progress, outcome: TuneOutcome) -> str:
    boot = next((boot for boot in progress.boots if boot.arm == outcome.best and not boot.error), None)
    parts = [boot.engine, ", ".join(boot.gpus), f"driver {boot.driver}" if boot.driver else ""] if boot else []
    return clean_line(", ".join(filter(None, [*parts, platform.machine()])))


def _format_day(progress: Progress) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(progress.design.made_at))
