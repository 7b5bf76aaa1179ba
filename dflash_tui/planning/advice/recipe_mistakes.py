"""Flags of a recipe that the releases of its plans do not have, and values that they refuse. Pure."""

from __future__ import annotations

from itertools import product

from dflash_tui.common.errors import UsageError
from dflash_tui.planning.advice import release_flags, release_values
from dflash_tui.planning.recipes import resolution
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.planning.server_command import build_flag

# One plan has some ten of a kind, with how many more there are.
_MOST = 30


def find_recipe_mistakes(recipe: Recipe) -> list[str]:
    """Return a sentence for each wrong flag of any class of GPU, profile, variant and method, each once.

    Of many those of the first, and how many more there are.
    """
    mistakes: dict[str, None] = {}
    parts = product(
        recipe.hardware or (None,),
        resolution.list_profiles(recipe),
        ["", *recipe.variants],
        [None, *recipe.methods],
    )
    for hardware, profile, variant, method in parts:
        try:
            resolved = resolution.resolve_recipe(recipe, hardware, profile=profile, variant=variant, method=method)
        except UsageError:  # not every variant goes with every method
            continue
        words = [word for name, value in resolved.flags.items() for word in build_flag(name, value)]
        mistakes |= dict.fromkeys(release_values.find_mistakes(resolved.engine.vllm, words))
    return release_flags.explain_some([*mistakes], str, "mistakes in its profiles and variants", _MOST)
