"""The personal recipe that a tune ends with: the best setting with its figures, complete in one file."""

from __future__ import annotations

import platform
import re
import tempfile
import time
from pathlib import Path

import msgspec
import yaml

from dflash_tui.common import paths, private_files
from dflash_tui.common.formatting import pluralize
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.experiments.analysis.measures import summarize_arm
from dflash_tui.experiments.analysis.report import TuneOutcome
from dflash_tui.experiments.progress import Progress
from dflash_tui.experiments.tuning.outcome import is_faster
from dflash_tui.launch import recipe_files, recipe_trust
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import EngineSpec, HardwareLayer, PublishedFigures, Recipe, Status
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.planning.request import LaunchRequest

_MOST_NAMES = 1000


def choose_name(recipe: str) -> str:
    """Return the name of the personal recipe of a recipe, such as `qwen3-8b-tuned`."""
    stem = re.sub(r"[^a-z0-9._-]", "-", Path(recipe).stem.lower()).lstrip("._-")[:50] or "recipe"
    return f"{stem.removesuffix('-tuned')}-tuned"


def write_recipe(
    progress: Progress, outcome: TuneOutcome, resolved: ResolvedRecipe, name: str, *, overwrite: bool
) -> Path:
    """Write the best setting of a tune as a recipe of the user's own, and return its file.

    Args:
        progress: the tune.
        outcome: what it has found.
        resolved: the recipe as its best setting has it.
        name: the recipe's name.
        overwrite: whether a recipe of that name is replaced; without it the next free name is taken.

    Raises:
        RecipeError: what would be written is no valid recipe.
        UsageError: the table of releases does not have that of an engine that was chosen by hand.
    """
    folder = paths.user_recipes_folder()
    private_files.ensure_private_folder(folder)
    path = folder / f"{recipe_files.check_name(name)}.yaml"
    if not overwrite:
        numbered = (folder / f"{name}-{number}.yaml" for number in range(2, _MOST_NAMES))
        path = next(
            candidate for candidate in (path, *numbered) if not candidate.exists() and not candidate.is_symlink()
        )
    text = format_recipe(progress, outcome, resolved).encode()
    with tempfile.TemporaryDirectory() as scratch:
        draft = Path(scratch) / path.name
        private_files.write_private_file(draft, text)
        recipe = recipe_loader.load_recipe(draft)
    private_files.replace_private_file(path, text)
    recipe_trust.trust_recipe(recipe)
    return path


def format_recipe(progress: Progress, outcome: TuneOutcome, resolved: ResolvedRecipe) -> str:
    """Return the recipe's file: a comment with what was measured, and all that the setting is made of."""
    recipe = build_recipe(progress, outcome, resolved)
    body = yaml.safe_dump(msgspec.to_builtins(recipe), sort_keys=False, allow_unicode=True, width=120)
    return "".join(f"# {clean_line(line)}\n" for line in _list_comments(progress, outcome, resolved)) + body


def build_recipe(progress: Progress, outcome: TuneOutcome, resolved: ResolvedRecipe) -> Recipe:
    """Return the best setting as a recipe without layers: what profile, hardware and hand have set is its own."""
    arm, base = progress.design.arms[outcome.best], resolved.recipe
    why = f"{clean_line(_describe_gain(outcome))}; tuned on this machine, {_describe_machine(progress, outcome)}"
    expected = _measured_figures(progress, outcome)
    return Recipe(
        title=f"{base.title}, tuned",
        status=Status.EXPERIMENTAL,
        why=why,
        link=base.link,
        synthetic=resolved.synthetic,
        build=base.build,
        port=base.port,
        bench_scale=base.bench_scale,
        engine=_name_engine(arm.request, resolved),
        target=resolved.target,
        drafter=resolved.drafter,
        method=resolved.method,
        weights_gb=resolved.weights_gb,
        oldest_vllm=resolved.oldest_vllm,
        oldest_patched=resolved.oldest_patched,
        last_patched=resolved.last_patched,
        defects=resolved.defects,
        hosts=resolved.hosts if resolved.hosts > 1 else None,
        num_speculative_tokens=arm.plan.num_speculative_tokens,
        speculation=resolved.speculation,
        mode=arm.plan.mode,
        flags=dict(resolved.flags),
        env=dict(resolved.env),
        patches=resolved.patches,
        warnings=resolved.warnings,
        differs=resolved.deviations,
        restart=resolved.restart,
        failures=base.failures,
        hardware={} if base.for_cpu else {resolved.hardware: HardwareLayer(expected=expected)},
    )


def _name_engine(request: LaunchRequest, resolved: ResolvedRecipe) -> EngineSpec:
    """Return the engine that a recipe names for the one that was measured.

    No recipe can name a folder, so for an engine that was chosen by hand it is what the recipe itself or the table of
    releases has of that release.
    """
    chosen, own = resolved.engine, resolved.recipe.engine
    if not request.engine:
        return chosen
    if own and (own.vllm, own.distribution) == (chosen.vllm, chosen.distribution):
        return own
    return recipe_loader.engine_for_release(chosen.vllm) if chosen.distribution == "vllm" else chosen


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
    """Return the head of the file: what was found, by how many boots, when, where, with which release."""
    design = progress.design
    best, published = (summarize_arm(progress.boots, arm) for arm in (outcome.best, 0))
    lines = [
        f"{design.recipe} with {design.arms[outcome.best].name}: {_describe_gain(outcome)}.",
        f"Answers alike: {outcome.answers}. Found by dflash-tui tune, {design.id}, {_format_day(progress)}.",
        f"Measured with {_describe_machine(progress, outcome)}.",
    ]
    for name, of in (("this setting", best), ("published", published)):
        if of.tok_s:
            spread = f"{of.tok_s.low:.1f} to {of.tok_s.high:.1f}"
            lines.append(f"tok/s, {name}: {of.tok_s.median:.1f} ({spread}, {pluralize(of.tok_s.n, 'boot')})")
    # What no recipe has.
    unnamed = [f"--set start.{name}={str(wanted).lower()}" for name, wanted in resolved.start.items()]
    engine = design.arms[outcome.best].request.engine
    unnamed += [f"--engine {engine}"] if engine else []
    lines += [f"Measured with {' '.join(unnamed)}, which a launch has to name again."] if unnamed else []
    lines += [f"The figures say nothing about a real model: {design.synthetic}."] if design.synthetic else []
    return lines


def _describe_gain(outcome: TuneOutcome) -> str:
    ratio = outcome.comparison.tok_s if outcome.comparison else None
    if ratio is None:
        return "not compared with the published setting"
    interval = f"{ratio.ratio:.2f} × the published setting's tok/s ({ratio.low:.2f} to {ratio.high:.2f})"
    return interval if is_faster(outcome) else f"{interval}, which is not confirmed"


def _describe_machine(progress: Progress, outcome: TuneOutcome) -> str:
    boot = next((boot for boot in progress.boots if boot.arm == outcome.best and not boot.error), None)
    parts = [boot.engine, ", ".join(boot.gpus), f"driver {boot.driver}" if boot.driver else ""] if boot else []
    return clean_line(", ".join(filter(None, [*parts, platform.machine()])))


def _format_day(progress: Progress) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(progress.design.made_at))
