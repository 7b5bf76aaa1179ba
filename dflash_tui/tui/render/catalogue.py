"""Text of the catalogue on the launch screen: a pair as a dimmed row, and what is known of it."""

from __future__ import annotations

from collections.abc import Iterable

from textual.content import Content

from dflash_tui.common.formatting import UNKNOWN
from dflash_tui.planning.derivation import catalogue as catalogues
from dflash_tui.planning.derivation.catalogue import Catalogue, CataloguePair
from dflash_tui.presentation import recipe_text
from dflash_tui.presentation.recipe_text import Place
from dflash_tui.tui.render.plan import render_hung
from dflash_tui.tui.render.recipe_rows import RecipeRow
from dflash_tui.tui.widgets.basic import MUTED

_MARKS = {True: "✓", False: "✗", None: " "}


def fits_place(catalogue: Catalogue, pair: CataloguePair, place: Place) -> bool | None:
    """Return whether a precision of the pair's target fits; None where the machine or all sizes are not known."""
    has_size = any(
        catalogues.estimate_need(catalogue, pair, variant) for variant in catalogue.targets[pair.target].variants
    )
    if place.budget is None or not has_size:
        return None
    return any(catalogues.list_fitting_models(catalogue, pair, place.budget))


def build_pair_rows(pairs: Iterable[CataloguePair], place: Place) -> list[RecipeRow]:
    """Return the rows of pairs: whether each fits, drafts, the first release that runs it, and who published it."""
    catalogue = catalogues.load_catalogue()
    return [_build_pair_row(catalogue, pair, place) for pair in pairs]


def _build_pair_row(catalogue: Catalogue, pair: CataloguePair, place: Place) -> RecipeRow:
    tokens = UNKNOWN if pair.tokens is None else str(pair.tokens)
    release, source = recipe_text.format_release(pair), recipe_text.format_source(pair)
    return RecipeRow(pair.id, _MARKS[fits_place(catalogue, pair, place)], tokens, release, source)


def render_catalogue_pair(pair: CataloguePair, place: Place, width: int) -> Content:
    """Return what is known of a pair, in rows of `width` cells, and what enter does with it."""
    catalogue = catalogues.load_catalogue()
    model = catalogues.choose_model(catalogue, pair, place.budget)
    does = "makes it a recipe of yours" if model else "does nothing: no repository of its target is known"
    rows = [Content.assemble((pair.id, "bold"), (" from the catalogue, published by others", MUTED))]
    rows += [Content.assemble(("enter ", "bold $primary"), does), Content("")]
    facts = list(recipe_text.list_pair_facts(catalogue, pair, place))
    column = max(len(name) for name, _ in facts) + 1
    rows += [render_hung((f"{name:{column}}", MUTED), text, width) for name, text in facts]
    return Content("\n").join(rows)
