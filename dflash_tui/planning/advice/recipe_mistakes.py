"""Flags of a recipe that the releases of its plans do not have, or refuse together. Pure."""

from __future__ import annotations

from itertools import product
from math import prod

from dflash_tui.common.errors import UsageError
from dflash_tui.planning.advice import release_flags
from dflash_tui.planning.recipes import resolution
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.planning.server_command import build_flag

# One plan has some ten of a kind, with how many more there are.
_MOST = 30
# Words of command lines that are looked at, some second's worth, and how many a combination counts for at least.
# The shipped recipe with the most combinations, 120, has some 3,600 words.
_MOST_WORDS = 200_000
_LEAST_WORDS = 50


def find_recipe_mistakes(recipe: Recipe) -> list[str]:
    """Return a sentence for each wrong flag of any class of GPU, profile, variant and method, each once.

    Of many those of the first, and how many more there are. That there are too many combinations is one, too.
    """
    mistakes: dict[str, None] = {}
    parts = (
        tuple(recipe.hardware) or (None,),
        resolution.list_profiles(recipe),
        ["", *recipe.variants],
        [None, *recipe.methods],
    )
    excess: list[str] = []
    left = _MOST_WORDS
    for checked, (hardware, profile, variant, method) in enumerate(product(*parts)):
        if left <= 0:
            what = "combinations of hardware, profile, variant and method are too many to check"
            excess.append(f"{prod(map(len, parts)):,} {what}: the first {checked:,} were checked")
            break
        left -= _LEAST_WORDS
        try:
            resolved = resolution.resolve_recipe(recipe, hardware, profile=profile, variant=variant, method=method)
        except UsageError:  # not every variant goes with every method
            continue
        words = [word for name, value in resolved.flags.items() for word in build_flag(name, value)]
        left -= len(words) + len(resolved.env)
        mistakes |= dict.fromkeys(release_flags.find_mistakes(resolved.engine.vllm, words))
    some = release_flags.explain_some([*mistakes], str, "mistakes in its profiles and variants", _MOST)
    return [*some, *excess]
