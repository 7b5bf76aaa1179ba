"""`--target` and `--drafter` in place of a recipe: derive how vLLM serves them, and say which rule gave what."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import NamedTuple

from dflash_tui.cli.console import print_status
from dflash_tui.common.errors import UsageError
from dflash_tui.engines import model_config
from dflash_tui.engines.model_hub import HubAccessError
from dflash_tui.launch import recipe_files
from dflash_tui.planning.derivation import catalogue
from dflash_tui.planning.derivation.catalogue import CataloguePair
from dflash_tui.planning.derivation.checkpoint import OWN_PRECISION, arrange_by_precision
from dflash_tui.planning.derivation.pair import DerivedPair
from dflash_tui.planning.methods import FACTS, DrafterUse, Method
from dflash_tui.presentation import recipe_text


def derive_recipe(target: str, drafter: str | None, method: Method | None, tokens: int | None = None) -> DerivedPair:
    """Return how vLLM serves two models, and print what was derived by which rule; for a target alone its drafters.

    `tokens` are the drafts per step that were asked for, which count where no rule knows how many.

    Raises:
        UsageError: they cannot be served together, or what is needed for it is not known.
        DflashError: a model cannot be read.
    """
    drafters = [] if drafter else _list_drafters(target, method)
    try:
        derived = asyncio.run(recipe_files.derive_from_models(target, drafter, method, tokens))
    except UsageError as error:
        if not drafters:
            raise
        raise UsageError(
            error.what, evidence=error.evidence, hint=f"for instance --drafter {shlex.quote(drafters[0])}"
        ) from None
    for fact in derived.facts:
        print_status(f"{fact.name:8} {fact.value}: {fact.rule}")
    return derived


class _Row(NamedTuple):
    """A way to draft for a model: who knows it, the drafter or an empty name, and what is known."""

    source: str
    drafter: str
    text: str


def _list_drafters(target: str, method: Method | None) -> list[str]:
    """Print the ways to draft for a model that are known, and return the drafters among them, the best known first."""
    pairs = _find_catalogued(target, method)
    rows = [_Row("known", pair.drafter, recipe_text.format_drafter(pair)) for pair in pairs]
    if method is None or FACTS[method].drafter is not DrafterUse.NEVER:
        rows += _read_tree(target, method, {row.drafter for row in rows})
    arranged = arrange_by_precision(rows, target, lambda row: row.drafter or row.text)
    for row, is_own in arranged:
        print_status(f"{row.source:8} {row.text}{f'; {OWN_PRECISION}' if is_own else ''}")
    return [row.drafter for row, _ in arranged if row.drafter]


def _read_tree(target: str, method: Method | None, known_drafters: set[str]) -> list[_Row]:
    """Return the drafters of the hub's model tree that are not known; without an answer say so."""
    try:
        drafters = asyncio.run(model_config.find_tree_drafters(target))
    except HubAccessError as error:
        print_status(f"{'hub':8} its model tree was not read: {error}")
        return []
    others = [
        drafter for drafter in drafters if drafter.repo not in known_drafters and method in {None, drafter.method}
    ]
    return [_Row("hub", drafter.repo, recipe_text.format_tree_drafter(drafter)) for drafter in others]


def _find_catalogued(target: str, method: Method | None) -> list[CataloguePair]:
    """Return the ways to draft for a model that the catalogue knows, of a method if one was asked for."""
    pairs = catalogue.find_pairs(catalogue.load_catalogue(), target)
    if method:
        return [pair for pair in pairs if pair.method is method and FACTS[method].drafter is not DrafterUse.NEVER]
    return [pair for pair in pairs if pair.method is not Method.NONE]


def derive_recipe_file(
    target: str, drafter: str | None, method: Method | None, tokens: int | None = None, *, on_cpu: bool = False
) -> Path:
    """Write the recipe of a pair into our own folder, in place of one of before, and return its path."""
    return recipe_files.write_derived_recipe(derive_recipe(target, drafter, method, tokens), on_cpu=on_cpu)
