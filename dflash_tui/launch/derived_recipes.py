"""Recipes for pairs that nobody wrote one for: look two models up, derive how vLLM serves them, write a recipe file."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dflash_tui.common import paths, private_files
from dflash_tui.engines.hub import model_config
from dflash_tui.launch import recipe_files, recipe_trust
from dflash_tui.planning.derivation import pair as pairs
from dflash_tui.planning.derivation.pair import DerivedPair, name_recipe, write_recipe_text
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes import recipe_loader

# Its engine is the only one for the CPU that is shipped.
_CPU_RECIPE = "demo-cpu"


async def derive_from_models(
    target: str, drafter: str | None, method: Method | None, tokens: int | None = None
) -> DerivedPair:
    """Return how vLLM serves two models, each a repository of the hub or a folder; `tokens` is as for `derive_pair`.

    Raises:
        UsageError: they cannot be served together, or what is needed for it is not known.
        DflashError: a model cannot be read.
    """
    lookups = [model_config.look_up_checkpoint(target)]
    lookups += [model_config.look_up_checkpoint(drafter, is_served=False)] if drafter else []
    checkpoints = await asyncio.gather(*lookups)
    return pairs.derive_pair(checkpoints[0], checkpoints[1] if drafter else None, method, tokens)


async def add_recipe_of_models(target: str, drafter: str, method: Method | None, schema: str) -> str:
    """Write the user a recipe of two models, by what they say themselves, and return its name.

    One that is there under that name is left as it is.

    Args:
        target: The repository or folder of the target.
        drafter: That of the drafter; empty where the method needs none.
        method: How tokens are drafted, where the drafter does not say it.
        schema: The JSON Schema of recipes.

    Raises:
        DflashError: a model cannot be read, or they cannot be served together.
    """
    derived = await derive_from_models(target, drafter or None, method)
    name = name_recipe(derived)
    if name not in recipe_loader.list_recipe_files():
        path = recipe_files.add_own_recipe(name, write_recipe_text(derived), schema)
        recipe_trust.trust_recipe(recipe_loader.load_recipe(path))
    return name


def write_derived_recipe(derived: DerivedPair, *, on_cpu: bool = False) -> Path:
    """Write the recipe of a pair into our own folder, in place of one of before, and return its path."""
    cpu = recipe_loader.find_recipe(_CPU_RECIPE) if on_cpu else None
    path = paths.derived_recipes_folder() / f"{name_recipe(derived)}.yaml"
    private_files.ensure_private_folder(path.parent)
    private_files.replace_private_file(path, write_recipe_text(derived, cpu).encode())
    recipe_trust.trust_recipe(recipe_loader.load_recipe(path))
    return path
