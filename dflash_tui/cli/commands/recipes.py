"""Recipes and the catalogue of published pairs: `recipes`."""

from __future__ import annotations

import argparse
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dflash_tui.cli.console import (
    is_json,
    print_data,
    print_items,
    print_result,
    print_status,
    print_table,
    print_text,
    terminal_width,
)
from dflash_tui.cli.json_lines import AddedRecipe, UpdatedCatalogue, print_written_file
from dflash_tui.cli.requests import derive_recipe
from dflash_tui.common import paths, private_files, yaml_loader
from dflash_tui.common.errors import DflashError, RecipeError, UsageError
from dflash_tui.common.formatting import UNKNOWN, fold_line, pluralize, suggest_nearest
from dflash_tui.common.secrets import redact_secrets
from dflash_tui.launch import recipe_files, recipe_trust
from dflash_tui.machine import gpus, nvml
from dflash_tui.machine.hardware import TYPICAL, Hardware, parse_class
from dflash_tui.planning import patch_file
from dflash_tui.planning.derivation import catalogue as catalogues
from dflash_tui.planning.derivation.catalogue import Catalogue, CataloguePair
from dflash_tui.planning.derivation.imported_recipe import LeftOut, import_recipe
from dflash_tui.planning.derivation.pair import write_recipe_text
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.planning.recipes.resolution import find_recipe_mistakes
from dflash_tui.presentation import recipe_text
from dflash_tui.presentation.recipe_text import Place

_HEADER = ("PAIR", "METHOD", "N", "VLLM", "NEEDS", "PUBLISHED")


def recipes_catalogue(args: argparse.Namespace) -> int:
    """Print the catalogue's pairs, filtered by method and fit; or the facts of one pair."""
    try:
        catalogues.load_own_catalogue()
    except UsageError as error:
        print_status(f"! {error}")
    catalogue, place = catalogues.load_catalogue(), _choose_place(args.gpu, needed=args.fits or args.unknown)
    listed = [pair for pair in catalogue.pairs if args.method in {None, "", pair.method.value}]
    unknown: list[CataloguePair] = []
    if args.fits or args.unknown:
        unknown = [pair for pair in listed if not _fits(catalogue, pair, place) and _may_fit(catalogue, pair)]
    if args.pair:
        pairs = [_find_pair(catalogue, args.pair)]
    elif args.unknown:
        pairs = unknown
    else:
        pairs = [pair for pair in listed if not args.fits or _fits(catalogue, pair, place)]
    print_items(_describe(catalogue, pair, place) for pair in pairs)
    if args.pair:
        _print_pair(catalogue, pairs[0], place)
    else:
        rows = [_row(catalogue, pair, place) for pair in pairs]
        print_table(_HEADER, rows, right=(2, 4), drop=("METHOD",))
        print_status(
            f"as of {catalogue.written}, published by others; dflash-tui recipes catalogue PAIR has the sources"
        )
        if args.fits and unknown and not args.unknown:
            print_status(f"{pluralize(len(unknown), 'pair')} of unknown size omitted; to list them:")
            print_status(_format_unknown_command(args))
    return 0


def _choose_place(name: str | None, *, needed: bool) -> Place:
    if name:
        kind = parse_class(name)
        if kind is None or kind not in TYPICAL:
            raise UsageError(f"the memory of class '{name}' is unknown", hint=f"available: {', '.join(TYPICAL)}")
        return Place(kind, catalogues.typical_budget(kind))
    place = recipe_text.choose_place(nvml.probe_gpus().gpus)
    if needed and place.budget is None:
        raise UsageError("this machine has no GPU to check against", hint=f"--gpu CLASS, one of {', '.join(TYPICAL)}")
    return place


def _find_pair(catalogue: Catalogue, name: str) -> CataloguePair:
    pairs = {pair.id: pair for pair in catalogue.pairs}
    if name not in pairs:
        hint = suggest_nearest(name, pairs) or "dflash-tui recipes catalogue lists them"
        raise UsageError(f"no pair called '{name}' in the catalogue", hint=hint)
    return pairs[name]


def _fits(catalogue: Catalogue, pair: CataloguePair, place: Place) -> bool:
    return place.budget is not None and any(catalogues.list_fitting_models(catalogue, pair, place.budget))


def _may_fit(catalogue: Catalogue, pair: CataloguePair) -> bool:
    """Whether the memory that the pair needs is unknown for a variant of its target."""
    return any(
        catalogues.estimate_need(catalogue, pair, variant) is None
        for variant in catalogue.targets[pair.target].variants
    )


def _format_unknown_command(args: argparse.Namespace) -> str:
    options = [word for name in ("gpu", "method") if (value := getattr(args, name)) for word in (f"--{name}", value)]
    return shlex.join(["dflash-tui", "recipes", "catalogue", "--unknown", *options])


def _row(catalogue: Catalogue, pair: CataloguePair, place: Place) -> tuple[str, ...]:
    model = catalogues.choose_model(catalogue, pair, place.budget)
    figure = recipe_text.find_nearest_figure(pair, place.hardware)
    return (
        pair.id,
        pair.method.value,
        UNKNOWN if pair.tokens is None else str(pair.tokens),
        recipe_text.format_release(pair),
        recipe_text.format_need(catalogue, pair, model),
        recipe_text.format_figure(figure) if figure else UNKNOWN,
    )


def _describe(catalogue: Catalogue, pair: CataloguePair, place: Place) -> dict[str, Any]:
    model = catalogues.choose_model(catalogue, pair, place.budget)
    need = catalogues.estimate_need(catalogue, pair, model) if model else None
    return {
        **msgspec.to_builtins(pair),
        "written": catalogue.written,
        "model": model.repo if model else None,
        "need_gib": round(need.gib, 1) if need else None,
        "need_without": need.unknown if need else (),
        "fits": _fits(catalogue, pair, place) if place.budget else None,
        "models": catalogue.targets[pair.target].variants,
        "sources": {name: catalogue.sources.get(name, name) for name in pair.sources},
        "command": recipe_text.format_up_command(pair, model) if model else None,
    }


def _print_pair(catalogue: Catalogue, pair: CataloguePair, place: Place) -> None:
    for name, text in recipe_text.list_pair_facts(catalogue, pair, place):
        print_text(fold_line(f"{name:11}  {text}", terminal_width(), hang=13))
    if model := catalogues.choose_model(catalogue, pair, place.budget):
        print_status(recipe_text.format_up_command(pair, model))


def recipes_check(args: argparse.Namespace) -> int:
    """Check recipe files and print the error of each; the exit code is 2 if there is one."""
    files = [recipe_loader.recipe_path(name) for name in args.files]
    wrong, (patches, _) = 0, patch_file.load_all_patches()
    for path in files or recipe_loader.list_recipe_files().values():
        try:
            recipe = recipe_loader.load_recipe(path)
            if mistakes := find_recipe_mistakes(recipe):
                raise RecipeError(f"{path}: {'; '.join(mistakes)}")
        except RecipeError as error:
            wrong += 1
            print_result({"file": str(path), "error": str(error)}, f"✗ {error}")
            continue
        count = len(resolution.list_profiles(recipe)) * max(1, len(recipe.hardware)) * (1 + len(recipe.variants))
        ingredients = recipe_trust.list_ingredients(recipe, patches)
        facts = {"file": str(path), "error": "", "plans": count, "ingredients": msgspec.to_builtins(ingredients)}
        print_result(facts, f"✓ {path}: {pluralize(count, 'plan')}")
        for ingredient in ingredients if path.parent != paths.bundled_folder("recipes") else ():
            print_text(f"  {ingredient}")
    return 2 if wrong else 0


def recipes_show(args: argparse.Namespace) -> int:
    """Print a recipe's file on stdout, and its path on stderr."""
    path = recipe_loader.recipe_path(args.recipe)
    recipe = recipe_loader.load_recipe(path)
    print_status(str(path))
    print_result(recipe, yaml_loader.read_yaml_text(path).rstrip())
    return 0


def recipes_new(args: argparse.Namespace) -> int:
    """Write a recipe into the user's folder, from the template, a recipe or a model; print its path."""
    # Without --like it would hide a shipped recipe and its variants.
    recipe_files.refuse_name(args.name, "" if args.like else f"choose another name, or copy it: --like {args.name}")
    source = recipe_loader.recipe_path(args.like) if args.like else paths.bundled_folder("recipes") / "_template.yaml"
    is_own = not args.like or recipe_trust.is_trusted(recipe_loader.load_recipe(source))
    if args.target:
        method = Method(args.method) if args.method else None
        content = write_recipe_text(derive_recipe(args.target, args.drafter, method))
    else:
        content = yaml_loader.read_yaml_text(source)
    target = recipe_files.add_own_recipe(args.name, content, recipe_text.schema_text())
    if is_own:
        recipe_trust.trust_contents(recipe_loader.load_recipe(target))
    print_written_file(target)
    print_status(f"edit it, then: dflash-tui recipes check {args.name}; dflash-tui plan {args.name}")
    return 0


def recipes_schema(_args: argparse.Namespace) -> int:
    """Print the JSON Schema of recipe files."""
    print_data(recipe_text.schema_text().rstrip())
    return 0


def recipes_add(args: argparse.Namespace) -> int:
    """Check another user's recipe, print what it runs, and add it to the user's recipes."""
    stem, data = recipe_files.read_named_file(args.source, yaml_loader.SIZE_LIMIT)
    name = _choose_name(args, stem)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise RecipeError(f"{args.source}: not UTF-8") from None
    recipe = _check_text(name, text, args.source)
    _report_and_add(recipe, text, ())
    return 0


def recipes_import(args: argparse.Namespace) -> int:
    """Make a recipe of a `vllm serve` command; print what was left out."""
    imported = import_recipe(args.words)
    recipe = _check_text(_choose_name(args, imported.name), imported.text, "the command")
    _report_and_add(recipe, imported.text, imported.left_out)
    return 0


def recipes_update(args: argparse.Namespace) -> int:
    """Check another catalogue, replace the current one with it, and print the changes."""
    _, data = recipe_files.read_named_file(args.source, catalogues.LARGEST)
    before, after = catalogues.load_catalogue(), catalogues.decode_catalogue(data)
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
    print_items([UpdatedCatalogue(after.written, len(new), **changes)])
    for what, names in changes.items():
        print_text("\n".join([f"{what:8} {name}" for name in names] or [f"{what:8} none"]))
    print_status(f"as of {after.written}, {len(new)} pairs; a catalogue runs nothing, it only names models")
    return 0


def _choose_name(args: argparse.Namespace, default: str) -> str:
    name: str = args.name or default
    recipe_files.refuse_name(name, "give this one another name: --name NAME", replace=args.replace)
    return name


def _check_text(name: str, text: str, source: str) -> Recipe:
    with tempfile.TemporaryDirectory(prefix="dflash-tui-") as folder:
        path = Path(folder) / f"{name}.yaml"
        private_files.write_private_file(path, text.encode())
        try:
            return recipe_loader.load_recipe(path)
        except RecipeError as error:
            raise RecipeError(error.what.replace(str(path), source), hint=error.hint) from None


def _report_and_add(recipe: Recipe, text: str, left_out: tuple[LeftOut, ...]) -> None:
    ingredients = recipe_trust.list_ingredients(recipe, patch_file.load_all_patches()[0])
    mistakes = tuple(find_recipe_mistakes(recipe))
    clean_left_out = tuple(LeftOut(redact_secrets(omission.what), omission.why) for omission in left_out)
    path = recipe_files.own_recipe_file(recipe.name)
    print_items([AddedRecipe(str(path), ingredients, clean_left_out, mistakes)])
    for omission in clean_left_out:
        print_status(f"omitted     {omission.what}: {omission.why}")
    for ingredient in ingredients:
        print_status(str(ingredient))
    for mistake in mistakes:
        print_status(f"wrong       {mistake}; correct it in the file")
    print_text(str(recipe_files.add_own_recipe(recipe.name, text)))
    print_status(f"checked; a launch asks before it runs any part of it. Next: dflash-tui plan {recipe.name}")


def recipes(_args: argparse.Namespace) -> int:
    """Print the recipes as resolved for this machine; invalid ones are listed with their error."""
    valid_recipes, broken = recipe_loader.load_all_recipes()
    print_items(valid_recipes.values())
    print_items({"name": name, "error": error} for name, error in broken.items())
    if is_json():
        return 0
    here = [card.hardware for card in nvml.probe_visible_gpus().gpus] if gpus.has_driver() else []
    rows = [_build_row(recipe, here) for recipe in valid_recipes.values()]
    header = ("RECIPE", "STATUS", "N", "VLLM", "FOR", "TITLE")
    print_table(header, rows, right=(2,), drop=("TITLE",))
    for name, error in broken.items():
        print_status(f"! {name}: {error}")
    return 0


def _build_row(recipe: Recipe, here: Sequence[Hardware]) -> tuple[str, ...]:
    names = ", ".join(kind.value for kind in recipe.reported_on) or ("any CPU" if recipe.for_cpu else "any GPU")
    hardware = next((kind for kind in here if kind in recipe.hardware), here[0] if here else None)
    try:
        resolved = resolution.resolve_recipe(recipe, hardware)
    except DflashError:
        return recipe.name, "not possible", UNKNOWN, UNKNOWN, names, recipe.title
    standing, tokens = resolved.standing.status.value, str(resolved.num_speculative_tokens)
    return recipe.name, standing, tokens, resolved.engine.vllm, names, recipe.title
