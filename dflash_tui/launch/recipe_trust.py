"""Which recipes may do more than serve a model: the shipped ones, and those that the user said yes to.

The answer is kept for the content of a recipe, so a recipe that was changed is asked about again. What the user sets by
hand is the user's own word, and nobody asks about it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import msgspec

from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import RecipeError, UsageError
from dflash_tui.planning import recipe_loader
from dflash_tui.planning.powers import Power, list_recipe_powers
from dflash_tui.planning.recipe import Recipe

# Some 10,000 answers.
_LARGEST = 1 << 20


def require_trust(recipe: Recipe, releases: Collection[str]) -> None:
    """Return when a recipe may be run on these releases of vLLM; every way to a process comes by here.

    Raises:
        UsageError: it is not shipped, may do more than serve a model, and nobody has said yes to that.
    """
    if powers := list_untrusted_powers(recipe, releases):
        raise build_untrusted_error(recipe, powers)


def list_untrusted_powers(recipe: Recipe, releases: Collection[str]) -> tuple[Power, ...]:
    """Return the powers of a recipe that the user has to be asked about; none when it is trusted, or has none."""
    powers = list_recipe_powers(recipe, releases)
    if not powers or _is_shipped(recipe) or _hash_recipe(recipe) in _read_hashes():
        return ()
    return powers


def build_untrusted_error(recipe: Recipe, powers: Collection[Power]) -> UsageError:
    """Return the error that a recipe is not trusted, with what it may do."""
    return UsageError(
        f"the recipe {recipe.name} may do more than serve a model, and you have not said yes to that",
        evidence="\n  ".join(map(str, powers)),
        hint=f"read it (dflash-tui recipes show {recipe.name}), then say yes on a terminal or by --trust: that holds "
        "until it changes",
    )


def trust_recipe(recipe: Recipe) -> None:
    """Keep that the user said yes to a recipe as it is now.

    Raises:
        OSError: it cannot be written.
    """
    file = paths.trusted_recipes_file()
    lines = [*_read_lines(), f"{_hash_recipe(recipe)} {recipe.name}"]
    private_files.ensure_private_folder(file.parent)
    private_files.replace_private_file(file, "".join(f"{line}\n" for line in dict.fromkeys(lines)).encode())


def _is_shipped(recipe: Recipe) -> bool:
    """Whether a recipe is one of ours, word for word."""
    path = paths.bundled_folder("recipes") / f"{recipe.name}.yaml"
    try:
        return path.is_file() and _hash_recipe(recipe_loader.load_recipe(path)) == _hash_recipe(recipe)
    except RecipeError:
        return False


def _hash_recipe(recipe: Recipe) -> str:
    """Return the hash of what a recipe says; comments and the order of keys say nothing."""
    return hashlib.sha256(msgspec.json.encode(recipe, order="deterministic")).hexdigest()


def _read_hashes() -> set[str]:
    return {line.partition(" ")[0] for line in _read_lines()}


def _read_lines() -> list[str]:
    """Return the lines of our file; none of one that others could have written."""
    file = paths.trusted_recipes_file()
    if private_files.ownership_problem(file, file.parent):
        return []
    try:
        return private_files.read_file(file, _LARGEST).decode(errors="replace").splitlines()
    except OSError:  # there is none yet, or it is no file
        return []
