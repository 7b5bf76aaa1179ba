"""The question before a recipe or patch that is not shipped is run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from dflash_tui.common.errors import DflashError
from dflash_tui.launch import recipe_trust
from dflash_tui.launch.recipe_trust import Ingredient
from dflash_tui.planning.patch_file import Patch
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.tui.dialogs.basic import Dialog, ErrorDialog, measure_text
from dflash_tui.tui.render.plan import render_hung


class TrustDialog(Dialog[bool]):
    """Lists what a recipe or patch makes run, and asks whether it may; only `y` means yes."""

    HEADING: ClassVar = "trust"
    BINDINGS: ClassVar = [
        Binding("y", "dismiss(True)", "yes, until it changes"),
        Binding("n,escape,q", "dismiss(False)", "cancel"),
    ]

    def __init__(self, question: str, ingredients: Sequence[Ingredient]) -> None:
        super().__init__()
        self.question, self.ingredients = question, ingredients

    def compose(self) -> ComposeResult:
        advice = (
            "It has parts that are not shipped with dflash-tui. They can run code as you: read this before you say yes."
        )
        with Vertical(classes="dialog -wide"):
            yield Static(Content.assemble((self.question, "bold"), f"\n{advice}"))
            with VerticalScroll(id="checks"):
                yield Static(id="found", markup=False)

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """List the ingredients, wrapped to the width that there is."""
        width = measure_text(self.query_one("#checks"))
        rows = [render_hung((f"{part.kind:11} ", "bold"), part.text, width) for part in self.ingredients]
        self.query_one("#found", Static).update(Content("\n").join(rows))


async def confirm_trust(app: App[Any], recipe: Recipe, plans: Sequence[Plan]) -> bool:
    """Return whether plans of a recipe may be launched, after asking where that is not known."""
    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    ask_trust(app, recipe, plans, lambda: answer.set_result(True), lambda: answer.set_result(False))
    return await answer


def ask_trust(
    app: App[Any],
    recipe: Recipe,
    plans: Sequence[Plan],
    then: Callable[[], object],
    otherwise: Callable[[], object] = lambda: None,
) -> None:
    """Go on with `then` when plans of a recipe may be launched, after asking where that is not known."""
    try:
        untrusted = recipe_trust.find_untrusted(recipe, plans)
    except DflashError as error:  # a patch of the plan is gone by now, or not valid
        app.push_screen(ErrorDialog(error))
        otherwise()
        return
    question = f"Run {recipe.name}?"

    def go_on(yes: bool) -> None:
        (then if yes else otherwise)()

    _ask(app, question, untrusted.ingredients, lambda: recipe_trust.trust_shown(untrusted), go_on)


def ask_patch_trust(app: App[Any], patches: Sequence[Patch], then: Callable[[], object]) -> None:
    """Go on with `then` when an engine may be made with these patches, after asking."""
    untrusted = recipe_trust.find_untrusted_patches(patches)
    question = f"Change vLLM by {', '.join(untrusted.names.values())}?"
    trust = partial(recipe_trust.trust_shown, untrusted)
    _ask(app, question, untrusted.ingredients, trust, lambda yes: then() if yes else None)


def _ask(
    app: App[Any],
    question: str,
    ingredients: Sequence[Ingredient],
    trust: Callable[[], None],
    go_on: Callable[[bool], object],
) -> None:
    """Hand the answer to `go_on`; a yes that cannot be kept is none."""
    if not ingredients:
        go_on(True)
        return

    def on_answer(yes: bool | None) -> None:
        try:
            if yes:
                trust()
        except OSError as error:
            app.push_screen(ErrorDialog(DflashError(f"the answer cannot be kept: {error}")))
            yes = False
        go_on(bool(yes))

    app.push_screen(TrustDialog(question, ingredients), on_answer)
