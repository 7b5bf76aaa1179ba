"""`recipes`: list and check recipes, show one, write a new one, print their JSON Schema."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
from itertools import pairwise

import msgspec

from dflash_tui.cli.console import print_data, print_json, print_status
from dflash_tui.common import paths, private_files, yaml_loader
from dflash_tui.common.errors import RecipeError, UsageError
from dflash_tui.common.formatting import format_table, pluralize
from dflash_tui.planning import recipe as recipe_module
from dflash_tui.planning import recipe_loader, resolution
from dflash_tui.planning.powers import list_recipe_powers
from dflash_tui.planning.recipe import Recipe


def recipes(args: argparse.Namespace) -> int:
    """`recipes [check|show|new|schema]`: without an action print the list."""
    actions = {"check": check, "show": show, "new": new, "schema": schema}
    return actions.get(args.action, listed)(args)


def listed(args: argparse.Namespace) -> int:
    """Print the recipes; one that cannot be loaded is listed with its error."""
    rows = []
    known, broken = recipe_loader.load_all_recipes()
    for name, recipe in known.items():
        if args.json:
            print_json(recipe)
        setup = resolution.resolve_recipe(recipe)
        hardware = ", ".join(kind.value for kind in recipe.hardware) or "any CPU"
        tokens = str(setup.num_speculative_tokens)
        rows.append((name, recipe.status.value, tokens, setup.engine.vllm, hardware, recipe.title))
    if args.json:
        for name, error in broken.items():
            print_data(json.dumps({"name": name, "error": error}))
        return 0
    print_data(format_table(("RECIPE", "STATUS", "N", "VLLM", "FOR", "TITLE"), rows, right=(2,)))
    for name, error in broken.items():
        print_status(f"! {name}: {error}")
    return 0


def check(args: argparse.Namespace) -> int:
    """Check recipe files and print the error of each; the exit code is 2 when there is one."""
    files = [recipe_loader.recipe_path(name) for name in args.files]
    wrong = 0
    for path in files or recipe_loader.list_recipe_files().values():
        try:
            recipe = recipe_loader.load_recipe(path)
        except RecipeError as error:
            wrong += 1
            print_data(json.dumps({"file": str(path), "error": str(error)}) if args.json else f"✗ {error}")
            continue
        count = len(resolution.list_profiles(recipe)) * max(1, len(recipe.hardware)) * (1 + len(recipe.variants))
        powers = list_recipe_powers(recipe)
        result = {"file": str(path), "error": "", "plans": count, "powers": msgspec.to_builtins(powers)}
        lines = [f"✓ {path}: {pluralize(count, 'plan')}", *(f"  power  {power}" for power in powers)]
        print_data(json.dumps(result) if args.json else "\n".join(lines))
    return 2 if wrong else 0


def show(args: argparse.Namespace) -> int:
    """Print a recipe's file, and its path to stderr."""
    path = recipe_loader.recipe_path(args.recipe)
    recipe_loader.load_recipe(path)
    print_status(str(path))
    print_data(yaml_loader.read_yaml_text(path).rstrip())
    return 0


def new(args: argparse.Namespace) -> int:
    """Write a recipe into the user's folder, from the template or from another recipe, and print its path."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", args.name):
        raise UsageError(f"'{args.name}' is not a valid recipe name", hint="use lower case letters, digits, . _ and -")
    source = recipe_loader.recipe_path(args.like) if args.like else paths.bundled_folder("recipes") / "_template.yaml"
    target = paths.user_recipes_folder() / f"{args.name}.yaml"
    if target.exists():
        raise UsageError(
            f"{target} already exists", hint=f"edit it, or print it with dflash-tui recipes show {args.name}"
        )
    if args.like:
        recipe_loader.load_recipe(source)
    private_files.ensure_private_folder(target.parent)
    content = yaml_loader.read_yaml_text(source)
    schema_file = target.parent / "recipe.schema.json"
    private_files.replace_private_file(schema_file, schema_text().encode())
    head = f"# yaml-language-server: $schema={schema_file.name}\n"
    text = re.sub(r"\A(# yaml-language-server:[^\n]*\n)?", head, content)
    private_files.replace_private_file(target, text.encode())
    print_data(str(target))
    print_status(f"edit it, then: dflash-tui recipes check {args.name}; dflash-tui plan {args.name}")
    return 0


def schema(_args: argparse.Namespace) -> int:
    """Print the JSON Schema of recipe files."""
    print_data(schema_text().rstrip())
    return 0


def schema_text() -> str:
    """Return the JSON Schema of recipe files, as it is shipped."""
    schema = msgspec.json.schema(Recipe)
    fields = _field_texts()
    for name, part in schema["$defs"].items():
        part["description"] = " ".join(part["description"].split())
        for key, value in part.get("properties", {}).items():
            if text := fields.get((name, key)):
                value["description"] = text
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "dflash-tui recipe"}
    return json.dumps(head | schema, indent=1, sort_keys=False) + "\n"


def _field_texts() -> dict[tuple[str, str], str]:
    """Return the texts under the fields of a recipe's structs, by class and field, inherited ones included."""
    texts: dict[tuple[str, str], str] = {}
    for node in ast.parse(inspect.getsource(recipe_module)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for base in (base.id for base in node.bases if isinstance(base, ast.Name)):
            texts |= {(node.name, field): text for (owner, field), text in texts.items() if owner == base}
        for field, text in pairwise(node.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                texts[node.name, ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return texts
