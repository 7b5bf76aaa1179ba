"""`recipes`: list recipes; its other actions are `recipe_actions`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from dflash_tui.cli.console import print_data, print_json, print_status, print_table
from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import UNKNOWN
from dflash_tui.machine import gpus
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.planning.recipes.recipe import Recipe


def recipes(args: argparse.Namespace) -> int:
    """`recipes [list|check|show|new|schema|catalogue|add|import|update]`: without an action print the list."""
    if args.action in {None, "list"}:
        return print_recipes(args)
    from dflash_tui.cli.commands.configuration import recipe_actions

    return recipe_actions.run_action(args)


def print_recipes(args: argparse.Namespace) -> int:
    """Print the recipes as they are on this machine; one that cannot be loaded is listed with its error."""
    valid_recipes, broken = recipe_loader.load_all_recipes()
    if args.json:
        for recipe in valid_recipes.values():
            print_json(recipe)
        for name, error in broken.items():
            print_data(json.dumps({"name": name, "error": error}))
        return 0
    here = _list_hardware() if gpus.has_driver() else []
    rows = [_build_row(recipe, here) for recipe in valid_recipes.values()]
    header = ("RECIPE", "STATUS", "N", "VLLM", "FOR", "TITLE")
    print_table(header, rows, right=(2,), drop=("TITLE",))
    for name, error in broken.items():
        print_status(f"! {name}: {error}")
    return 0


def _list_hardware() -> list[Hardware]:
    from dflash_tui.machine import nvml

    return [card.hardware for card in nvml.probe_visible_gpus().gpus]


def _build_row(recipe: Recipe, here: Sequence[Hardware]) -> tuple[str, ...]:
    """Return the cells of a recipe, as it is on the first GPU of this machine that it is for, else on the first."""
    names = ", ".join(kind.value for kind in recipe.reported_on) or ("any CPU" if recipe.for_cpu else "any GPU")
    hardware = next((kind for kind in here if kind in recipe.hardware), here[0] if here else None)
    try:
        outline = resolution.outline_recipe(recipe, hardware)
    except DflashError:
        return recipe.name, "not possible", UNKNOWN, UNKNOWN, names, recipe.title
    standing, tokens = outline.standing.status.value, str(outline.num_speculative_tokens)
    return recipe.name, standing, tokens, outline.vllm, names, recipe.title
