"""Lines of `--json` of the commands that bring in recipes, commands and catalogues of others."""

from __future__ import annotations

import msgspec

from dflash_tui.launch.recipe_trust import Ingredient
from dflash_tui.planning.derivation.imported_recipe import LeftOut


class AddedRecipe(msgspec.Struct, frozen=True):
    """A recipe that was checked and put among the user's own."""

    file: str
    """Its path."""
    ingredients: tuple[Ingredient, ...]
    """What it makes run."""
    left_out: tuple[LeftOut, ...] = ()
    """What of a command is not in it."""
    mistakes: tuple[str, ...] = ()
    """Flags that its release of vLLM does not have, and values that it refuses."""


class UpdatedCatalogue(msgspec.Struct, frozen=True):
    """The catalogue that took the place of another, and the pairs by which it differs."""

    written: str
    """The day that it is of."""
    pairs: int
    """How many it has."""
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
