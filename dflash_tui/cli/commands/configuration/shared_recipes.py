"""`recipes add`, `import` and `update`: recipes, commands and catalogues of others, checked and never run unseen."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import msgspec

from dflash_tui.cli.console import print_data, print_json, print_status
from dflash_tui.cli.shared_recipe_lines import AddedRecipe, UpdatedCatalogue
from dflash_tui.common import private_files, yaml_loader
from dflash_tui.common.errors import RecipeError, UsageError
from dflash_tui.common.secrets import redact_secrets
from dflash_tui.launch import recipe_files, recipe_trust
from dflash_tui.planning import patch_file
from dflash_tui.planning.derivation import catalogue as catalogues
from dflash_tui.planning.derivation.imported_recipe import LeftOut, import_recipe, read_shell_command
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.planning.recipes.resolution import find_recipe_mistakes

_ANOTHER_NAME = "give this one another name: --name NAME"


def add_recipe(args: argparse.Namespace) -> int:
    """Put a recipe of somebody else among the user's own, after it was checked; print what it runs."""
    stem, data = recipe_files.read_named_file(args.source, yaml_loader.SIZE_LIMIT)
    name = args.name or stem
    recipe_files.refuse_shipped_name(name, _ANOTHER_NAME)
    recipe_files.refuse_name(name, replace=args.replace)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise RecipeError(f"{args.source}: not UTF-8") from None
    recipe = _check(name, text, args.source)
    _report_and_add(recipe, text, (), args)
    return 0


def import_command(args: argparse.Namespace) -> int:
    """Make a recipe of a `vllm serve` command; print what of it was not taken over."""
    imported = import_recipe(read_shell_command(args.words))
    name = args.name or imported.name
    recipe_files.refuse_shipped_name(name, _ANOTHER_NAME)
    recipe_files.refuse_name(name, replace=args.replace)
    recipe = _check(name, imported.text, "the command")
    _report_and_add(recipe, imported.text, imported.left_out, args)
    return 0


def update_catalogue(args: argparse.Namespace) -> int:
    """Put another catalogue in place of the one that is shown, after it was checked, and print what changed."""
    _, data = recipe_files.read_named_file(args.source, catalogues.LARGEST)
    before, after = catalogues.load_catalogue(), catalogues.decode_catalogue(data)
    if why := catalogues.explain_day(after):
        raise UsageError(f"the catalogue is not taken: {why}", hint="correct the clock, if that is what is wrong")
    if after.written < before.written:
        raise UsageError(
            f"the catalogue is older than the one here: {after.written}, and here {before.written}",
            hint=f"remove {catalogues.own_catalogue_file()} to go back to the shipped one",
        )
    private_files.ensure_private_folder(catalogues.own_catalogue_file().parent)
    private_files.replace_private_file(catalogues.own_catalogue_file(), msgspec.json.encode(after))
    old, new = ({pair.id: pair for pair in catalogue.pairs} for catalogue in (before, after))
    changes = {
        "added": tuple(name for name in new if name not in old),
        "changed": tuple(name for name in new if name in old and new[name] != old[name]),
        "removed": tuple(name for name in old if name not in new),
    }
    if args.json:
        print_json(UpdatedCatalogue(after.written, len(new), **changes))
        return 0
    for what, names in changes.items():
        print_data("\n".join([f"{what:8} {name}" for name in names] or [f"{what:8} none"]))
    print_status(f"as of {after.written}, {len(new)} pairs; a catalogue runs nothing, it only names models")
    return 0


def _check(name: str, text: str, source: str) -> Recipe:
    """Return the recipe that a text would be, without putting it anywhere.

    Raises:
        RecipeError: it is none; the message names its source.
    """
    with tempfile.TemporaryDirectory(prefix="dflash-tui-") as folder:
        path = Path(folder) / f"{name}.yaml"
        private_files.write_private_file(path, text.encode())
        try:
            return recipe_loader.load_recipe(path)
        except RecipeError as error:
            raise RecipeError(error.what.replace(str(path), source), hint=error.hint) from None


def _report_and_add(recipe: Recipe, text: str, left_out: tuple[LeftOut, ...], args: argparse.Namespace) -> None:
    """Print what a recipe runs and what is wrong with it, then put it among the user's own."""
    ingredients = recipe_trust.list_ingredients(recipe, patch_file.load_all_patches()[0])
    mistakes = tuple(find_recipe_mistakes(recipe))
    clean_left_out = tuple(LeftOut(redact_secrets(omission.what), omission.why) for omission in left_out)
    if args.json:
        path = recipe_files.own_recipe_file(recipe.name)
        print_json(AddedRecipe(str(path), ingredients, clean_left_out, mistakes))
        recipe_files.add_own_recipe(recipe.name, text, replace=args.replace)
        return
    for omission in clean_left_out:
        print_status(f"left out    {omission.what}: {omission.why}")
    for ingredient in ingredients:
        print_status(str(ingredient))
    for mistake in mistakes:
        print_status(f"wrong       {mistake}; correct it in the file")
    print_data(str(recipe_files.add_own_recipe(recipe.name, text, replace=args.replace)))
    print_status(f"checked; a launch asks before it runs anything of it. Next: dflash-tui plan {recipe.name}")
