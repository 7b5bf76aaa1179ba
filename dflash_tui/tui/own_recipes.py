"""Recipes that are made on the launch screen: of a pair of the catalogue, or of a model and a drafter found for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cached_property

from textual import work

from dflash_tui.common.errors import DflashError
from dflash_tui.launch import recipe_files
from dflash_tui.planning.derivation import catalogue as catalogues
from dflash_tui.planning.derivation.catalogue import CataloguePair
from dflash_tui.planning.methods import Method
from dflash_tui.presentation import recipe_text
from dflash_tui.tui.dialogs.basic import ErrorDialog
from dflash_tui.tui.dialogs.drafters import DrafterChoice, DrafterDialog
from dflash_tui.tui.host_surveys import HostsScreen
from dflash_tui.tui.widgets.recipe_list import Entries, RecipeList


class OwnRecipesScreen(HostsScreen):
    """A screen with the list of recipes, to which those that are made here are added."""

    def __init__(self, load: Callable[[], Entries]) -> None:
        super().__init__()
        self.load = load

    @cached_property
    def entries(self) -> Entries:
        """All recipes; a replay that is left without looking at them never reads them."""
        return self.load()

    def add_recipe_of(self, pair: CataloguePair) -> None:
        """Begin to make a recipe of a pair of the catalogue."""
        model = catalogues.choose_model(catalogues.load_catalogue(), pair, self.query_one(RecipeList).place.budget)
        if model:
            self.derive(model.repo, pair.drafter, None if pair.drafter else pair.method)
        else:
            self.notify("no repository of its target is known", severity="warning")

    def action_drafters(self) -> None:
        """Ask for a model, and make a recipe of it and the drafter that is chosen."""
        recipe = self._recipe

        def derive(choice: DrafterChoice | None) -> None:
            if choice:
                self.derive(choice.target, choice.drafter, choice.method)

        self.app.push_screen(DrafterDialog(recipe.target.model if recipe and not recipe.build else ""), derive)

    @work(exclusive=True, group="derive")
    async def derive(self, target: str, drafter: str, method: Method | None) -> None:
        """Make a recipe of a pair by what its models say themselves, and highlight it."""
        self.notify(f"reading the config.json of {target} …", markup=False)
        try:
            name = await recipe_files.add_recipe_of_models(target, drafter, method, recipe_text.schema_text())
            self.entries = await asyncio.to_thread(self.load)
        except (DflashError, OSError) as error:
            self.app.push_screen(ErrorDialog(error if isinstance(error, DflashError) else DflashError(str(error))))
            return
        self.query_one(RecipeList).reload(self.entries)
        self.query_one(RecipeList).choose(name)
        self.notify(f"{name} is a recipe of yours now; nobody ran it yet", markup=False)
