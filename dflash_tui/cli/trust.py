"""The question before a recipe or patch that is not shipped is run, for every command that leads there."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from dflash_tui.cli.console import ask_yes, print_status
from dflash_tui.common.errors import UsageError
from dflash_tui.engines.environments import Engine
from dflash_tui.launch import recipe_trust
from dflash_tui.launch.recipe_trust import Ingredient
from dflash_tui.planning.patch_file import Patch
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.recipe import Recipe


def confirm_trust(recipe: Recipe, plans: Sequence[Plan], args: argparse.Namespace) -> None:
    """Return when these plans may be launched: all is shipped, or the user says yes to it.

    Raises:
        UsageError: the user said no, or cannot be asked.
    """
    untrusted = recipe_trust.find_untrusted(recipe, plans)
    if ingredients := untrusted.ingredients:
        if not args.trust:
            _ask(recipe.name, ingredients, recipe_trust.build_untrusted_error(recipe, ingredients), args)
        recipe_trust.trust_shown(untrusted)


def confirm_patch_trust(patches: Iterable[Patch], engine: Engine, args: argparse.Namespace) -> None:
    """Return when an engine may be made from `engine` with these patches.

    Raises:
        UsageError: the user said no, or cannot be asked.
    """
    if untrusted := recipe_trust.list_untrusted_patches(patches):
        if not args.trust:
            error = recipe_trust.build_untrusted_patch_error(untrusted)
            _ask(f"vLLM in {engine.folder}", recipe_trust.describe_patches(untrusted), error, args)
        recipe_trust.trust_patches(untrusted)


def _ask(name: str, ingredients: Iterable[Ingredient], error: UsageError, args: argparse.Namespace) -> None:
    """Ask whether `name` may run with these ingredients.

    Raises:
        UsageError: `error` when nobody can be asked, or the answer is no.
    """
    if args.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise error
    print_status(f"{name} has parts that are not shipped with dflash-tui. They can run code as you:")
    print_status("\n".join(f"  {ingredient}" for ingredient in ingredients))
    if not ask_yes("Run it? You are asked again only when it changes."):
        raise UsageError(f"{name} is not trusted; nothing was started")
