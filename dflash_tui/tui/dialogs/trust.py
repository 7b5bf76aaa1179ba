"""The question before a recipe that is not ours does more than serve a model."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import pluralize
from dflash_tui.launch import recipe_trust
from dflash_tui.planning.powers import Power
from dflash_tui.planning.recipe import Recipe
from dflash_tui.tui.dialogs.basic import ErrorDialog


class TrustDialog(ModalScreen[bool]):
    """Lists what a recipe may do, and asks whether it may; only `y` means yes."""

    BINDINGS: ClassVar = [
        Binding("y", "dismiss(True)", "yes"),
        Binding("n,escape,q", "dismiss(False)", "no"),
    ]

    def __init__(self, recipe: Recipe, powers: Collection[Power]) -> None:
        super().__init__()
        self.recipe, self.powers = recipe, powers

    def compose(self) -> ComposeResult:
        question = f"Run {self.recipe.name}? It may do more than serve a model"
        advice = f"It is not one of ours, and has {pluralize(len(self.powers), 'power')}. Read this before you say yes."
        rows = [Content.assemble((power.source, "bold"), f": {power.words}") for power in self.powers]
        keys = (("y", "bold $primary"), "  run it; asked again when it changes   ", ("n", "bold $primary"), "  cancel")
        with Vertical(classes="dialog -wide"):
            yield Static(Content.assemble((question, "bold"), f"\n{advice}"))
            with VerticalScroll(id="checks"):
                yield Static(Content("\n").join(rows))
            yield Static(Content.assemble("\n", *keys))


def ask_trust(app: App[Any], recipe: Recipe, releases: Collection[str], then: Callable[[], object]) -> None:
    """Go on with `then` when a recipe may be run, after asking where that is not known."""
    powers = recipe_trust.list_untrusted_powers(recipe, releases)
    if not powers:
        then()
        return

    def on_answer(yes: bool | None) -> None:
        if not yes:
            return
        try:
            recipe_trust.trust_recipe(recipe)
        except OSError as error:
            app.push_screen(ErrorDialog(DflashError(f"the answer cannot be kept: {error}")))
            return
        then()

    app.push_screen(TrustDialog(recipe, powers), on_answer)
