"""The question before a recipe that is not ours does more than serve a model, for every command that leads there."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from dflash_tui.cli.console import print_status
from dflash_tui.common.errors import UsageError
from dflash_tui.launch import recipe_trust
from dflash_tui.planning.recipe import Recipe
from dflash_tui.planning.resolution import ResolvedRecipe


def confirm_trust_of_setups(setups: Sequence[ResolvedRecipe], args: argparse.Namespace) -> None:
    """Return when the recipe of these setups may be run.

    Raises:
        UsageError: the user said no, or cannot be asked.
    """
    confirm_trust(setups[0].recipe, [setup.engine.vllm for setup in setups], args)


def confirm_trust(recipe: Recipe, releases: Sequence[str], args: argparse.Namespace) -> None:
    """Return when a recipe may be run: it is ours, may do nothing else, or the user says yes, now or by --trust.

    Raises:
        UsageError: the user said no, or cannot be asked.
    """
    powers = recipe_trust.list_untrusted_powers(recipe, releases)
    if not powers:
        return
    if not args.trust:
        if args.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise recipe_trust.build_untrusted_error(recipe, powers)
        print_status(f"The recipe {recipe.name} is not one of ours, and may do more than serve a model:")
        print_status("\n".join(f"  {power}" for power in powers))
        sys.stderr.write("Run it? You are asked again only when it changes. [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            raise UsageError(f"you did not say yes to {recipe.name}; nothing was started")
    recipe_trust.trust_recipe(recipe)
