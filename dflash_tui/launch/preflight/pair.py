"""Checks of a pair of models in a release, which need no GPU: also a plan without one says what they find."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from packaging.version import Version

from dflash_tui.engines.hub import model_config, model_lookup
from dflash_tui.launch.preflight.check import Check, fail_check, warn_check
from dflash_tui.planning import patch_file, releases
from dflash_tui.planning.advice import release_values
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.planning.recipes.resolution import ResolvedRecipe


def check_pair(resolved: ResolvedRecipe, plan: Plan) -> list[Check]:
    """Return what is wrong with the pair in the release of a plan, with how many tokens it drafts, and its parsers."""
    return [*_check_release(resolved, plan), *_check_draft_length(resolved, plan), *_check_parsers(plan)]


def _check_release(resolved: ResolvedRecipe, plan: Plan) -> Iterator[Check]:
    oldest = resolved.oldest_vllm
    since, until = resolved.oldest_patched, resolved.last_patched or plan.vllm
    in_range = since and Version(since) <= Version(plan.vllm) <= Version(until)
    patched = in_range and _patches_suffice(resolved, plan)
    if oldest and Version(plan.vllm) < Version(oldest) and not patched:
        releases_by_age = sorted(map(Version, releases.load_releases()))
        newer = next((version for version in releases_by_age if version >= Version(oldest)), oldest)
        problem = f"this pair is served right from {oldest} on without patches; the plan has {plan.vllm}"
        yield fail_check("vLLM", problem, f"--vllm {newer}")


def _patches_suffice(resolved: ResolvedRecipe, plan: Plan) -> bool:
    """Whether the recipe's own patches make the pair run: some for every machine are in, and none was left out.

    What was added by hand, or is for one machine's kernels, does not.
    """
    by_hand = {key.removeprefix("patches.") for key in resolved.changed}
    own = [name for name in plan.patches if name not in by_hand and not patch_file.load_patch(name).hardware]
    return bool(own) and not set(plan.disabled_patches) & set(_list_recipe_patches(resolved.recipe))


def _list_recipe_patches(recipe: Recipe) -> Iterator[str]:
    for part in (recipe, *recipe.hardware.values(), *recipe.profiles.values(), *recipe.variants.values()):
        yield from part.patches


def _check_draft_length(resolved: ResolvedRecipe, plan: Plan) -> Iterator[Check]:
    """Warn of more tokens than the drafter's block has room for, which vLLM takes, with what was published of it."""
    drafter, tokens = resolved.drafter, plan.num_speculative_tokens
    most = drafter.max_tokens if drafter else None
    if most and tokens > most:
        figures = next((band for band in plan.expected if band.tokens == tokens and band.tok_s), None)
        published = f"; published with {tokens} by {figures.source}" if figures else ""
        finding = f"{tokens} drafted tokens, but its block was trained for {most}; vLLM takes them{published}"
        yield warn_check("drafts", finding, f"--num-speculative-tokens {most}")


def _check_parsers(plan: Plan) -> Iterator[Check]:
    """Check that the target's tokenizer, where it is on this machine, has the tokens that the parsers insist on."""
    parsers = release_values.find_parsers(plan.vllm, plan.argv[3:])
    revision = next((model.revision for model in plan.models if model.name == plan.target), "main")
    model = model_lookup.find_local_model(plan.target, revision) if parsers else None
    tokens = model_config.read_local_tokens(Path(model.folder)) if model and model.folder else None
    for flag, parser in parsers.items() if tokens else ():
        if missing := release_values.find_missing_tokens(plan.vllm, flag, parser, tokens or ()):
            finding = f"{flag} {parser} needs {' and '.join(missing)}, which the target's tokenizer does not have"
            others = " --set enable-auto-tool-choice=null" if flag == "tool-call-parser" else ""
            yield fail_check("parsers", finding, f"--set {flag}=null{others}, or --set {flag}=NAME for another")
