"""`recipes check|show|new|schema|…`: check recipes, show one, write a new one, print their JSON Schema."""

from __future__ import annotations

import argparse
import json

import msgspec

from dflash_tui.cli.console import print_data, print_json, print_status
from dflash_tui.cli.json_lines import print_written_file
from dflash_tui.common import paths, yaml_loader
from dflash_tui.common.errors import RecipeError
from dflash_tui.common.formatting import pluralize
from dflash_tui.launch import recipe_files, recipe_trust
from dflash_tui.planning import patch_file
from dflash_tui.planning.derivation.pair import write_recipe_text
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.planning.recipes.resolution import find_recipe_mistakes
from dflash_tui.presentation import recipe_text


def run_action(args: argparse.Namespace) -> int:
    """Run an action of `recipes` other than `list`."""
    actions = {"check": check, "show": show, "new": new, "schema": schema, "catalogue": show_catalogue}
    return actions.get(args.action, take_over)(args)


def check(args: argparse.Namespace) -> int:
    """Check recipe files and print the error of each; the exit code is 2 when there is one."""
    files = [recipe_loader.recipe_path(name) for name in args.files]
    wrong, (patches, _) = 0, patch_file.load_all_patches()
    for path in files or recipe_loader.list_recipe_files().values():
        try:
            recipe = recipe_loader.load_recipe(path)
            if mistakes := find_recipe_mistakes(recipe):
                raise RecipeError(f"{path}: {'; '.join(mistakes)}")
        except RecipeError as error:
            wrong += 1
            print_data(json.dumps({"file": str(path), "error": str(error)}) if args.json else f"✗ {error}")
            continue
        count = len(resolution.list_profiles(recipe)) * max(1, len(recipe.hardware)) * (1 + len(recipe.variants))
        ingredients = recipe_trust.list_ingredients(recipe, patches)
        if args.json:
            listed = msgspec.to_builtins(ingredients)
            print_data(json.dumps({"file": str(path), "error": "", "plans": count, "ingredients": listed}))
            continue
        print_data(f"✓ {path}: {pluralize(count, 'plan')}")
        for ingredient in ingredients if path.parent != paths.bundled_folder("recipes") else ():
            print_data(f"  {ingredient}")
    return 2 if wrong else 0


def show(args: argparse.Namespace) -> int:
    """Print a recipe's file, and its path to stderr."""
    path = recipe_loader.recipe_path(args.recipe)
    recipe = recipe_loader.load_recipe(path)
    print_status(str(path))
    if args.json:
        print_json(recipe)
        return 0
    print_data(yaml_loader.read_yaml_text(path).rstrip())
    return 0


def new(args: argparse.Namespace) -> int:
    """Write a recipe into the user's folder, from the template or from another recipe, and print its path."""
    recipe_files.refuse_name(args.name)
    if not args.like:  # the variants of a shipped one would be gone
        hint = f"choose another name, or copy that recipe: --like {args.name}"
        recipe_files.refuse_shipped_name(args.name, hint)
    source = recipe_loader.recipe_path(args.like) if args.like else paths.bundled_folder("recipes") / "_template.yaml"
    is_own = not args.like or recipe_trust.is_trusted(recipe_loader.load_recipe(source))
    content = _derive(args) if args.target else yaml_loader.read_yaml_text(source)
    target = recipe_files.add_own_recipe(args.name, content, recipe_text.schema_text())
    if is_own:
        recipe_trust.trust_recipe(recipe_loader.load_recipe(target))
    print_written_file(target, as_json=args.json)
    print_status(f"edit it, then: dflash-tui recipes check {args.name}; dflash-tui plan {args.name}")
    return 0


def _derive(args: argparse.Namespace) -> str:
    """Return the text of a recipe for the models that were named."""
    from dflash_tui.cli.derived_recipe import derive_recipe

    method = Method(args.method) if args.method else None
    return write_recipe_text(derive_recipe(args.target, args.drafter, method))


def show_catalogue(args: argparse.Namespace) -> int:
    """Print the catalogue of published pairs."""
    from dflash_tui.cli.commands.configuration import catalogue

    return catalogue.show_catalogue(args)


def take_over(args: argparse.Namespace) -> int:
    """Add a recipe of others, import a command, or update the catalogue."""
    from dflash_tui.cli.commands.configuration import shared_recipes

    actions = {"add": shared_recipes.add_recipe, "import": shared_recipes.import_command}
    return actions.get(args.action, shared_recipes.update_catalogue)(args)


def schema(_args: argparse.Namespace) -> int:
    """Print the JSON Schema of recipe files."""
    print_data(recipe_text.schema_text().rstrip())
    return 0
