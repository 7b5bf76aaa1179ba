"""`recipes`: list them, check them, show one, begin one."""

from __future__ import annotations

import argparse
import json
import re

import msgspec

from dflash_tui.cli.console import print_data, print_json, print_status
from dflash_tui.common import paths
from dflash_tui.common.errors import RecipeError, UsageError
from dflash_tui.common.formatting import format_table, pluralize
from dflash_tui.planning import recipe_loader, resolution
from dflash_tui.planning.recipe import Recipe


def recipes(args: argparse.Namespace) -> int:
    """`recipes [check|show|new|schema]`: without an action the list."""
    actions = {"check": check, "show": show, "new": new, "schema": schema}
    return actions.get(args.action, listed)(args)


def listed(args: argparse.Namespace) -> int:
    """Print the recipes; one that does not load is listed with its error."""
    rows, broken = [], []
    for name, path in recipe_loader.list_recipe_files().items():
        try:
            recipe = recipe_loader.load_recipe(path)
        except RecipeError as error:
            broken.append({"name": name, "error": str(error)})
            continue
        if args.json:
            print_json(recipe)
        made = resolution.resolve_recipe(recipe)
        known = ", ".join(kind.value for kind in recipe.hardware) or "any CPU"
        tokens = str(made.num_speculative_tokens)
        rows.append((name, recipe.status.value, tokens, made.engine.vllm, known, recipe.title))
    if args.json:
        for entry in broken:
            print_data(json.dumps(entry))
        return 0
    print_data(format_table(("RECIPE", "STATUS", "N", "VLLM", "FOR", "TITLE"), rows, right=(2,)))
    for entry in broken:
        print_status(f"! {entry['name']}: {entry['error']}")
    return 0


def check(args: argparse.Namespace) -> int:
    """Read recipe files and print what is wrong with each; the exit code is 2 when anything is."""
    wanted = [recipe_loader.recipe_path(name) for name in args.files] or list(
        recipe_loader.list_recipe_files().values()
    )
    wrong = 0
    for path in wanted:
        try:
            recipe = recipe_loader.load_recipe(path)
        except RecipeError as error:
            wrong += 1
            print_data(json.dumps({"file": str(path), "error": str(error)}) if args.json else f"✗ {error}")
            continue
        count = len(resolution.list_profiles(recipe)) * max(1, len(recipe.hardware)) * (1 + len(recipe.variants))
        says = {"file": str(path), "error": "", "plans": count}
        print_data(json.dumps(says) if args.json else f"✓ {path}: {pluralize(count, 'plan')}")
    return 2 if wrong else 0


def show(args: argparse.Namespace) -> int:
    """Print a recipe's file; where it is goes to stderr."""
    path = recipe_loader.recipe_path(args.recipe)
    recipe_loader.load_recipe(path)
    print_status(str(path))
    print_data(path.read_text(encoding="utf-8").rstrip())
    return 0


def new(args: argparse.Namespace) -> int:
    """Write a recipe into the user's folder, from the template or from another recipe, and say where."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", args.name):
        raise UsageError(f"'{args.name}' cannot be a recipe's name", hint="lower case letters, digits, . _ and -")
    source = recipe_loader.recipe_path(args.like) if args.like else paths.bundled_folder("recipes") / "_template.yaml"
    target = paths.user_recipes_folder() / f"{args.name}.yaml"
    if target.exists():
        raise UsageError(
            f"{target} is there already", hint=f"edit it, or see it with dflash-tui recipes show {args.name}"
        )
    if args.like:
        recipe_loader.load_recipe(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    content = source.read_text(encoding="utf-8")
    schema_file = target.parent / "recipe.schema.json"
    schema_file.write_text(schema_text(), encoding="utf-8")
    head = f"# yaml-language-server: $schema={schema_file.name}\n"
    target.write_text(re.sub(r"\A(# yaml-language-server:[^\n]*\n)?", head, content), encoding="utf-8")
    print_data(str(target))
    print_status(f"edit it, then: dflash-tui recipes check {args.name}; dflash-tui plan {args.name}")
    return 0


def schema(_args: argparse.Namespace) -> int:
    """Print the JSON Schema of recipe files."""
    print_data(schema_text().rstrip())
    return 0


def schema_text() -> str:
    """Return the JSON Schema of recipe files, as it is shipped."""
    made = msgspec.json.schema(Recipe)
    for part in made["$defs"].values():
        part["description"] = " ".join(part["description"].split())
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "dflash-tui recipe"}
    return json.dumps(head | made, indent=1, sort_keys=False) + "\n"
