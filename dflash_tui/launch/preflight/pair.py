"""Checks of a pair of models in a release, which need no machine: also a plan without one says what they find."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from dflash_tui.launch.preflight.check import Check, fail_check, warn_check
from dflash_tui.planning import patch_file, releases
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.planning.recipes.resolution import ResolvedRecipe


def check_pair(resolved: ResolvedRecipe, plan: Plan) -> list[Check]:
    """Return what is wrong with the pair in the release of a plan, and with how many tokens it drafts."""
    return [*_check_release(resolved, plan), *_check_draft_length(resolved, plan)]


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
